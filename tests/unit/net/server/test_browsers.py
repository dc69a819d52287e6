"""What web pages may do: under which names they reach us, and which of them may change anything."""

from __future__ import annotations

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from exchanges import exchange_for
from paddler_trio.balancer.front.origins import Origins, is_same_host
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.allowed_hosts import AllowedHosts, allowed_names, own_names
from paddler_trio.net.server.asgi import HttpProblem, Message, Scope, send_text
from paddler_trio.net.server.exchange import App, Exchange

FLAG = "--inference-cors-allowed-host"
HOST = (b"host", b"127.0.0.1:8061")
Headers = list[tuple[bytes, bytes]]


def scope_of(*headers: tuple[bytes, bytes], method: str = "GET", kind: str = "http") -> Scope:
    return {"type": kind, "method": method, "path": "/", "headers": list(headers)}


async def inner(exchange: Exchange) -> None:
    if exchange.is_http:
        await send_text(exchange.send, 200, "served")
    else:
        await exchange.send({"type": "websocket.accept"})


async def ask(app: App, scope: Scope) -> tuple[int, str]:
    """The status, 101 for an accepted socket, and the text of the answer."""
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    await app(exchange_for(scope, send=send))
    if said[0]["type"] == "websocket.accept":
        return 101, ""
    return said[0]["status"], said[1]["body"].decode()


# -------------------------------------------------------------------------------------- hosts

ADDRESSES = ["127.0.0.1", "127.0.0.1:8061", "127.8.9.10:1", "[::1]", "[::1]:8061",
             "192.168.1.7:8061", "0.0.0.0:8061", "203.0.113.5", "[2001:db8::1]:8061",
             "[fe80::1%eth0]:8061"]  # fmt: skip
LOOPBACK_NAMES = ["localhost", "localhost:8061", "LocalHost:1", "localhost.:8061", "a.localhost"]
LOCAL_NAMES = ["gpu-box", "gpu-box:8061", "balancer", "printer.local", "x.y.local.:1",
               "a.internal", "nas.home.arpa", "gpu.example.org:8061"]  # fmt: skip
FOREIGN = ["evil.example", "evil.example:8061", "127.0.0.1.evil.example", "localhost.evil.example",
           "evil-localhost.example", "xlocalhost.com", "a.local.evil.example",
           "gpu.example.org.evil", "a@127.0.0.1", "evil.example/127.0.0.1", "[evil.example]",
           "[::1].evil.example", "[::1", "127.0.0.1:8061:evil.example", "evil.example:127.0.0.1",
           ".", ":8061", "a b", "1.2.3.4.5", "[]", "[127.0.0.1",
           "x" * 15_000 + ".example"]  # fmt: skip
OWN = frozenset({"gpu.example.org"})


def hosts(
    *names: str, is_loopback: bool, requires_key: bool = False, own: frozenset[str] = OWN
) -> AllowedHosts:
    return AllowedHosts(
        allowed_names(names) | (frozenset() if is_loopback else own),
        is_loopback=is_loopback,
        requires_key=lambda: requires_key,
    )


@pytest.mark.parametrize("host", [*ADDRESSES, *LOOPBACK_NAMES])
def test_addresses_and_localhost_are_always_allowed(host: str) -> None:
    assert hosts(is_loopback=True).allows(host)
    assert hosts(is_loopback=False).allows(host)


