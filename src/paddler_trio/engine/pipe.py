"""The engine's end of the pipe to its agent."""

from __future__ import annotations

import os
import select
import threading
import traceback
from collections.abc import Callable
from queue import Queue
from typing import BinaryIO, NoReturn

from paddler_trio.wire.engine.engine_pipe import (
    FromEngine,
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


class Pipe:
    """Both directions, blocking."""

    def __init__(self, reader: BinaryIO, writer_fd: int) -> None:
        self._reader = reader
        self._writer_fd = writer_fd
        self._writing = threading.Lock()
        """Every thread writes: steps are the computing ones', pongs the reading one's."""
        self._room = select.poll()
        self._room.register(writer_fd, select.POLLOUT)

    def receive(self) -> ToEngine | None:
        """The next frame; None when the agent closed the pipe."""
        prefix = self._reader.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            return None
        body = self._reader.read(length := body_length(prefix))
        return decode_to_engine(body) if len(body) == length else None

    def send(self, frame: FromEngine) -> None:
        """Encode and write a frame; blocks as long as the agent does not read."""
        self.write(encode(frame))

    def write(self, frame: bytes) -> None:
        """Write a whole frame; blocks as long as the agent does not read."""
        data = memoryview(frame)
        with self._writing:
            while data:
                data = data[os.write(self._writer_fd, data) :]

    def write_now(self, frame: bytes) -> bool:
        """Write a whole frame if that blocks nobody; False if nothing of it was written."""
        if len(frame) > select.PIPE_BUF or not self._writing.acquire(blocking=False):
            return False
        try:
            if not self._room.poll(0):  # else there is room for PIPE_BUF bytes
                return False
            os.write(self._writer_fd, frame)
        finally:
            self._writing.release()
        return True


class Outbox:
    """Frames on their way to the agent. While it reads, each is written by who puts it: to wake a
    thread for it costs more. Else a thread sends them, so that no pass waits for the agent."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._frames: Queue[bytes] = Queue(OUTBOX_FRAMES)

    def put(self, frame: FromEngine) -> None:
        """Send a frame, after all that the same thread put before; blocks while the agent lags by
        ``OUTBOX_FRAMES``."""
        data = encode(frame)
        # one that the thread has begun to write still counts as unfinished
        if self._frames.unfinished_tasks or not self._pipe.write_now(data):
            self._frames.put(data)

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Begin to send; if that fails, the traceback is printed and ``on_crash`` called."""

        def run() -> None:
            try:
                while True:
                    self._pipe.write(self._frames.get())
                    self._frames.task_done()
            except Exception as error:  # noqa: BLE001  # without an outbox no answer gets out
                if not isinstance(error, BrokenPipeError):  # that is the agent leaving first
                    traceback.print_exc()
                on_crash()

        threading.Thread(target=run, name="outbox", daemon=True).start()
