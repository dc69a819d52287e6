"""Kept connections: what a client sends ahead waits, is lost nowhere, and hides no departure."""

from __future__ import annotations

import errno
import hashlib
import select
from itertools import pairwise
from typing import NoReturn

import attrs
import pytest
import trio
import trio.testing
from h11._receivebuffer import ReceiveBuffer
from http_world import Client, Served, Waiter, serving, until
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.net.h11_bounds import JoiningChunkedReader
from paddler_trio.net.server import connection
from paddler_trio.net.server.asgi import Message, read_body, send_text
from paddler_trio.net.server.exchange import Exchange

KIB, MIB = 1024, 1_048_576
PATIENCE_S = 60


async def digest(exchange: Exchange) -> None:
    """Answer with what tells two requests apart."""
    body = await read_body(exchange.receive, limit_bytes=33 * MIB, deadline_s=PATIENCE_S)
    await send_text(exchange.send, 200, f"{exchange.path} {hashlib.sha256(body).hexdigest()}")


class Turnstile:
    """As `digest`, one answer for each `let_through`."""

    def __init__(self) -> None:
        self._turns = trio.Semaphore(0)

    async def __call__(self, exchange: Exchange) -> None:
        await self._turns.acquire()
        await digest(exchange)

    def let_through(self) -> None:
        self._turns.release()


