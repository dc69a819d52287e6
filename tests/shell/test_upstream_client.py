"""The client of upstream servers against scripted ends of connections, in virtual time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing

import h11
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock
from upstream_world import ADDRESS, TIMEOUTS, Handler, answering, body_of, upstream

from paddler_trio.net.client.response_body import BodyPart, FailureKind, UpstreamError
from paddler_trio.net.client.upstream_client import MAX_KEPT, UpstreamClient
from paddler_trio.net.client.upstream_response import UpstreamResponse
from upstream_double import read_request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE_CHUNKS = CHUNKED + b"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: 1\r\n\r\n"
CLOSED, TIMEOUT, PROTOCOL = FailureKind.CLOSED, FailureKind.TIMEOUT, FailureKind.PROTOCOL


async def silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def collect(response: UpstreamResponse, into: list[bytes]) -> None:
    async for part in response.body():
        into.append(part.data)


def saying(data: bytes, *, closes: bool = True) -> Handler:
    """Whatever is asked."""
    return answering(data, closes=closes)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        (OK, True),
        (WHOLE_CHUNKS, True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", False),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
    ],
)
async def test_an_answer_is_read_by_its_framing(
    autojump_clock: MockClock, answer: bytes, stays: bool, piece_bytes: int
) -> None:
    handler = answering(answer, piece_bytes=piece_bytes)
    async with upstream(handler) as world:
        assert await body_of(world.client) == b"hello"
        assert world.client.num_kept == stays
        assert world.client.num_open == stays


async def test_a_request_arrives_as_it_was_given(autojump_clock: MockClock) -> None:
    seen = []

    async def handle(stream: trio.abc.Stream) -> None:
        while (read := await read_request(stream)) is not None:
            seen.append(read)
            await stream.send_all(b"HTTP/1.1 404 No\r\nX-Odd: a  b\r\nContent-Length: 0\r\n\r\n")

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"bc"):
            yield piece

    async with upstream(handle, bearer=b"key") as world:
        request = world.client.request
        async with request(b"POST", b"/v1/x", [(b"X-A", b"1")], b"abc") as response:
            assert (response.status, response.reason) == (404, b"No")
            assert response.headers[0] == (b"X-Odd", b"a  b")
            assert [part async for part in response.body()] == []
        async with request(b"POST", b"/v1/x", [(b"Content-Length", b"3")], pieces()):
            pass
        async with request(b"POST", b"/v1/x", [], pieces()):
            pass
        assert world.num_dialled == 1
    assert [body for _, body in seen] == [b"abc"] * 3
    headers = [list(request.headers) for request, _ in seen]
    assert all((b"authorization", b"Bearer key") in each for each in headers)
    assert all((b"host", b"127.0.0.1:8080") in each for each in headers)
    assert (b"transfer-encoding", b"chunked") in headers[2]


async def test_parts_come_as_soon_as_they_were_sent_and_keep_their_chunks(
    autojump_clock: MockClock,
) -> None:
    times = []

    async def handle(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(CHUNKED)
        for data in (b"1\r\na\r\n", b"1\r\nb\r\n2\r\ncd\r\n", b"3\r\ne", b"fg\r\n", b"0\r\n\r\n"):
            await trio.sleep(1)
            await stream.send_all(data)

    async with upstream(handle) as world, world.client.request(b"GET", b"/", []) as response:
        start, parts = trio.current_time(), []
        async for part in response.body():
            parts.append(part)
            times.append(round(trio.current_time() - start))
    assert times == [1, 2, 2, 3, 4]
    assert parts == [
        BodyPart(b"a", True, True),
        BodyPart(b"b", True, True),
        BodyPart(b"cd", True, True),
        BodyPart(b"e", True, False),
        BodyPart(b"fg", False, True),
    ]


async def test_few_of_many_small_chunks_are_taken_apart_with_the_head(
    autojump_clock: MockClock,
) -> None:
    """On a new connection nobody knows yet that they are small, and there may be many of those."""
    handler = saying(CHUNKED + b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n")
    async with upstream(handler) as world, world.client.request(b"GET", b"/", []) as response:
        assert 0 < len(response.parts_here()) < 700


async def test_trailers_are_known_at_the_end(autojump_clock: MockClock) -> None:
    async with (
        upstream(answering(WHOLE_CHUNKS)) as world,
        world.client.request(b"GET", b"/", []) as response,
    ):
        assert [part.data async for part in response.body()] == [b"he", b"llo"]
        assert response.trailers == [(b"X-T", b"1")]


async def test_a_head_request_has_no_body_and_keeps_its_connection(
    autojump_clock: MockClock,
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    async with upstream(answering(answer, OK)) as world:
        async with world.client.request(b"HEAD", b"/", []) as response:
            assert [part async for part in response.body()] == []
        assert await body_of(world.client) == b"hello"
        assert world.num_dialled == 1


@pytest.mark.parametrize(
    ("data", "kind", "nothing_came"),
    [
        (b"", CLOSED, True),
        (b"HTTP/1.1 200 OK\r\nConte", CLOSED, False),
        (b"SSH-2.0-OpenSSH\r\n", PROTOCOL, False),
        (b"<html>", PROTOCOL, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", PROTOCOL, False),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 66_000, PROTOCOL, False),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", PROTOCOL, False),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11 + OK, PROTOCOL, False),
    ],
)
async def test_no_head_is_an_error_that_says_whether_anything_came(
    autojump_clock: MockClock, data: bytes, kind: FailureKind, nothing_came: bool
) -> None:
    async with upstream(answering(data)) as world:
        with pytest.raises(UpstreamError, match=r"127\.0\.0\.1:8080") as caught:
            await body_of(world.client)
        assert caught.value.kind is kind
        assert caught.value.before_first_byte == nothing_came
        assert "\n" not in str(caught.value)
        assert world.client.num_open == 0


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", CLOSED, "1 of 6 bytes before"),
        (CHUNKED + b"5\r\nhello\r\n", CLOSED, "in the middle of a chunked answer"),
        (CHUNKED + b"5\r\nhello\r\nzzz\r\n", PROTOCOL, "malformed chunk size"),
        (CHUNKED + b"5\r\nhello!\r\n", PROTOCOL, "longer than it says"),
    ],
)
async def test_a_body_that_breaks_off_is_an_error_after_what_came(
    autojump_clock: MockClock, data: bytes, kind: FailureKind, text: str
) -> None:
    got = []
    async with upstream(answering(data)) as world:
        with pytest.raises(UpstreamError, match=text) as caught:
            async with world.client.request(b"GET", b"/", []) as response:
                await collect(response, got)
        assert got == [b"hello"]
        assert caught.value.kind is kind
        assert not caught.value.before_first_byte
        assert world.client.num_open == 0


async def test_a_body_that_broke_off_stays_broken(autojump_clock: MockClock) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello"
    async with (
        upstream(answering(data)) as world,
        world.client.request(b"GET", b"/", []) as response,
    ):
        for _ in range(2):
            with pytest.raises(UpstreamError):
                assert [part async for part in response.body()]


async def test_more_than_the_body_is_ignored_and_ends_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with upstream(answering(OK + b"HTTP/1.1 200 OK\r\n\r\nevil"), answering(OK)) as world:
        assert await body_of(world.client) == b"hello"
        assert world.client.num_open == 0
        assert await body_of(world.client) == b"hello"
        assert world.num_dialled == 2


@pytest.mark.parametrize(
    ("handler", "took_s", "nothing_came", "text"),
    [
        (silent, 60, True, "did not answer within 60 s"),
        (saying(b"HTTP/1.1 200", closes=False), 60, False, "did not answer within 60 s"),
        (saying(CHUNKED, closes=False), 30, False, "sent nothing for 30 s"),
    ],
)
async def test_silence_has_a_limit(
    autojump_clock: MockClock, handler: Handler, took_s: float, nothing_came: bool, text: str
) -> None:
    start = trio.current_time()
    async with upstream(handler) as world:
        with pytest.raises(UpstreamError, match=text) as caught:
            await body_of(world.client)
        assert caught.value.kind is TIMEOUT
        assert caught.value.before_first_byte == nothing_came
        assert trio.current_time() - start == pytest.approx(took_s)


async def test_a_head_that_drips_is_given_up_at_the_same_time(autojump_clock: MockClock) -> None:
    async def drip(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        for byte in OK:
            await stream.send_all(bytes([byte]))
            await trio.sleep(20)

    start = trio.current_time()
    async with upstream(drip) as world:
        with pytest.raises(UpstreamError, match="did not answer within"):
            await body_of(world.client)
    assert trio.current_time() - start == pytest.approx(60)


async def test_leaving_the_block_early_ends_the_connection(autojump_clock: MockClock) -> None:
    gone = trio.Event()

    async def endless(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await stream.send_all(CHUNKED)
        try:
            while True:
                await stream.send_all(b"1\r\na\r\n")
        finally:
            gone.set()

    async with upstream(endless) as world:
        async with world.client.request(b"GET", b"/", []) as response:
            async for _ in response.body():
                break
        await gone.wait()
        assert world.client.num_open == 0


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5, 3.5])
async def test_cancelling_anywhere_ends_the_connection(
    autojump_clock: MockClock, after_s: float
) -> None:
    async def slow(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        for data in (CHUNKED[:20], CHUNKED[20:], b"1\r\na\r\n", b"0\r\n\r\n"):
            await trio.sleep(1)
            await stream.send_all(data)

    async with upstream(slow) as world:
        with trio.move_on_after(after_s):
            await body_of(world.client)
        await trio.testing.wait_all_tasks_blocked()
        assert world.client.num_open == 0
        assert world.client.num_kept == 0


async def test_a_kept_connection_is_closed_when_nobody_uses_it(autojump_clock: MockClock) -> None:
    async with upstream(answering(OK, OK, closes=False)) as world:
        await body_of(world.client)
        await trio.sleep(2)
        await body_of(world.client)
        assert world.num_dialled == 1
        await trio.sleep(2.9)
        assert world.client.num_open == 1
        await trio.sleep(0.2)
        assert world.client.num_open == 0


async def test_only_so_many_connections_are_kept(autojump_clock: MockClock) -> None:
    async with upstream(answering(OK, OK, closes=False)) as world:
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_KEPT + 3):
                nursery.start_soon(body_of, world.client)
        assert world.client.num_open == world.client.num_kept == MAX_KEPT


async def test_a_request_on_a_connection_that_was_closed_meanwhile_is_sent_again(
    autojump_clock: MockClock,
) -> None:
    async with upstream(answering(OK), answering(OK)) as world:
        await body_of(world.client)
        async with world.client.request(b"POST", b"/", [], b"body") as response:
            assert response.status == 200
        assert world.num_dialled == 2


async def test_a_request_is_sent_again_once_and_not_after_a_byte_of_the_answer(
    autojump_clock: MockClock,
) -> None:
    async with upstream(answering(OK), answering(b"")) as world:
        await body_of(world.client)
        with pytest.raises(UpstreamError) as caught:
            await body_of(world.client)
        assert caught.value.before_first_byte
        assert world.num_dialled == 2
    async with upstream(answering(OK, b"HTTP"), answering(OK)) as world:
        await body_of(world.client)
        with pytest.raises(UpstreamError) as caught:
            await body_of(world.client)
        assert not caught.value.before_first_byte
        assert world.num_dialled == 1


async def test_what_may_not_be_repeated_gets_a_connection_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async with upstream(answering(OK, OK), answering(b"")) as world:
        await body_of(world.client)
        with pytest.raises(UpstreamError) as caught:
            async with world.client.request(b"POST", b"/", [], b"{}", may_repeat=False):
                raise AssertionError
        assert caught.value.kind is CLOSED
        assert world.num_dialled == 2, "one for each, and none to try again"
        assert world.client.num_kept == 1, "the first is not touched"


class Endless:
    """A body without end, and how much of it was asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.num_pieces = size, 0

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(1)
        self.num_pieces += 1
        return b"x" * self.size


