"""What an engine sends: written at once while the agent reads, in order whoever writes it."""

from __future__ import annotations

import fcntl
import io
import os
import select
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest

from paddler_trio.engine.pipe import Outbox, Pipe
from paddler_trio.wire.engine.engine_pipe import SampledToken, Step
from paddler_trio.wire.engine.pipe_codec import LENGTH_BYTES, body_length, decode_from_engine

PIPE_BYTES = 4 * select.PIPE_BUF


class Ends:
    """A small pipe, and an outbox that writes to it."""

    def __init__(self) -> None:
        self.reader_fd, self.writer_fd = os.pipe()
        fcntl.fcntl(self.writer_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.outbox = Outbox(Pipe(io.BytesIO(), self.writer_fd))
        self.crashed = threading.Event()
        self._reader = os.fdopen(self.reader_fd, "rb")

    def read(self) -> Step:
        prefix = self._reader.read(LENGTH_BYTES)
        step = decode_from_engine(self._reader.read(body_length(prefix)))
        assert isinstance(step, Step)
        return step

    def is_empty(self) -> bool:
        return not select.select([self.reader_fd], [], [], 0)[0]

    def start(self) -> None:
        self.outbox.start(on_crash=self._crash)

    def close(self) -> None:
        self._reader.close()
        os.close(self.writer_fd)

    def _crash(self) -> NoReturn:
        self.crashed.set()
        raise SystemExit


@pytest.fixture
def ends() -> Iterator[Ends]:
    pipe = Ends()
    yield pipe
    pipe.close()


def step(number: int, *, text: bytes = b"x") -> Step:
    return Step([SampledToken(1, number, text)], [])


def test_a_step_is_written_by_who_puts_it(ends: Ends) -> None:
    """No thread was started that could have done it."""
    ends.outbox.put(step(7))
    assert ends.read().sampled[0].token == 7


def test_what_an_agent_does_not_read_waits_for_the_thread_and_stays_in_order(ends: Ends) -> None:
    text = bytes(select.PIPE_BUF // 2)
    count = 2 * PIPE_BYTES // len(text)
    for number in range(count):
        ends.outbox.put(step(number, text=text))  # more than the pipe holds, and it does not wait
    ends.start()
    ends.outbox.put(step(count))
    assert [ends.read().sampled[0].token for _ in range(count + 1)] == list(range(count + 1))


def test_a_long_step_is_left_to_the_thread_with_all_behind_it(ends: Ends) -> None:
    ends.outbox.put(step(0, text=bytes(select.PIPE_BUF)))
    ends.outbox.put(step(1))
    assert ends.is_empty()
    ends.start()
    assert [ends.read().sampled[0].token for _ in range(2)] == [0, 1]


def test_an_agent_that_left_is_an_error_of_the_put(ends: Ends) -> None:
    os.dup2(ends.writer_fd, ends.reader_fd)  # the last reader is gone
    with pytest.raises(BrokenPipeError):
        ends.outbox.put(step(0))
