"""A panel over two small applications, asked without sockets."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path

import attrs

from exchanges import exchange_for
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.origins import Origins
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.balancer.panel.panel_access import PanelAccess
from paddler_trio.balancer.panel.panel_assets import PanelAssets
from paddler_trio.balancer.panel.panel_site import PanelSite
from paddler_trio.balancer.panel.session_routes import SessionRoutes
from paddler_trio.net.server.asgi import (
    HttpProblem,
    Message,
    Scope,
    send_json,
    send_text,
)
from paddler_trio.net.server.client_identity import named_client
from paddler_trio.net.server.exchange import App, AuditTrail, Exchange
from paddler_trio.net.server.router import Router

Headers = list[tuple[bytes, bytes]]
PAGE = "<!doctype html><title>panel</title>" + "<p>text</p>" * 100


def written(folder: Path, **names: KeyScope) -> tuple[KeyRing, dict[str, str]]:
    """A ring of a file with these keys, and their secrets."""
    content, secrets = KeyFile(), {}
    for name, scope in names.items():
        secrets[name] = new_secret()
        key = StoredKey.of(
            secrets[name], name=name, scopes=frozenset({scope}), created="2026-01-01"
        )
        content = content.having(key)
    path = folder / "keys.json"
    write_key_file(path, content)
    return KeyRing.read(path), secrets


@attrs.define
class AuditDouble:
    """Keeps what was recorded: action, who and outcome."""

    records: list[tuple[str, str | None, str]] = attrs.field(factory=list)

    def record(
        self,
        exchange: Exchange,
        action: str,
        target: str = "",
        *,
        outcome: str = "done",
        who: str | None = None,
        **fields: object,
    ) -> None:
        self.records.append((action, who, outcome))


def expiring(folder: Path, name: str, expires: datetime) -> tuple[KeyRing, str]:
    """A ring of one management key with an end, and its secret."""
    secret, terms = new_secret(), KeyTerms(expires=expires)
    scopes = frozenset({KeyScope.MANAGEMENT})
    key = StoredKey.of(secret, name=name, scopes=scopes, created="", terms=terms)
    path = folder / "keys.json"
    write_key_file(path, KeyFile().having(key))
    return KeyRing.read(path), secret


async def echo(exchange: Exchange) -> None:
    """Says what it was asked, and for whom."""
    if exchange.is_websocket:
        await exchange.send({"type": "websocket.accept"})
        return
    said = {
        "method": exchange.method,
        "path": exchange.path,
        "raw_path": exchange.scope["raw_path"].decode(),
        "client": named_client(exchange),
        "deployments": sorted(exchange.identity.deployments or ()),
        "account": exchange.identity.account,
    }
    await send_json(exchange.send, 200, said)


async def refuse_in_envelope(exchange: Exchange, problem: HttpProblem) -> None:
    await send_text(
        exchange.send, problem.status, f"envelope: {problem.text}", headers=problem.headers
    )


def assets_in(folder: Path) -> PanelAssets:
    folder.mkdir(parents=True)
    script = b"console.log(1);\n" * 100
    (folder / "index.html").write_text(PAGE)
    (folder / "main-1A2B3C4D.js").write_bytes(script)
    (folder / "main-1A2B3C4D.js.gz").write_bytes(gzip.compress(script))
    (folder / "dot-3c4d5e6f.png").write_bytes(b"\x89PNG" + bytes(1000))
    (folder / "licences.txt").write_text("Apache-2.0")
    return PanelAssets.read(folder)


@attrs.frozen
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def cookie(self) -> str:
        return self.headers["set-cookie"].partition(";")[0]


def site_of(
    ring: KeyRing, assets: PanelAssets, trail: AuditTrail | None = None
) -> tuple[PanelSite, PanelAccess]:
    access = PanelAccess(ring)
    operators = Authentication(ring, KeyScope.MANAGEMENT)
    own = Router()
    SessionRoutes(access, operators).add_to(own)
    pages = Origins([], flag="--management-cors-allowed-host")
    use = Authentication(ring, KeyScope.INFERENCE)
    site = PanelSite(
        assets,
        own=pages(own if trail is None else audited(own, trail, changes=lambda scope: False)),
        management=pages(access(echo, otherwise=operators)),
        inference=pages(access(echo, otherwise=use, refuse=refuse_in_envelope)),
    )
    return site, access


async def ask(
    app: App,
    path: str,
    method: str = "GET",
    *headers: tuple[bytes, bytes],
    body: object = None,
    kind: str = "http",
    scheme: str = "http",
    client: str = "10.0.0.9",
) -> Answer:
    """One request; status 101 for an accepted WebSocket."""
    given: Headers = [(b"host", b"panel.local:8062"), *headers]
    text = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        given.append((b"content-type", b"application/json"))
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": text, "more_body": False}

    scope: Scope = {
        "type": kind,
        "method": method,
        "scheme": scheme,
        "path": path,
        "raw_path": path.encode(),
        "headers": given,
        "client": (client, 1),
    }
    await app(exchange_for(scope, receive, send))
    if said[0]["type"] == "websocket.accept":
        return Answer(101, {}, b"")
    found = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return Answer(said[0]["status"], found, b"".join(each.get("body", b"") for each in said[1:]))
