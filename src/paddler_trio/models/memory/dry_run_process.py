"""A dry run of llama.cpp, in a process of its own: what would loading this take?

The process is started by the first question. It is a child of the block that opened it, and is gone
when the block ends. It may be killed at any time: a header that makes it hang, grow or abort costs
that process and nothing else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from paddler_trio.errors import MemoryUnknownError, WireError
from paddler_trio.wire.engine.dry_run_frames import (
    LENGTH_BYTES,
    DryRunAnswer,
    HeaderIncomplete,
    MeasureMemory,
    MemoryMeasured,
    MemoryUnknown,
    decode_answer,
    encode_question,
    frame_length,
)
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import MemoryNeed

DRY_RUN_COMMAND: Final = (
    sys.executable,
    "-P",
    "-m",
    "paddler_trio.processes.engine.memory.dry_run",
)
ANSWER_WITHIN_S: Final = 120.0
"""The time on the clock. The process gives itself 30 s of processor time, but is nice: beside
engines that take every core, a second of it may last most of a minute."""
_SECRETS: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""The secrets of the environment; what reads hostile files needs none."""
_LAST_LINES: Final = 12
_MAX_LINE_BYTES: Final = 1000

GrowHeader = Callable[[str, int], Awaitable[int]]
"""``(path, needed_bytes)``: have at least so many bytes of a sparse file, return how many it has;
MemoryUnknownError if they are not to be had."""


@attrs.define(eq=False)
class DryRun:
    """A running one; see :func:`open_dry_run`. One question at a time."""

    _command: Sequence[str]
    _answer_within_s: float
    _nursery: trio.Nursery
    _process: trio.Process | None = attrs.field(default=None, init=False)
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
    _last_words: deque[str] = attrs.field(factory=lambda: deque(maxlen=_LAST_LINES), init=False)

    @property
    def pid(self) -> int | None:
        """The id of the process; None before the first question."""
        return None if self._process is None else self._process.pid

    async def need(
        self,
        load: LoadModel,
        parts: Sequence[str] = (),
        present: dict[str, int] | None = None,
        grow: GrowHeader | None = None,
    ) -> MemoryNeed:
        """Return what ``load`` takes; MemoryUnknownError.

        Args:
          parts: all files of the model, if it has several.
          present: of files of ``load`` that are sparse, by path: bytes that are here.
          grow: gets more of them; needed only if there are some.

        After an error of the kinds ``crashed`` and ``too_slow`` the process is of no more use.
        """
        present = dict(present or {})
        while True:
            match await self._ask(MeasureMemory(load, list(parts), present)):
                case MemoryMeasured(need):
                    return need
                case MemoryUnknown(kind, reason):
                    raise MemoryUnknownError(kind, reason)
                case HeaderIncomplete(path, needed_bytes):
                    before = present.get(path)
                    if grow is None or before is None:
                        raise MemoryUnknownError("crashed", f"it asks for more of {path}")
                    present[path] = await grow(path, needed_bytes)
                    if present[path] <= before:
                        raise MemoryUnknownError("truncated", f"there is no more of {path}")

    async def _ask(self, question: MeasureMemory) -> DryRunAnswer:
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with trio.fail_after(self._answer_within_s):
                await process.stdin.send_all(encode_question(question))
                prefix = await self._receive(process.stdout, LENGTH_BYTES)
                return decode_answer(await self._receive(process.stdout, frame_length(prefix)))
        except trio.TooSlowError as error:
            process.kill()
            raise MemoryUnknownError(
                "too_slow",
                f"the dry run of {question.load.model_path} gave no answer within "
                f"{self._answer_within_s:g} s",
            ) from error
        except (trio.BrokenResourceError, trio.ClosedResourceError, WireError) as error:
            raise await self._crashed(process, question) from error

    async def _start(self) -> trio.Process:
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        process = self._process = await trio.lowlevel.open_process(
            list(self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "GGML_NO_BACKTRACE": "1", "OMP_NUM_THREADS": "1"},
            process_group=0,  # Ctrl-C is for the asking process
        )
        self._nursery.start_soon(self._collect_words, process, name="dry run log")
        return process

    async def _receive(self, pipe: trio.abc.ReceiveStream, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            piece = await pipe.receive_some(65536)
            if not piece:
                raise trio.BrokenResourceError("the dry run ended")
            self._buffer += piece
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken

    async def _crashed(self, process: trio.Process, question: MeasureMemory) -> MemoryUnknownError:
        process.kill()
        status = await process.wait()
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        said = " | ".join(self._last_words) or "nothing"
        return MemoryUnknownError(
            "crashed",
            f"llama.cpp ended the dry run of {question.load.model_path} ({how}); its last words: "
            f"{said}",
        )

    async def end(self) -> None:
        """Kill the process, if there is one, and wait until it is gone."""
        process = self._process
        if process is None:
            return
        process.kill()
        with trio.CancelScope(shield=True):  # it was killed: it is gone in a moment
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await trio.aclose_forcefully(stream)

    async def _collect_words(self, process: trio.Process) -> None:
        """Keep the last lines that the process printed, until it ends."""
        assert process.stderr is not None
        rest = b""
        async for data in process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_MAX_LINE_BYTES:]
            texts = (line[:_MAX_LINE_BYTES].decode(errors="replace").strip() for line in lines)
            self._last_words.extend(text for text in texts if text)


@asynccontextmanager
async def open_dry_run(
    *, command: Sequence[str] = DRY_RUN_COMMAND, answer_within_s: float = ANSWER_WITHIN_S
) -> AsyncIterator[DryRun]:
    """Yield a dry run whose process ends with the block."""
    dry_run = None
    failure: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            dry_run = DryRun(command, answer_within_s, nursery)
            try:
                yield dry_run
            except Exception as error:  # noqa: BLE001  # raised below, and not in a group
                failure = error
            nursery.cancel_scope.cancel(reason="the dry run has ended")
        if failure is not None:
            raise failure
    finally:
        if dry_run is not None:
            await dry_run.end()