@attrs.frozen
class Post:
    """A request with a body of ``size`` bytes; in chunks when ``chunk`` says how long they are."""

    number: int
    size: int
    chunk: int = 0

    @property
    def body(self) -> bytes:
        return bytes([65 + self.number]) * self.size

    @property
    def raw(self) -> bytes:
        start = b"POST /%d HTTP/1.1\r\nHost: x\r\n" % self.number
        if not self.chunk:
            return start + b"Content-Length: %d\r\n\r\n" % self.size + self.body
        body = self.body
        pieces = [body[at : at + self.chunk] for at in range(0, self.size, self.chunk)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        return start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    @property
    def answer(self) -> bytes:
        return b"/%d %b" % (self.number, hashlib.sha256(self.body).hexdigest().encode())


async def expect_answers(client: Client, posts: list[Post]) -> None:
    for post in posts:
        status, _, body = await client.response()
        assert (status, body) == (200, post.answer)


def assert_nobody_was_dropped(served: Served, *, connections: int = 1) -> None:
    statistics = served.server.statistics()
    assert (statistics.accepted, statistics.dropped_for_abuse) == (connections, 0)


# ------------------------------------------------------------------------------ nothing is lost


async def test_a_pooled_client_with_large_bodies_is_never_reset() -> None:
    async with serving(digest) as served:
        client = await served.connect()
        for number in range(200):
            post = Post(number % 100, 64 * KIB + 1 + number * 997)
            await client.stream.send_all(post.raw)
            await expect_answers(client, [post])
        assert_nobody_was_dropped(served)


@pytest.mark.parametrize(
    "size", [0, 1, 16 * KIB, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB, 32 * MIB]
)
@pytest.mark.parametrize("chunk", [0, 256 * KIB])
async def test_three_pipelined_requests_are_answered_in_order(size: int, chunk: int) -> None:
    posts = [Post(number, size, chunk) for number in range(3)]
    async with serving(digest) as served, trio.open_nursery() as nursery:
        client = await served.connect()
        nursery.start_soon(client.stream.send_all, b"".join(post.raw for post in posts))
        await expect_answers(client, posts)
        assert_nobody_was_dropped(served)


async def test_what_nobody_can_take_yet_makes_the_client_wait() -> None:
    turnstile = Turnstile()
    posts = [Post(0, 3), Post(1, 32 * MIB), Post(2, 3)]
    async with (
        serving(turnstile, max_read_ahead_bytes=64 * KIB) as served,
        trio.open_nursery() as nursery,
    ):
        client = await served.connect()
        sent = trio.Event()

        async def send() -> None:
            await client.stream.send_all(b"".join(post.raw for post in posts))
            sent.set()

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(cushion=0.05)
        assert not sent.is_set()
        for post in posts:
            turnstile.let_through()
            await expect_answers(client, [post])
        assert_nobody_was_dropped(served)


async def test_a_request_may_come_in_two_pieces_cut_anywhere() -> None:
    posts = [Post(0, 2), Post(1, 5, chunk=2), Post(2, 0)]
    raw = b"".join(post.raw for post in posts)
    async with serving(digest) as served:
        client = await served.connect()
        for cut in range(len(raw) + 1):
            await client.stream.send_all(raw[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await client.stream.send_all(raw[cut:])
            await expect_answers(client, posts)
        assert_nobody_was_dropped(served)


requests = st.builds(Post, st.integers(0, 9), st.integers(0, 400), st.sampled_from([0, 0, 1, 64]))


@settings(max_examples=examples(60))
@given(
    posts=st.lists(requests, min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 3000), max_size=8),
    max_read_ahead_bytes=st.integers(0, 300),
    answered_early=st.integers(0, 8),
)
async def test_requests_cut_anywhere_and_answered_at_any_time_are_all_answered(
    posts: list[Post], cuts: set[int], max_read_ahead_bytes: int, answered_early: int
) -> None:
    """After each piece, as far as ``answered_early`` goes, one answer is let through."""
    raw = b"".join(post.raw for post in posts)
    borders = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    turnstile = Turnstile()
    async with serving(turnstile, max_read_ahead_bytes=max_read_ahead_bytes) as served:
        client = await served.connect()
        for number, (begin, end) in enumerate(pairwise(borders)):
            await client.stream.send_all(raw[begin:end])
            if number < answered_early:
                turnstile.let_through()
            await trio.testing.wait_all_tasks_blocked()
        for _ in posts:
            turnstile.let_through()
        await expect_answers(client, posts)
        assert_nobody_was_dropped(served)


async def test_small_segments_are_joined_by_the_kernel_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without pauses the application is given each byte as one piece."""
    monkeypatch.setattr(connection, "SMALL_READS", 10)
    monkeypatch.setattr(connection, "SMALL_READS_PAUSE_S", 0.2)
    monkeypatch.setattr(connection, "SMALL_READS_PER_S", 1e-9)
    pieces: list[int] = []

    async def noting(exchange: Exchange) -> None:
        receive = exchange.receive

        async def noted() -> Message:
            message = await receive()
            pieces.append(len(message["body"]))
            return message

        exchange.receive = noted
        await digest(exchange)

    post = Post(0, 400)
    async with serving(noting) as served:
        client = await served.connect()
        for byte in post.raw:
            await client.stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked(cushion=0.0005)
        await expect_answers(client, [post])
        assert_nobody_was_dropped(served)
    assert sum(pieces) == 400
    assert len(pieces) < 200


@attrs.define(eq=False)
class ChunksInSteps(trio.abc.Instrument):
    """How many chunks are parsed in one step of a task, at most."""

    most: int = 0
    _so_far: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._so_far = 0

    def note(self, number: int) -> None:
        self._so_far += number
        self.most = max(self.most, self._so_far)


async def test_others_have_their_turn_between_portions_of_chunks_of_one_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand of them come in one read, and take 20 ms of each connection's step."""
    steps = ChunksInSteps()
    whole_chunks = JoiningChunkedReader._whole_chunks

    def noting(self: JoiningChunkedReader, buffer: ReceiveBuffer) -> bytes:
        joined = whole_chunks(self, buffer)
        steps.note(len(joined))
        return joined

    monkeypatch.setattr(JoiningChunkedReader, "_whole_chunks", noting)
    posts = [Post(0, 50_000, chunk=1), Post(1, 3)]
    trio.lowlevel.add_instrument(steps)
    async with serving(digest) as served:
        client = await served.connect()
        await client.stream.send_all(b"".join(post.raw for post in posts))
        await expect_answers(client, posts)
        assert_nobody_was_dropped(served)
    trio.lowlevel.remove_instrument(steps)
    assert 0 < steps.most <= connection.PORTION_BYTES // len(b"1\r\na\r\n") + 1


async def test_without_descriptors_the_request_in_progress_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(size_hint: int) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(select, "epoll", none_left)
    turnstile = Turnstile()
    posts = [Post(0, 1), Post(1, 1000)]
    async with serving(turnstile, max_read_ahead_bytes=100) as served:
        client = await served.connect()
        await client.stream.send_all(b"".join(post.raw for post in posts))
        await trio.testing.wait_all_tasks_blocked(cushion=0.01)
        for _ in posts:
            turnstile.let_through()
        await expect_answers(client, posts)


# ------------------------------------------------------------------------- departures are noticed


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("ahead_bytes", [999, 1000, 1001, 100_000])
async def test_a_departure_behind_more_than_is_read_ahead_is_noticed(
    half: bool, ahead_bytes: int
) -> None:
    waiter = Waiter()
    async with serving(waiter, max_read_ahead_bytes=1000) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        await client.stream.send_all(b"x" * ahead_bytes)
        await trio.testing.wait_all_tasks_blocked(cushion=0.01)
        assert not waiter.gone.is_set()
        await (client.stream.send_eof() if half else client.stream.aclose())
        await waiter.gone.wait()
        await until(lambda: served.server.statistics().open_connections == 0)
        assert_nobody_was_dropped(served)


@pytest.mark.parametrize("half", [True, False])
async def test_a_departure_behind_more_than_the_kernels_hold_is_noticed(half: bool) -> None:
    waiter = Waiter()
    async with serving(waiter) as served:
        client = await served.connect()
        await client.get("/")
        await waiter.entered.wait()
        await client.stream.send_all(b"x" * 24 * MIB)
        assert not waiter.gone.is_set()
        await (client.stream.send_eof() if half else client.stream.aclose())
        await waiter.gone.wait()
        await until(lambda: served.server.statistics().open_connections == 0)
        assert_nobody_was_dropped(served)
