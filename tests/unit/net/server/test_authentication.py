"""Who comes in with which key, what is said to the others, and which ports may stand open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from exchanges import exchange_for
from paddler_trio.balancer.activity.measures.balancer_measures import of_keys
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.exposure import check_exposure
from paddler_trio.balancer.keys import api_keys
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import Message, Scope, send_text
from paddler_trio.net.server.client_identity import client_of, default_problem
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.listening import warn_of_plain_ports
from paddler_trio.telemetry.recording import Sample

Headers = list[tuple[bytes, bytes]]


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    content = KeyFile()
    for name in ("inference", "management"):
        scopes = frozenset({KeyScope(name)})
        content = content.having(StoredKey.of(f"pt-{name}", name=name, scopes=scopes, created=""))
    path = tmp_path / "keys.json"
    write_key_file(path, content)
    return KeyRing.read(path)


def scope_of(path: str = "/api/v1/x", headers: Headers | None = None, kind: str = "http") -> Scope:
    return {
        "type": kind,
        "method": "GET",
        "path": path,
        "headers": headers or [],
        "client": ("127.0.0.1", 1),
    }


async def inner(exchange: Exchange) -> None:
    bound = structlog.contextvars.get_contextvars().get("key", "nobody")
    if exchange.is_http:
        client, _ = client_of(exchange)
        await send_text(exchange.send, 200, f"client {client!r}, logged as {bound}")
    else:
        await exchange.send({"type": "websocket.accept"})


async def ask(app: App, scope: Scope) -> list[Message]:
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    await app(exchange_for(scope, send=send))
    return said


def test_what_cannot_be_seen_in_a_clients_name_is_escaped() -> None:
    name = (b"x-paddler-client", b"a\x1b[2J\x85\xe9")
    assert client_of(exchange_for(scope_of("/v1/models", [name])))[0] == r"a\x1b[2J\x85" + "é"


async def test_a_key_opens_its_own_scope_and_names_the_request(ring: KeyRing) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    for headers in (
        [(b"authorization", b"Bearer pt-inference")],
        [(b"authorization", b"bearer  pt-inference ")],
        [(b"x-api-key", b"pt-inference")],
        [(b"authorization", b"Basic abc"), (b"x-api-key", b"pt-inference")],
        [(b"authorization", b"Bearer wrong"), (b"x-api-key", b"pt-inference")],
    ):
        start, body = await ask(app, scope_of(headers=headers))
        assert start["status"] == 200
        assert body["body"] == b"client 'inference', logged as inference"
    assert ring.requests == {"inference": 5}
    assert structlog.contextvars.get_contextvars() == {}


async def test_a_key_names_its_client_whatever_that_calls_himself(ring: KeyRing) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    headers = [(b"x-api-key", b"pt-inference"), (b"x-paddler-client", b"kiosk")]
    _, body = await ask(app, scope_of(headers=headers))
    assert body["body"] == b"client 'inference', logged as inference"


async def test_no_request_makes_the_balancer_hash_more_than_two_short_keys(
    ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def digest(salt: bytes, secret: bytes) -> bytes:
        hashed.append(secret)
        return b""

    monkeypatch.setattr(api_keys, "_digest", digest)
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    headers = [(b"x-api-key", b"wrong-%d" % number) for number in range(50)]
    headers += [(b"authorization", b"Bearer wrong-%d" % number) for number in range(50, 95)]
    start, _ = await ask(app, scope_of(headers=headers))
    assert start["status"] == 401
    assert set(hashed) == {b"wrong-0", b"wrong-50"}
    hashed.clear()
    start, _ = await ask(app, scope_of(headers=[(b"x-api-key", b"k" * 15_000)]))
    assert start["status"] == 401
    assert not hashed
    assert len(api_keys.new_secret()) <= api_keys.MAX_SECRET_BYTES


async def test_what_is_logged_of_a_refusal_is_short(ring: KeyRing) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    with structlog.testing.capture_logs() as records:
        await ask(app, scope_of("/" * 8000))
    assert [len(record["path"]) for record in records] == [200]


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ([], 401, "an API key is required"),
        ([(b"authorization", b"Bearer ")], 401, "an API key is required"),
        ([(b"authorization", b"Basic cHQtaW5mZXJlbmNl")], 401, "an API key is required"),
        ([(b"authorization", b"Bearer pt-wrong")], 401, "not known"),
        ([(b"authorization", b"pt-inference")], 401, "required"),
        ([(b"x-api-key", b"pt-management")], 403, "'management' is for management"),
    ],
)
async def test_others_are_told_why_not(
    ring: KeyRing, headers: Headers, status: int, says: str
) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    start, body = await ask(app, scope_of(headers=headers))
    assert start["status"] == status
    assert says in body["body"].decode()
    for secret in (b"pt-wrong", b"pt-management", b"pt-inference"):
        assert secret not in body["body"]
    challenge = dict(start["headers"]).get(b"www-authenticate")
    assert (challenge is not None and challenge.startswith(b"Bearer")) == (status == 401)
    assert ring.refusals == 1
    assert ring.requests == {}


async def test_a_socket_is_refused_before_it_is_accepted(ring: KeyRing) -> None:
    app = Authentication(ring, KeyScope.MANAGEMENT)(inner)
    start, *_ = await ask(app, scope_of(kind="websocket"))
    assert start["type"] == "websocket.http.response.start"
    assert start["status"] == 401
    allowed = scope_of(headers=[(b"authorization", b"Bearer pt-management")], kind="websocket")
    assert await ask(app, allowed) == [{"type": "websocket.accept"}]


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/v1/health", "/models"])
async def test_probes_are_open_to_http_only(ring: KeyRing, path: str) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    start, _ = await ask(app, scope_of(path))
    assert start["status"] == 200
    start, *_ = await ask(app, scope_of(path, kind="websocket"))
    assert start["status"] == 401


async def test_without_a_key_file_nothing_is_asked_and_nothing_is_counted() -> None:
    ring = KeyRing()
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    start, body = await ask(app, scope_of(headers=[(b"authorization", b"Bearer none")]))
    assert start["status"] == 200
    assert body["body"] == b"client '', logged as nobody"
    assert list(of_keys(ring)) == []


async def test_a_scope_without_a_key_and_a_waived_one_stay_open(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    scopes = frozenset({KeyScope.INFERENCE})
    key = StoredKey.of("pt-a", name="a", scopes=scopes, created="")
    write_key_file(path, KeyFile().having(key))
    ring = KeyRing.read(path)
    for app in (
        Authentication(ring, KeyScope.MANAGEMENT)(inner),
        Authentication(ring, KeyScope.INFERENCE, is_waived=True)(inner),
    ):
        start, _ = await ask(app, scope_of(headers=[(b"authorization", b"Bearer wrong")]))
        assert start["status"] == 200


async def test_metrics_count_by_name(ring: KeyRing) -> None:
    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    await ask(app, scope_of(headers=[(b"x-api-key", b"pt-inference")]))
    await ask(app, scope_of())
    ring.limited["inference", "max_concurrent"] = 2
    counted = {each.definition.name: list(each.samples) for each in of_keys(ring)}
    assert counted == {
        "api_key_requests_total": [Sample((("key", "inference"),), 1)],
        "api_key_refusals_total": [Sample((), 1)],
        "api_key_limited_total": [Sample((("key", "inference"), ("limit", "max_concurrent")), 2)],
    }


# ----------------------------------------------------------------------------------- exposure


@pytest.fixture
def loopback() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@pytest.fixture
def everywhere() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as bound:
        yield bound


def test_management_beyond_loopback_wants_a_key_or_a_word(
    ring: KeyRing, loopback: socket.socket, everywhere: socket.socket
) -> None:
    def check(keys: KeyRing, bound: socket.socket, *, insecure: bool = False) -> None:
        check_exposure(keys, inference=[loopback], management=[bound], insecure_management=insecure)

    with pytest.raises(ConfigurationError, match="--insecure-management"):
        check(KeyRing(), everywhere)
    check(ring, everywhere)
    check(KeyRing(), loopback)
    with structlog.testing.capture_logs() as records:
        check(KeyRing(), everywhere, insecure=True)
    assert [record["log_level"] for record in records] == ["warning"]


def test_a_panel_beyond_loopback_wants_a_key_or_a_word(
    ring: KeyRing, loopback: socket.socket, everywhere: socket.socket
) -> None:
    def check(keys: KeyRing, panel: socket.socket, *, insecure: bool = False) -> list[str]:
        with structlog.testing.capture_logs() as records:
            check_exposure(
                keys,
                inference=[loopback],
                management=[loopback],
                panel=[panel],
                insecure_management=insecure,
            )
        return [record["event"] for record in records]

    with pytest.raises(ConfigurationError, match=r"panel on .*--insecure-management"):
        check(KeyRing(), everywhere)
    assert check(KeyRing(), loopback) == check(ring, everywhere) == []
    assert check(ring, everywhere, insecure=True) == []  # it asks for a login all the same
    (warning,) = check(KeyRing(), everywhere, insecure=True)
    assert "THE PANEL IS OPEN" in warning


def test_open_inference_beyond_loopback_is_warned_about(
    ring: KeyRing, loopback: socket.socket, everywhere: socket.socket
) -> None:
    def warnings(keys: KeyRing, bound: socket.socket) -> int:
        with structlog.testing.capture_logs() as records:
            check_exposure(
                keys, inference=[bound], management=[loopback], insecure_management=False
            )
        return len(records)

    assert warnings(KeyRing(), everywhere) == 1
    assert warnings(ring, everywhere) == 0
    assert warnings(KeyRing(), loopback) == 0


def test_ports_without_tls_beyond_loopback_are_named(
    loopback: socket.socket, everywhere: socket.socket
) -> None:
    with structlog.testing.capture_logs() as records:
        warn_of_plain_ports([loopback])
        assert records == []
        warn_of_plain_ports([loopback, everywhere])
    (record,) = records
    assert record["addresses"] == [f"0.0.0.0:{everywhere.getsockname()[1]}"]
    assert "--tls-cert and --tls-key" in record["event"]


async def test_the_deployments_of_a_key_come_with_the_request(tmp_path: Path) -> None:
    content = KeyFile()
    for name, deployments in (("limited", frozenset({"coder"})), ("free", frozenset[str]())):
        key = StoredKey.of(
            f"pt-{name}",
            name=name,
            scopes=frozenset({KeyScope.INFERENCE}),
            created="",
            deployments=deployments,
        )
        content = content.having(key)
    path = tmp_path / "keys.json"
    write_key_file(path, content)
    seen: list[tuple[frozenset[str] | None, str | None]] = []

    async def app(exchange: Exchange) -> None:
        seen.append((exchange.identity.deployments, default_problem(exchange)))

    guarded = Authentication(KeyRing.read(path), KeyScope.INFERENCE)(app)
    for name in ("limited", "free"):
        await ask(guarded, scope_of(headers=[(b"x-api-key", f"pt-{name}".encode())]))
    await ask(guarded, scope_of("/models"))
    (limited, why), *others = seen
    assert limited == {"coder"}
    assert why is not None
    assert "'limited' is for the deployments coder" in why
    assert others == [(None, None), (None, None)]
