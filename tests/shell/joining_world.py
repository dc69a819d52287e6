"""The management port's guard and its joining routes without a network: ASGI calls, a key file."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
from hypothesis import strategies as st

from exchanges import exchange_for
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.joining.agent_guard import AgentGuard, legacy_networks
from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.join_exchange import JoinExchange
from paddler_trio.balancer.joining.join_pins import JoinPins
from paddler_trio.balancer.joining.join_routes import JoinTokenRoutes
from paddler_trio.balancer.joining.pin_routes import PinRoutes
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.status.refused_agents import RefusedAgents
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import digest_of, new_secret
from paddler_trio.net.server.asgi import Message, Scope, send_text
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.router import Router
from paddler_trio.processes.model_store.store_messages import is_store_path

BALANCER, FINGERPRINT = "study:8060", "ab" * 32
MANAGER, CLIENT = "pt-manager", "pt-client"
SOCKET = "/api/v1/agent_socket/abc"
Headers = list[tuple[bytes, bytes]]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@attrs.frozen
class Said:
    """An answer; 101 for a WebSocket that was accepted."""

    status: int
    headers: Headers
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


@attrs.define
class JoiningWorld:
    """``legacy`` and ``is_waived`` as the flags of a balancer; without ``has_keys`` it has none."""

    folder: Path
    legacy: tuple[str, ...] = ()
    is_waived: bool = False
    has_keys: bool = True
    keys: KeyRing = attrs.field(init=False)
    registry: AgentRegistry = attrs.field(init=False)
    exchange: JoinExchange = attrs.field(init=False)
    app: App = attrs.field(init=False)
    pins: JoinPins = attrs.field(init=False)
    fingerprint: str | None = FINGERPRINT
    refused: RefusedAgents = attrs.field(factory=RefusedAgents, init=False)

    def __attrs_post_init__(self) -> None:
        path = self.folder / "keys.json"
        content = KeyFile()
        for secret, scope in ((MANAGER, KeyScope.MANAGEMENT), (CLIENT, KeyScope.INFERENCE)):
            key = StoredKey.of(secret, name=secret[3:], scopes=frozenset({scope}), created="")
            content = content.having(key)
        write_key_file(path, content)
        self.keys = KeyRing.read(path) if self.has_keys else KeyRing()
        self.registry = AgentRegistry.read(self.folder / "agents.json")
        self.exchange = JoinExchange(self.registry, lambda: ["PEM"])
        tokens = JoinTokenRoutes(self.registry, self.keys, lambda scope: "here:1", lambda: None)
        self.pins = JoinPins(self.registry, BALANCER, lambda: self.fingerprint)
        routes = Router(otherwise=operators)
        PinRoutes(self.pins, tokens).add_to(routes)
        self.exchange.add_to(routes)
        tokens.add_to(routes)
        routes.websocket("/api/v1/agent_socket/{id}", accept)
        manage = Authentication(self.keys, KeyScope.MANAGEMENT, is_waived=self.is_waived)
        networks = legacy_networks(self.legacy)
        guard = AgentGuard(self.registry, manage, is_store_path, networks, self.refused)
        self.app = guard(routes)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        body: object = None,
        raw: bytes | None = None,
        headers: Headers | None = None,
        address: str = "127.0.0.1",
    ) -> Said:
        """One request; ``WS`` as the method opens a WebSocket."""
        is_socket = method == "WS"
        content = raw if raw is not None else json.dumps(body).encode() if body is not None else b""
        sent = [*(headers or [])]
        if key is not None:
            sent.append((b"authorization", f"Bearer {key}".encode()))
        if content:
            sent.append((b"content-type", b"application/json"))
        scope: Scope = {
            "type": "websocket" if is_socket else "http",
            "method": "GET" if is_socket else method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": sent,
            "subprotocols": [
                value.decode() for name, value in sent if name == b"sec-websocket-protocol"
            ],
            "client": (address, 1),
        }
        return await said(self.app, scope, content)

    async def token(self, **order: object) -> list[str]:
        """The parts of a new one: prefix, id, secret, hash, address."""
        made = await self.ask("POST", "/api/v2/join-tokens", key=MANAGER, body=order)
        assert made.status == 201, made.text
        return str(made.json()["token"]).split(".", 4)

    async def pin(self, **order: object) -> str:
        """The digits of a new one."""
        made = await self.ask("POST", "/api/v2/join-pins", key=MANAGER, body=order)
        assert made.status == 201, made.text
        return str(made.json()["pin"])

    async def joined(self, name: str = "gpu") -> AgentCredential:
        _, token_id, secret, *_ = await self.token()
        own = new_secret()
        answer = await self.ask("POST", "/api/v2/join", body=join_body(token_id, secret, own, name))
        assert answer.status == 201, answer.text
        return AgentCredential(str(answer.json()["id"]), own)


def join_body(token_id: str, secret: str, own: str, name: str | None = "gpu") -> dict[str, object]:
    return {
        "id": token_id,
        "secret": secret,
        "credential_sha256": digest_of(own).hex(),
        "name": name,
        "host": None,
    }


async def said(app: App, scope: Scope, content: bytes) -> Said:
    """What ``app`` answers."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        if scope["type"] == "websocket":
            return {"type": "websocket.connect"}
        return {"type": "http.request", "body": content, "more_body": False}

    await app(exchange_for(scope, receive, send))
    first = messages[0]
    if first["type"] == "websocket.accept":
        return Said(101, [], b"")
    if first["type"] == "websocket.close":
        return Said(403, [], b"")
    body = b"".join(each.get("body", b"") for each in messages[1:])
    return Said(first["status"], list(first["headers"]), body)


async def operators(exchange: Exchange) -> None:
    await send_text(exchange.send, 200, "for operators")


async def accept(exchange: Exchange, params: object) -> None:
    await exchange.send({"type": "websocket.accept"})
