"""Bodies, responses, cross-origin answers and routing, without a socket in sight."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable

import pytest
import trio
import trio.testing
from http_world import inflated
from hypothesis import given
from hypothesis import strategies as st

from exchanges import exchange_for
from paddler_trio.balancer.front.cors import Cors, CorsRules
from paddler_trio.net.server.app_inbox import MAX_MESSAGES, AppInbox
from paddler_trio.net.server.asgi import (
    BodyTooLargeError,
    ClientGoneError,
    HttpProblem,
    Message,
    Receive,
    Scope,
    is_json_media_type,
    read_body,
    send_empty,
    send_json,
    send_text,
)
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.json_body import json_body
from paddler_trio.net.server.router import PathPattern, Router, RouteTable
from paddler_trio.net.server.streaming import (
    cut_on_disconnect,
    watch_disconnect,
    while_client_stays,
    while_connected,
    whole_body,
)

JSON = (b"content-type", b"application/json")
DISCONNECT: Message = {"type": "http.disconnect"}


def body_of(*pieces: bytes, end: bool = True) -> Receive:
    """A client that sends ``pieces`` and then, unless ``end``, leaves."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    messages.append({"type": "http.request", "body": b""} if end else DISCONNECT)
    waiting = iter(messages)

    async def receive() -> Message:
        await trio.lowlevel.checkpoint()
        for message in waiting:
            return message
        return await trio.sleep_forever()

    return receive


def scope_of(
    method: str = "POST", path: str = "/", *headers: tuple[bytes, bytes], type_: str = "http"
) -> Scope:
    return {"type": type_, "method": method, "path": path, "headers": list(headers)}