async def test_a_body_that_was_asked_for_is_not_sent_again(autojump_clock: MockClock) -> None:
    async def takes_a_part(stream: trio.abc.Stream) -> None:
        await answering(OK)(stream)
        for _ in range(300):
            await stream.receive_some(1)

    body = Endless(1000)
    async with upstream(takes_a_part, answering(OK)) as world:
        await body_of(world.client)
        with pytest.raises(UpstreamError) as caught:
            async with world.client.request(b"POST", b"/", [], body):
                raise AssertionError
        assert caught.value.kind is CLOSED
        assert caught.value.before_first_byte
        assert (body.num_pieces, world.num_dialled) == (1, 1)


async def test_a_body_that_was_not_asked_for_is_sent_on_a_new_connection(
    autojump_clock: MockClock,
) -> None:
    class Three(Endless):
        async def __anext__(self) -> bytes:
            if self.num_pieces == 3:
                raise StopAsyncIteration
            return await super().__anext__()

    async with upstream(answering(OK), answering(OK)) as world:
        await body_of(world.client)
        async with world.client.request(b"POST", b"/", [], Three(9)) as response:
            assert response.status == 200
        assert world.num_dialled == 2


async def test_a_server_that_answers_first_gets_no_more_of_the_body(
    autojump_clock: MockClock,
) -> None:
    async def refuses(stream: trio.abc.Stream) -> None:
        await stream.receive_some(65_536)
        await trio.sleep(5.5)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await trio.sleep_forever()

    body = Endless(0)
    async with upstream(refuses) as world:
        async with world.client.request(b"POST", b"/", [], body) as response:
            assert response.status == 413
            assert body.num_pieces == 5
            assert [part.data async for part in response.body()] == [b"no"]
        assert world.client.num_open == 0


