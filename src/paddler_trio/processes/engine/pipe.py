"""The engine's end of the pipe to its agent."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import BinaryIO, NoReturn

from paddler_trio.scheduler.batching.stream_interval import StreamInterval
from paddler_trio.wire.engine.engine_pipe import (
    FromEngine,
    Step,
    ToEngine,
)
from paddler_trio.wire.engine.pipe_codec import (
    LENGTH_BYTES,
    body_length,
    decode_to_engine,
    encode,
)

OUTBOX_FRAMES = 16
"""Passes that may be on their way to an agent that reads slowly, before passes wait for it."""
OUTBOX_LOGPROBS = 1024
"""Log probabilities of which that is so: each costs the agent and the balancer as much as a third
of a token, and the tokens of others wait behind them."""
HELD_LOGPROBS = 128
"""The number above which nothing waits for the next pass."""


class Pipe:
    """Both directions, blocking."""

    def __init__(self, reader: BinaryIO, writer_fd: int) -> None:
        self._reader = reader
        self._writer_fd = writer_fd
        self._writing = threading.Lock()
        """Every thread writes: steps are the computing ones', pongs the reading one's."""

    def receive(self) -> ToEngine | None:
        """Return the next frame; None when the agent closed the pipe."""
        prefix = self._reader.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            return None
        body = self._reader.read(length := body_length(prefix))
        return decode_to_engine(body) if len(body) == length else None

    def send(self, frame: FromEngine) -> None:
        """Encode and write a frame; blocks as long as the agent does not read."""
        data = memoryview(encode(frame))
        with self._writing:
            while data:
                data = data[os.write(self._writer_fd, data) :]


class Outbox:
    """Frames that a thread of its own sends, so that encoding and writing the results of one pass
    costs the next pass nothing: llama.cpp computes it without the interpreter.

    The results of short passes go together, unless one of them has more than the next tokens of
    running sequences: a first token, an ending and a report go at once, with what waits.

    Args:
      send: blocks as long as the agent does not read.
      interval_s: how long tokens may wait for those of the next passes.
      most_held: passes of which that may be so, at most ``OUTBOX_FRAMES``; 1 for none.
    """

    def __init__(
        self,
        send: Callable[[FromEngine], None],
        interval_s: float,
        *,
        most_held: int = OUTBOX_FRAMES,
    ) -> None:
        self._send = send
        self._most_held = min(most_held, OUTBOX_FRAMES)
        self._interval = StreamInterval(interval_s)
        self._frames: list[FromEngine] = []
        self._num_logprobs = 0
        self._is_due = False
        lock = threading.Lock()
        self._due = threading.Condition(lock)
        self._taken = threading.Condition(lock)

    def put(self, frame: FromEngine) -> None:
        """Queue a frame, to be sent in order; blocks while the agent lags by ``OUTBOX_FRAMES``, or
        by ``OUTBOX_LOGPROBS``."""
        num_logprobs = num_logprobs_of(frame)
        with self._due:
            while len(self._frames) >= OUTBOX_FRAMES or (
                self._num_logprobs and self._num_logprobs + num_logprobs > OUTBOX_LOGPROBS
            ):
                self._taken.wait()
            self._frames.append(frame)
            self._num_logprobs += num_logprobs
            is_time = self._interval.passed(time.monotonic())
            is_full = len(self._frames) >= self._most_held or self._num_logprobs > HELD_LOGPROBS
            if not self._is_due and (is_time or is_full or not _is_patient(frame)):
                self._is_due = True
                self._due.notify()

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Begin to send; if that fails, the traceback is printed and ``on_crash`` called."""

        def run() -> None:
            try:
                while True:
                    for frame in together(self._take()):
                        self._send(frame)
            except Exception as error:  # noqa: BLE001  # without an outbox no answer gets out
                if not isinstance(error, BrokenPipeError):  # that is the agent leaving first
                    traceback.print_exc()
                on_crash()

        threading.Thread(target=run, name="outbox", daemon=True).start()

    def _take(self) -> list[FromEngine]:
        """Return all that waits, once it is due or has waited for as long as it may.

        A pass that is not due wakes nobody. So after a delivery the time is waited for even if
        nothing has come yet; what comes later than that is due at once.
        """
        with self._due:
            while not self._is_due:
                left_s = self._interval.due_s - time.monotonic()
                if left_s <= 0 and self._frames:
                    break
                self._due.wait(left_s if left_s > 0 else None)
            frames, self._frames, self._is_due = self._frames, [], False
            self._num_logprobs = 0
            self._interval.delivered(time.monotonic())
            self._taken.notify_all()
            return frames


def num_logprobs_of(frame: FromEngine) -> int:
    """Return how many log probabilities a step has, with all its tokens."""
    if not isinstance(frame, Step):
        return 0
    return sum(len(each.logprobs.values) for each in frame.sampled if each.logprobs is not None)


def _is_patient(frame: FromEngine) -> bool:
    """Return whether a step has nothing but the next tokens of sequences that have had their
    first."""
    return isinstance(frame, Step) and not (frame.endings or frame.progress or frame.preempted)


def together(frames: list[FromEngine]) -> Iterator[FromEngine]:
    """Yield neighbouring steps as one, but for those that tell of a preemption: what came before it
    and what comes after it are not the same."""
    joined: Step | None = None
    for frame in frames:
        if isinstance(frame, Step) and not frame.preempted:
            joined = frame if joined is None else _joined(joined, frame)
            continue
        if joined is not None:
            yield joined
            joined = None
        yield frame
    if joined is not None:
        yield joined


def _joined(first: Step, second: Step) -> Step:
    return Step(
        first.sampled + second.sampled,
        first.endings + second.endings,
        first.progress + second.progress,
    )