class Answer:
    """Collects what an application sends."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        self.messages.append(message)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.messages[0]["headers"] if key.lower() == name]


# ----------------------------------------------------------------------------------- bodies


async def test_what_fails_while_the_client_is_there_fails_as_it_did() -> None:
    async def work() -> str:
        raise HttpProblem(400, "no such token")

    with pytest.raises(HttpProblem, match="no such token"):
        await while_connected(exchange_for({}, body_of()), work)


async def test_what_nobody_waits_for_any_more_ends() -> None:
    with pytest.raises(ClientGoneError):
        await while_connected(exchange_for({}, body_of(end=False)), trio.sleep_forever)


async def test_a_body_is_joined_from_its_pieces() -> None:
    assert await read_body(body_of(b"ab", b"", b"c"), limit_bytes=3, deadline_s=1) == b"abc"


async def test_a_body_over_the_limit_is_refused_before_it_is_whole() -> None:
    with pytest.raises(HttpProblem, match=r"413 .*limit of 3 bytes") as refused:
        await read_body(body_of(b"ab", b"cd"), limit_bytes=3, deadline_s=1)
    assert refused.value.status == 413


async def test_a_body_that_never_ends_is_refused_at_its_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def trickle() -> Message:
        await trio.sleep(0.5)
        return {"type": "http.request", "body": b"x", "more_body": True}

    started_s = trio.current_time()
    with pytest.raises(HttpProblem) as refused:
        await read_body(trickle, limit_bytes=1000, deadline_s=3.2)
    assert refused.value.status == 408
    assert trio.current_time() - started_s == pytest.approx(3.2)


async def test_a_client_that_leaves_inside_its_body_gets_no_answer() -> None:
    with pytest.raises(ClientGoneError):
        await read_body(body_of(b"ab", end=False), limit_bytes=10, deadline_s=1)


@pytest.mark.parametrize(
    ("media_type", "is_json"),
    [
        (b"application/json", True),
        (b"Application/JSON; charset=utf-8", True),
        (b"application/problem+json", True),
        (b"text/json", True),
        (b"text/plain", False),
        (b"application/jsonl", False),
        (b"json", False),
        (b"/json", False),
        (b"", False),
        (None, False),
    ],
)
def test_json_media_types_are_those_whose_subtype_is_json(
    media_type: bytes | None, is_json: bool
) -> None:
    assert is_json_media_type(media_type) is is_json


def as_it_is(value: object) -> object:
    return value


async def problem_with(receive: Receive, *headers: tuple[bytes, bytes]) -> tuple[int, str]:
    exchange = exchange_for(scope_of("POST", "/", *headers), receive)
    with pytest.raises(HttpProblem) as refused:
        await json_body(exchange, as_it_is, limit_bytes=64, deadline_s=1)
    return refused.value.status, refused.value.text


async def test_json_bodies_are_refused_with_the_texts_peers_know() -> None:
    assert await problem_with(body_of(b"{}")) == (400, "Content type error")
    status, text = await problem_with(body_of(b"{"), JSON)
    assert status == 400
    assert text.startswith("Json deserialize error: ")
    for broken in (b"", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 60, b"NaN", b'"\\ud800"'):
        status, text = await problem_with(body_of(broken), JSON)
        assert (status, text.partition(":")[0]) == (400, "Json deserialize error")


async def test_a_json_body_announced_too_long_is_refused_before_it_is_read() -> None:
    async def unread() -> Message:
        raise AssertionError("read a body that was already too long")

    status, _ = await problem_with(unread, JSON, (b"content-length", b"65"))
    assert status == 413


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        (b"gzip", gzip.compress),
        (b"deflate", zlib.compress),
        (b"deflate", lambda body: zlib.compress(body)[2:-4]),
        (b"identity", bytes),
    ],
)
async def test_compressed_json_is_read(encoding: bytes, encode: type[bytes]) -> None:
    receive = body_of(encode(b'{"a": [1, "b"]}'))
    scope = scope_of("POST", "/", JSON, (b"content-encoding", encoding))
    assert await json_body(exchange_for(scope, receive), as_it_is) == {"a": [1, "b"]}


async def test_a_compressed_body_is_bounded_after_decompression() -> None:
    bomb = gzip.compress(b" " * 10_000_000, mtime=0)
    with pytest.raises(HttpProblem) as refused:
        inflated(bomb, b"gzip", limit_bytes=1_000_000)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"not gzip", b"gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-1], b"gzip", 400),
        (gzip.compress(b"{}", mtime=0) + b"more", b"gzip", 400),
        (b"", b"deflate", 400),
        (b"{}", b"br", 415),
        (b"{}", b"\xff", 415),
    ],
)
def test_damaged_and_unknown_encodings_are_refused(
    body: bytes, encoding: bytes, status: int
) -> None:
    with pytest.raises(HttpProblem) as refused:
        inflated(body, encoding, limit_bytes=100)
    assert refused.value.status == status


@given(body=st.binary(max_size=300), limit_bytes=st.integers(0, 300))
def test_decompression_returns_the_body_or_says_it_is_too_long(
    body: bytes, limit_bytes: int
) -> None:
    for encoding, packed in (
        (b"gzip", gzip.compress(body, mtime=0)),
        (b"deflate", zlib.compress(body)),
    ):
        if len(body) <= limit_bytes:
            assert inflated(packed, encoding, limit_bytes=limit_bytes) == body
        else:
            with pytest.raises(HttpProblem, match="413"):
                inflated(packed, encoding, limit_bytes=limit_bytes)


async def test_the_watcher_skips_what_is_left_of_the_body() -> None:
    gone = trio.Event()
    await watch_disconnect(body_of(b"left over", end=False), gone.set)
    assert gone.is_set()


# ------------------------------------------------------------------------------------ inbox


async def test_an_inbox_gives_everything_and_then_its_end_for_ever() -> None:
    inbox = AppInbox(max_bytes=100)
    await inbox.put({"type": "websocket.receive", "text": "a"})
    await inbox.put({"type": "websocket.disconnect", "code": 1000})
    inbox.end({"type": "websocket.disconnect", "code": 1006})
    await inbox.put({"type": "websocket.receive", "text": "too late"})
    seen = [await inbox.receive() for _ in range(3)]
    assert [message.get("text", message.get("code")) for message in seen] == ["a", 1000, 1000]


@pytest.mark.parametrize(
    ("max_bytes", "size_bytes", "held"), [(10_000, 1, MAX_MESSAGES), (100, 40, 2), (100, 1000, 1)]
)
async def test_a_full_inbox_makes_its_writer_wait(
    max_bytes: int, size_bytes: int, held: int
) -> None:
    inbox = AppInbox(max_bytes=max_bytes)
    message: Message = {"type": "http.request", "body": b"x" * size_bytes}
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await inbox.put(message)
            written += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert written == held
        await inbox.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert written == held + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["end", "discard"])
async def test_a_writer_waiting_for_room_is_released_at_the_end(how: str) -> None:
    inbox = AppInbox(max_bytes=1)
    message: Message = {"type": "http.request", "body": b"xx"}
    async with trio.open_nursery() as nursery:
        await inbox.put(message)
        nursery.start_soon(inbox.put, message)
        await trio.testing.wait_all_tasks_blocked()
        if how == "end":
            inbox.end(DISCONNECT)
        else:
            inbox.discard()


async def test_a_reader_cancelled_while_waiting_loses_nothing() -> None:
    inbox = AppInbox(max_bytes=100)
    with trio.move_on_after(0):
        await inbox.receive()
    await inbox.put({"type": "http.request", "body": b"kept"})
    assert (await inbox.receive())["body"] == b"kept"


async def test_whoever_asks_again_and_again_after_the_end_stops_nobody() -> None:
    inbox = AppInbox(max_bytes=100)
    inbox.end(DISCONNECT)

    async def ask() -> None:
        while True:
            await inbox.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_the_end_of_a_body_that_waits_is_no_message_of_its_own() -> None:
    inbox = AppInbox(max_bytes=100)
    await inbox.put({"type": "http.request", "body": b"all of it", "more_body": True})
    await inbox.put({"type": "http.request", "body": b"", "more_body": False})
    message = await inbox.receive()
    assert (message["body"], message["more_body"]) == (b"all of it", False)


async def test_the_end_of_a_body_that_was_received_already_comes_alone() -> None:
    inbox = AppInbox(max_bytes=100)
    await inbox.put({"type": "http.request", "body": b"first", "more_body": True})
    assert (await inbox.receive())["more_body"]
    await inbox.put({"type": "http.request", "body": b"", "more_body": False})
    assert not (await inbox.receive())["more_body"]


async def nothing_more() -> Message:
    raise AssertionError("a body that is there was received once more")


async def test_a_body_that_is_there_is_taken_at_once_and_within_its_limit() -> None:
    for limit_bytes in (9, 8):
        inbox = AppInbox(max_bytes=100)
        await inbox.put({"type": "http.request", "body": b"all of it", "more_body": True})
        await inbox.put({"type": "http.request", "body": b"", "more_body": False})
        reading = whole_body(
            exchange_for({}, nothing_more, watch=inbox),
            limit_bytes=limit_bytes,
            deadline_s=1,
        )
        if limit_bytes == 9:
            assert await reading == b"all of it"
        else:
            with pytest.raises(BodyTooLargeError, match="limit of 8 bytes"):
                await reading


async def test_a_body_that_is_not_all_there_is_received() -> None:
    inbox = AppInbox(max_bytes=100)
    await inbox.put({"type": "http.request", "body": b"all ", "more_body": True})
    await inbox.put({"type": "http.request", "body": b"of it", "more_body": False})
    exchange = exchange_for({}, inbox.receive, watch=inbox)
    assert await whole_body(exchange, limit_bytes=9, deadline_s=1) == b"all of it"


@pytest.mark.parametrize("tells", [True, False])
async def test_a_block_runs_until_its_client_leaves(tells: bool) -> None:
    """Whether or not the server tells it in the same step."""
    inbox = AppInbox(max_bytes=100)
    exchange = exchange_for({}, inbox.receive, watch=inbox if tells else None)
    ended = []
    async with while_client_stays(exchange):
        ended.append("without a disconnect")
    async with while_client_stays(exchange):
        inbox.end(DISCONNECT)
        await trio.sleep_forever()
    assert ended == ["without a disconnect"]


async def test_a_client_that_leaves_cuts_the_block_in_the_same_step() -> None:
    inbox = AppInbox(max_bytes=100)
    exchange = exchange_for({}, watch=inbox)
    for _ in ("it leaves in the block", "it had left before"):
        went_on = False
        with cut_on_disconnect(exchange):
            inbox.end(DISCONNECT)
            await trio.lowlevel.checkpoint()
            went_on = True
        assert not went_on


async def test_the_end_of_a_request_reaches_nobody_behind_the_block() -> None:
    inbox = AppInbox(max_bytes=100)
    with cut_on_disconnect(exchange_for({}, watch=inbox)):
        pass
    inbox.end(DISCONNECT)
    await trio.lowlevel.checkpoint()


# --------------------------------------------------------------------------------- responses


async def test_responses_carry_their_length() -> None:
    answer = Answer()
    await send_text(answer.send, 404, "gone ä")
    assert (answer.status, answer.body) == (404, "gone ä".encode())
    assert answer.all(b"content-length") == [b"7"]
    assert answer.all(b"content-type") == [b"text/plain; charset=utf-8"]

    answer = Answer()
    await send_json(answer.send, 200, {"a": [1, None]}, headers=[(b"x", b"y")])
    assert (answer.body, answer.all(b"x")) == (b'{"a":[1,null]}', [b"y"])

    answer = Answer()
    await send_json(answer.send, 200, b"[]")
    assert answer.body == b"[]"

    answer = Answer()
    await send_empty(answer.send, 204)
    assert answer.all(b"content-length") == []


# -------------------------------------------------------------------------------------- CORS

ORIGIN = (b"origin", b"http://127.0.0.1:8085")
ALLOW_ORIGIN = b"access-control-allow-origin"


async def hello(exchange: Exchange) -> None:
    if exchange.method == "OPTIONS":
        await send_empty(exchange.send, 404)
    else:
        await send_text(exchange.send, 200, "hello", headers=[(b"x", b"y")])


async def ask_across(method: str, *headers: tuple[bytes, bytes]) -> Answer:
    answer = Answer()
    app = Cors(["http://127.0.0.1:8085", "https://example.org"])(hello)
    await app(exchange_for(scope_of(method, "/", *headers), body_of(), answer.send))
    assert answer.all(b"vary") == [
        b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
    ]
    return answer


async def test_only_listed_origins_get_the_allow_header_and_nobody_is_blocked() -> None:
    allowed = await ask_across("GET", ORIGIN)
    assert (allowed.status, allowed.all(ALLOW_ORIGIN)) == (200, [ORIGIN[1]])
    assert allowed.all(b"x") == [b"y"]
    strangers: Iterable[bytes] = (b"http://127.0.0.1:8086", b"http://127.0.0.1:8085/", b"null")
    for stranger in (*strangers, b"HTTPS://example.org", b"\xff"):
        answer = await ask_across("GET", (b"origin", stranger))
        assert (answer.status, answer.all(ALLOW_ORIGIN)) == (200, [])
    plain = await ask_across("GET")
    assert (plain.status, plain.body, plain.all(ALLOW_ORIGIN)) == (200, b"hello", [])


async def test_a_preflight_from_a_listed_origin_is_answered_in_full() -> None:
    answer = await ask_across(
        "OPTIONS",
        ORIGIN,
        (b"access-control-request-method", b"PUT"),
        (b"access-control-request-headers", b"Content-Type, authorization"),
    )
    assert (answer.status, answer.body) == (200, b"")
    assert answer.all(ALLOW_ORIGIN) == [ORIGIN[1]]
    assert answer.all(b"access-control-allow-methods") == [b"DELETE, GET, POST, PUT, OPTIONS"]
    assert answer.all(b"access-control-allow-headers") == [b"accept, authorization, content-type"]
    assert answer.all(b"access-control-max-age") == [b"3600"]
    assert answer.all(b"access-control-allow-credentials") == []


@pytest.mark.parametrize(
    "headers",
    [
        [(b"access-control-request-method", b"PUT")],
        [(b"origin", b"http://evil"), (b"access-control-request-method", b"PUT")],
        [ORIGIN, (b"access-control-request-method", b"PATCH")],
        [
            ORIGIN,
            (b"access-control-request-method", b"PUT"),
            (b"access-control-request-headers", b"x-other"),
        ],
    ],
)
async def test_other_preflights_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    answer = await ask_across("OPTIONS", *headers)
    assert answer.status == 400
    assert answer.body


async def test_options_without_a_requested_method_is_an_ordinary_unrouted_request() -> None:
    assert (await ask_across("OPTIONS", ORIGIN)).status == 404


LENIENT = CorsRules(
    methods=(b"GET", b"POST"),
    headers=None,
    exposed=(b"x-request-id", b"retry-after"),
    has_wildcard=True,
    has_credentials=True,
)
PREFLIGHT = (
    (b"access-control-request-method", b"POST"),
    (b"access-control-request-headers", b"Authorization, x-own"),
)


async def ask_leniently(origins: list[str], method: str, *headers: tuple[bytes, bytes]) -> Answer:
    answer = Answer()
    exchange = exchange_for(scope_of(method, "/", *headers), body_of(), answer.send)
    await Cors(origins, LENIENT)(hello)(exchange)
    return answer


async def test_rules_may_allow_every_header_and_expose_some() -> None:
    preflight = await ask_leniently(["http://127.0.0.1:8085"], "OPTIONS", ORIGIN, *PREFLIGHT)
    assert preflight.status == 200
    assert preflight.all(b"access-control-allow-headers") == [b"Authorization, x-own"]
    assert preflight.all(b"access-control-allow-methods") == [b"GET, POST"]
    read = await ask_leniently(["http://127.0.0.1:8085"], "GET", ORIGIN)
    assert read.all(b"access-control-expose-headers") == [b"x-request-id, retry-after"]
    assert read.all(b"access-control-allow-credentials") == [b"true"]


async def test_a_wildcard_allows_every_origin_but_credentials_only_to_a_listed_one() -> None:
    answer = await ask_leniently(["*"], "GET", ORIGIN)
    assert answer.all(ALLOW_ORIGIN) == [ORIGIN[1]]
    assert answer.all(b"access-control-allow-credentials") == []
    strict = Answer()
    await Cors(["*"])(hello)(exchange_for(scope_of("GET", "/", ORIGIN), body_of(), strict.send))
    assert strict.all(ALLOW_ORIGIN) == []


async def test_a_lenient_preflight_that_is_not_granted_is_200_without_permissions() -> None:
    for origin in ((b"origin", b"http://evil"), (b"x", b"no origin at all")):
        answer = await ask_leniently(["http://127.0.0.1:8085"], "OPTIONS", origin, *PREFLIGHT)
        assert (answer.status, answer.body, answer.all(ALLOW_ORIGIN)) == (200, b"", [])
        assert answer.all(b"access-control-allow-methods") == []


# ------------------------------------------------------------------------------------ routes


@given(
    value=st.text(st.characters(exclude_characters="/"), min_size=1),
    suffix=st.sampled_from(["", "/model_metadata"]),
)
def test_a_pattern_gives_back_the_segment_it_was_made_from(value: str, suffix: str) -> None:
    pattern = PathPattern.parse("/api/v1/agent/{agent_id}" + suffix)
    assert pattern.match(f"/api/v1/agent/{value}{suffix}") == {"agent_id": value}
    assert pattern.match(f"/api/v1/agent/{value}/x{suffix}") is None
    assert pattern.match(f"/api/v1/agent/{value}{suffix}/") is None
    assert pattern.match(f"/api/v1/agent/{suffix}") is None


@pytest.mark.parametrize(
    "pattern", ["", "health", "/a{b}", "/{b}c", "/{a}/{b}", "/{a b}", "/{a", "/a}", "/{}"]
)
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="needs an absolute path"):
        PathPattern.parse(pattern)


async def echo_params(exchange: Exchange, params: Params) -> None:
    await send_json(exchange.send, 200, dict(params))


async def refuse(exchange: Exchange, params: Params) -> None:
    async with trio.open_nursery():
        raise HttpProblem(503, "Buffer full", [(b"retry-after", b"1")])


async def fail(exchange: Exchange, params: Params) -> None:
    raise KeyError("bug")


async def fail_late(exchange: Exchange, params: Params) -> None:
    await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
    raise KeyError("bug")


async def leave(exchange: Exchange, params: Params) -> None:
    async with trio.open_nursery():
        raise ClientGoneError("left")


async def accept_and_fail(exchange: Exchange, params: Params) -> None:
    await exchange.send({"type": "websocket.accept"})
    raise KeyError("bug")


def routes() -> Router:
    table = Router()
    table.http("GET", "/health", echo_params)
    table.http("GET", "/agent/{agent_id}/metadata", echo_params)
    table.http("GET", "/refuse", refuse)
    table.http("GET", "/fail", fail)
    table.http("GET", "/fail_late", fail_late)
    table.http("GET", "/leave", leave)
    table.websocket("/socket/{agent_id}", accept_and_fail)
    table.websocket("/refused_socket", refuse)
    return table


async def ask(method: str, path: str, type_: str = "http") -> Answer:
    answer = Answer()
    await routes()(exchange_for(scope_of(method, path, type_=type_), body_of(), answer.send))
    return answer


async def test_routes_match_exactly() -> None:
    assert (await ask("GET", "/health")).status == 200
    assert json.loads((await ask("GET", "/agent/a b/metadata")).body) == {"agent_id": "a b"}
    for method, path in [
        ("GET", "/health/"),
        ("GET", "//health"),
        ("HEAD", "/health"),
        ("POST", "/health"),
        ("GET", "/agent//metadata"),
        ("GET", "/agent/a/b/metadata"),
        ("POST", "/socket/a"),
        ("WEBSOCKET", "/socket"),
        ("WEBSOCKET", "/socket/a"),
    ]:
        answer = await ask(method, path)
        assert (answer.status, answer.body) == (404, b""), (method, path)
        assert answer.all(b"content-length") == [b"0"]


async def test_the_rest_of_a_path_may_hold_slashes_and_exact_paths_go_first() -> None:
    table: RouteTable[str] = RouteTable()
    table.add("GET", "/models/{tail...}", "one model")
    table.add("POST", "/models/count", "count")
    found = table.find("/models/org/name")
    assert (found.handlers, found.params) == ({"GET": "one model"}, {"tail": "org/name"})
    assert table.find("/models/count").handlers == {"POST": "count"}
    assert table.find("/models/").handlers == table.find("/models").handlers == {}


def test_a_route_has_one_handler() -> None:
    table = routes()
    for pattern in ("/health", "/agent/{agent_id}/metadata"):
        with pytest.raises(ValueError, match="two handlers"):
            table.http("GET", pattern, echo_params)


async def test_what_is_not_routed_goes_to_the_other_application() -> None:
    async def other(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, "other")

    router = Router(otherwise=other)
    router.http("GET", "/health", echo_params)
    for method, path, status in [
        ("GET", "/x", 200),
        ("GET", "/health", 200),
        ("PUT", "/health", 200),
    ]:
        answer = Answer()
        await router(exchange_for(scope_of(method, path), body_of(), answer.send))
        is_others = (method, path) != ("GET", "/health")
        assert (answer.status, answer.body == b"other") == (status, is_others)


async def test_a_plain_get_on_a_websocket_path_is_refused() -> None:
    assert (await ask("GET", "/socket/a")).status == 400


async def test_a_refusal_is_answered_with_its_text_and_headers() -> None:
    answer = await ask("GET", "/refuse")
    assert (answer.status, answer.body) == (503, b"Buffer full")
    assert answer.all(b"retry-after") == [b"1"]


async def test_a_bug_is_answered_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = await ask("GET", "/fail")
    assert (answer.status, answer.body) == (500, b"Internal server error")
    assert "GET /fail failed" in caplog.text
    assert "KeyError" in caplog.text


async def test_a_bug_after_the_response_began_cuts_it() -> None:
    assert len((await ask("GET", "/fail_late")).messages) == 1


async def test_a_client_that_left_is_not_answered_nor_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert (await ask("GET", "/leave")).messages == []
    assert "ERROR" not in caplog.text


async def test_websockets_are_routed_refused_and_closed_on_a_bug() -> None:
    unknown = await ask("", "/nothing", type_="websocket")
    assert [message["type"] for message in unknown.messages] == ["websocket.close"]

    broken = await ask("", "/socket/a", type_="websocket")
    assert broken.messages[1:] == [{"type": "websocket.close", "code": 1011}]

    refused = await ask("", "/refused_socket", type_="websocket")
    assert (refused.status, refused.body) == (503, b"Buffer full")


async def test_a_body_that_is_there_whole_needs_no_waiting() -> None:
    inbox = AppInbox(max_bytes=10)
    assert inbox.whole_body() is None, "nothing came"
    await inbox.put({"type": "http.request", "body": b"ab", "more_body": True})
    assert inbox.whole_body() is None, "not its end"
    await inbox.put({"type": "http.request", "body": b"", "more_body": False})
    assert inbox.whole_body() == b"ab"
    assert inbox.whole_body() is None, "it was received"
    inbox.end({"type": "http.disconnect"})
    assert (await inbox.receive())["type"] == "http.disconnect"


async def test_a_body_in_pieces_is_to_be_received() -> None:
    inbox = AppInbox(max_bytes=10)
    for piece in (b"ab", b"cd"):
        await inbox.put({"type": "http.request", "body": piece, "more_body": piece == b"ab"})
    assert inbox.whole_body() is None
    assert await read_body(inbox.receive, limit_bytes=10, deadline_s=1) == b"abcd"