async def test_a_large_body_that_nobody_reads_does_not_hide_the_answer(
    autojump_clock: MockClock,
) -> None:
    async def refuses(stream: trio.abc.Stream) -> None:
        await stream.receive_some(10)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await trio.sleep_forever()

    start = trio.current_time()
    async with upstream(refuses) as world:
        async with world.client.request(b"POST", b"/", [], b"x" * 1_000_000) as response:
            assert response.status == 413
        assert world.client.num_open == 0
    assert trio.current_time() - start < 1


async def test_a_server_that_takes_nothing_is_given_up(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    async with upstream(silent) as world:
        with pytest.raises(UpstreamError, match="took nothing of a request for 30 s") as caught:
            async with world.client.request(b"POST", b"/", [], b"x" * 1_000_000):
                raise AssertionError
        assert caught.value.kind is TIMEOUT
        assert trio.current_time() - start == pytest.approx(30)


async def test_the_wait_for_an_answer_begins_when_the_body_was_sent(
    autojump_clock: MockClock,
) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(3):
            await trio.sleep(50)
            yield b"x"

    async def reads(stream: trio.abc.Stream) -> None:
        await read_request(stream)
        await trio.sleep_forever()

    start = trio.current_time()
    async with upstream(reads) as world:
        with pytest.raises(UpstreamError, match="did not answer within 60 s"):
            async with world.client.request(b"POST", b"/", [], slowly()):
                raise AssertionError
    assert trio.current_time() - start == pytest.approx(210)


async def test_the_callers_own_error_comes_back_as_it_is(autojump_clock: MockClock) -> None:
    class ClientGoneError(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ClientGoneError

    async with upstream(silent_reader) as world:
        with pytest.raises(ClientGoneError):
            async with world.client.request(b"POST", b"/", [], broken()):
                raise AssertionError
        assert world.client.num_open == 0
    async with upstream(saying(CHUNKED, closes=False)) as world:
        with pytest.raises(ClientGoneError):
            async with world.client.request(b"GET", b"/", []):
                raise ClientGoneError
        assert world.client.num_open == 0


async def silent_reader(stream: trio.abc.Stream) -> None:
    while await stream.receive_some(65_536):
        pass


@pytest.mark.parametrize("size", [2, 4])
async def test_a_body_of_another_length_than_announced_is_not_completed(
    autojump_clock: MockClock, size: int
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size):
            yield b"x"

    async with upstream(silent_reader) as world, aclosing(pieces()) as body:
        with pytest.raises(UpstreamError, match="Content-Length") as caught:
            async with world.client.request(b"POST", b"/", [(b"Content-Length", b"3")], body):
                raise AssertionError
        assert caught.value.kind is FailureKind.REQUEST
        assert world.client.num_open == 0


async def test_a_request_that_cannot_be_sent_opens_no_connection(autojump_clock: MockClock) -> None:
    async with upstream(silent) as world:
        with pytest.raises(UpstreamError) as caught:
            async with world.client.request(b"GET", b"/", [(b"x", b"secret\r\n")]):
                raise AssertionError
        assert caught.value.kind is FailureKind.REQUEST
        assert "secret" not in str(caught.value)
        assert world.num_dialled == 0


async def test_a_long_answer_is_read_no_faster_than_it_is_taken(autojump_clock: MockClock) -> None:
    sent = 0

    async def huge(stream: trio.abc.Stream) -> None:
        nonlocal sent
        await read_request(stream)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 65_536)
            sent += 65_536

    async with upstream(huge) as world, world.client.request(b"GET", b"/", []) as response:
        taken = 0
        async for part in response.body():
            taken += len(part.data)
            await trio.testing.wait_all_tasks_blocked()
            assert sent - taken <= 2 * 65_536
            if taken > 10_000_000:
                break


async def test_time_outs_can_be_given_with_a_request(autojump_clock: MockClock) -> None:
    timeouts = type(TIMEOUTS)(first_byte_s=1, idle_s=math.inf)
    start = trio.current_time()
    async with upstream(silent_reader) as world:
        with pytest.raises(UpstreamError, match="within 1 s"):
            async with world.client.request(b"GET", b"/", [], timeouts=timeouts):
                raise AssertionError
    assert trio.current_time() - start == pytest.approx(1)


async def test_a_connection_that_is_not_made_is_given_up_after_three_seconds(
    autojump_clock: MockClock,
) -> None:
    client = UpstreamClient(
        address=ADDRESS, timeouts=TIMEOUTS, dial=trio.sleep_forever, bearer=None
    )
    start = trio.current_time()
    with pytest.raises(UpstreamError, match="no answer within 3 s") as caught:
        await body_of(client)
    assert caught.value.kind is FailureKind.CONNECT
    assert trio.current_time() - start == pytest.approx(3)


FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b"X-a", b"x-A", b"Server", b"Keep-Alive"]),
        st.sampled_from([b"", b"1", b"a, b", b"a  b", b"\xe4"]),
    ),
    max_size=4,
)
FRAMINGS = st.sampled_from(["length", "chunked", "closed"])


