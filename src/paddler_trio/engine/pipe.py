"""The engine's end of the pipe to its agent."""

from __future__ import annotations

import os
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

    def receive(self) -> ToEngine | None:
        """The next frame; None when the agent closed the pipe."""
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
    costs the next pass nothing: llama.cpp computes it without the interpreter."""

    def __init__(self, send: Callable[[FromEngine], None]) -> None:
        self._send = send
        self._frames: Queue[FromEngine] = Queue(OUTBOX_FRAMES)

    def put(self, frame: FromEngine) -> None:
        """Queue a frame, to be sent in order; blocks while the agent lags by ``OUTBOX_FRAMES``."""
        self._frames.put(frame)

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Begin to send; if that fails, the traceback is printed and ``on_crash`` called."""

        def run() -> None:
            try:
                while True:
                    self._send(self._frames.get())
            except Exception as error:  # noqa: BLE001  # without an outbox no answer gets out
                if not isinstance(error, BrokenPipeError):  # that is the agent leaving first
                    traceback.print_exc()
                on_crash()

        threading.Thread(target=run, name="outbox", daemon=True).start()