@pytest.mark.parametrize("host", LOCAL_NAMES)
def test_names_that_nobody_outside_can_take_are_allowed_beyond_the_loopback(host: str) -> None:
    assert not hosts(is_loopback=True).allows(host)
    assert hosts(is_loopback=False).allows(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_foreign_everywhere(host: str) -> None:
    assert not hosts(is_loopback=True).allows(host)
    assert not hosts(is_loopback=False).allows(host)


@pytest.mark.parametrize("is_loopback", [True, False])
def test_a_name_is_allowed_with_the_flag_whatever_its_case_and_port(is_loopback: bool) -> None:
    allowing = hosts("LLM.example.org.", "other.example", is_loopback=is_loopback)
    assert allowing.allows("llm.Example.org:8061")
    assert allowing.allows("other.example")
    assert not allowing.allows("x.llm.example.org")
    assert not allowing.allows("llm.example.org.evil")


labels = st.sampled_from(["localhost", "127.0.0.1", "local", "[::1]", "gpu.example.org", "a", "1"])


@given(st.lists(labels, min_size=1, max_size=4), st.sampled_from(["com", "de", "example"]))
def test_no_name_under_a_public_domain_is_allowed(before: list[str], domain: str) -> None:
    for host in (".".join([*before, domain]), ".".join([*before, domain]) + ":8061"):
        assert not hosts(is_loopback=True).allows(host)
        assert not hosts(is_loopback=False).allows(host)


@pytest.mark.parametrize(
    "value",
    ["http://a.example", "a.example:8061", "a/b", "", "*", "a b", "[::1]", "a..b", "é.example"],
)
def test_what_is_no_name_cannot_be_allowed(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--allowed-host .* is not the name of a host"):
        allowed_names([value])


async def test_this_machine_has_a_name() -> None:
    names = await own_names()
    assert names
    assert all(name == name.lower() and name for name in names)


async def test_a_foreign_host_is_refused_and_told_which_flag_helps() -> None:
    app = hosts(is_loopback=True)(inner)
    for kind in ("http", "websocket"):
        with structlog.testing.capture_logs() as records:
            status, text = await ask(app, scope_of((b"host", b"llm.example:8061"), kind=kind))
        assert status == 403
        assert "Host 'llm.example:8061'" in text
        assert "--allowed-host llm.example " in text
        assert [record["reason"] for record in records] == [text]


async def test_what_is_no_name_is_told_of_no_flag_and_shortened() -> None:
    app = hosts(is_loopback=True)(inner)
    status, text = await ask(app, scope_of((b"host", b"x@" * 7000)))
    assert status == 403
    assert "--allowed-host" not in text
    assert len(text) < 300


async def test_the_refusal_is_in_the_words_of_whom_was_asked() -> None:
    async def refuse(exchange: Exchange, problem: HttpProblem) -> None:
        await send_text(exchange.send, problem.status, f"envelope of {problem.status}")

    foreign = scope_of(
        (b"host", b"evil.example"), (b"origin", b"http://evil.example"), method="PUT"
    )
    hosted = hosts(is_loopback=True)(inner, refuse=refuse)
    assert await ask(hosted, foreign) == (403, "envelope of 403")
    foreign["headers"][0] = HOST
    originated = Origins([], flag=FLAG)(inner, refuse=refuse)
    assert await ask(originated, foreign) == (403, "envelope of 403")


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_requests_without_a_host_and_those_that_need_a_key_are_not_judged(kind: str) -> None:
    good = 200 if kind == "http" else 101
    app = hosts(is_loopback=True)(inner)
    assert (await ask(app, scope_of(kind=kind)))[0] == good
    assert (await ask(app, scope_of((b"host", b""), kind=kind)))[0] == good
    guarded = hosts(is_loopback=True, requires_key=True)(inner)
    assert (await ask(guarded, scope_of((b"host", b"evil.example"), kind=kind)))[0] == good


# ------------------------------------------------------------------------------------- origins


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        (b"http://127.0.0.1:8061", b"127.0.0.1:8061", True),
        (b"http://Example.org", b"example.org", True),
        (b"http://example.org", b"example.org:80", True),
        (b"https://example.org", b"example.org:443", True),
        (b"http://[::1]:8061", b"[::1]:8061", True),
        (b"http://127.0.0.1:8062", b"127.0.0.1:8061", False),
        (b"http://evil.example", b"127.0.0.1:8061", False),
        (b"http://127.0.0.1.evil.example:8061", b"127.0.0.1:8061", False),
        (b"http://127.0.0.1:8061@evil.example", b"127.0.0.1:8061", False),
        (b"file://", b"127.0.0.1:8061", False),
        (b"null", b"127.0.0.1:8061", False),
        (b"", b"127.0.0.1:8061", False),
        (b"http://a:99999", b"a:99999", False),
        (b"http://\xff", b"\xff", False),
    ],
)
def test_an_origin_is_the_service_itself_if_host_and_port_are(
    origin: bytes, host: bytes, *, same: bool
) -> None:
    assert is_same_host(origin, host) is same


SITE = b"sec-fetch-site"
OURS, LISTED, EVIL = b"http://127.0.0.1:8061", b"http://panel.example", b"http://evil.example"


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ([], True),
        ([(b"origin", LISTED)], True),
        ([(b"origin", LISTED), (SITE, b"cross-site")], True),
        ([(b"origin", OURS)], True),
        ([(b"origin", OURS), (SITE, b"same-origin")], True),
        ([(b"origin", b"https://behind.proxy"), (SITE, b"same-origin")], True),
        ([(SITE, b"none")], True),
        ([(b"origin", EVIL)], False),
        ([(b"origin", EVIL), (SITE, b"cross-site")], False),
        ([(b"origin", EVIL), (SITE, b"same-site")], False),
        ([(SITE, b"cross-site")], False),
        ([(b"origin", OURS), (SITE, b"cross-site")], False),
        ([(b"origin", b"null")], False),
        ([(b"origin", b"")], False),
        ([(b"origin", b"file://")], False),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "WEBSOCKET", "GET", "HEAD"])
async def test_pages_of_other_origins_change_nothing_and_open_no_socket(
    headers: Headers, method: str, *, may: bool
) -> None:
    app = Origins([LISTED.decode()], flag=FLAG)(inner)
    kind = "websocket" if method == "WEBSOCKET" else "http"
    status, text = await ask(app, scope_of(HOST, *headers, method=method, kind=kind))
    if may or method in {"GET", "HEAD"}:  # looking is for CORS
        assert status == (101 if kind == "websocket" else 200)
    else:
        assert status == 403
        assert FLAG in text


async def test_a_star_is_every_origin() -> None:
    app = Origins(["*"], flag=FLAG)(inner)
    for headers in ([(b"origin", EVIL)], [(SITE, b"cross-site")]):
        assert (await ask(app, scope_of(HOST, *headers, kind="websocket")))[0] == 101
        assert (await ask(app, scope_of(HOST, *headers, method="POST")))[0] == 200