@given(
    st.sampled_from([200, 201, 400, 503]),
    FIELDS,
    FRAMINGS,
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.integers(1, 40),
)
def test_what_h11s_server_sends_is_what_is_received(
    status: int,
    fields: list[tuple[bytes, bytes]],
    framing: str,
    pieces: list[bytes],
    piece_bytes: int,
) -> None:
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while server.next_event() is not h11.PAUSED and server.their_state is not h11.DONE:
        pass
    more = {
        "length": [(b"Content-Length", b"%d" % sum(map(len, pieces)))],
        "chunked": [(b"Transfer-Encoding", b"chunked")],
        "closed": [(b"Connection", b"close")],
    }[framing]
    head = h11.Response(status_code=status, reason=b"So", headers=[*fields, *more])
    answer = b"".join(
        [
            server.send(head) or b"",
            *(server.send(h11.Data(data=piece)) or b"" for piece in pieces),
            server.send(h11.EndOfMessage()) or b"",
        ]
    )

    async def main() -> None:
        async with upstream(answering(answer, piece_bytes=piece_bytes)) as world:
            async with world.client.request(b"GET", b"/", []) as response:
                got = b"".join([part.data async for part in response.body()])
            assert (response.status, response.reason, got) == (status, b"So", b"".join(pieces))
            assert response.headers[: len(fields)] == fields
            assert world.client.num_kept == (framing != "closed")

    trio.run(main)
