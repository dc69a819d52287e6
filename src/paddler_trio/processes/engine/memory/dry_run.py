"""The entry of a dry run, a process that is started to learn what a model takes.

Questions come in on standard input, answers go out on what was standard output. The model is loaded
by the code that loads it for the engine, with one switch: llama.cpp reads its header only, and
counts instead of allocating (``no_alloc``). Headers may be hostile: they are looked through before
llama.cpp sees them, and the process limits its own memory and processor time. Whoever asks limits
the time on the clock, and generously: this process is nice, and engines may leave it little.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import resource
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from paddler_trio.errors import EngineError, MemoryUnknownError
from paddler_trio.processes.engine.llama.gguf_header import (
    MAX_HEADER_BYTES,
    GgufHeader,
    HeaderTooLargeError,
    NeedsMoreError,
    NotGgufError,
    read_header,
)
from paddler_trio.processes.engine.memory.memory_trial import Trial
from paddler_trio.system.heap import limit_myself
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.dry_run_frames import (
    LENGTH_BYTES,
    DryRunAnswer,
    HeaderIncomplete,
    MeasureMemory,
    MemoryMeasured,
    MemoryUnknown,
    decode_question,
    encode_answer,
    frame_length,
)

MEMORY_BYTES: Final = 4 << 30
"""The bytes of data, on top of what a projection reserves; a vocabulary of 256,000 tokens needs a
tenth."""
CPU_S: Final = 30
"""Processor time of one question; most take well under a second."""
_NICENESS: Final = 10
_LAST_LINES: Final = 4096
_INFO_LEVEL: Final = 2
_ERROR_LEVEL: Final = 4


@attrs.define(eq=False)
class _Log:
    """llama.cpp's last lines; errors apart, for what may become a reason."""

    lines: deque[str] = attrs.field(factory=lambda: deque(maxlen=_LAST_LINES))
    errors: deque[str] = attrs.field(factory=lambda: deque(maxlen=4))

    def take(self, level: int, text: bytes) -> None:
        if level < _INFO_LEVEL:  # a thousand lines for each context
            return
        line = text.decode(errors="replace").strip()
        self.lines.append(line)
        if level == _ERROR_LEVEL:
            self.errors.append(line)
            os.write(2, line.encode()[:1000] + b"\n")

    def clear(self) -> None:
        self.lines.clear()
        self.errors.clear()


def main() -> None:
    """Answer questions until the asking process closes the pipe."""
    writer = os.dup(1)
    os.dup2(2, 1)
    log = _Log()

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _: object) -> None:
        log.take(level, text)

    lib.llama_log_set(on_log, None)
    _limit_myself()
    trial, headers = Trial(log.lines), _Headers()
    while (body := _receive(sys.stdin.buffer)) is not None:
        log.clear()
        limit_processor_time(CPU_S)
        answer = encode_answer(_answer(decode_question(body), trial, headers, log))
        while answer:
            answer = answer[os.write(writer, answer) :]


def _limit_myself() -> None:
    """Limit this process before anything from outside is read."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    limit_myself(resource.RLIMIT_DATA, MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def limit_processor_time(more_s: int) -> None:
    """Let this process have ``more_s`` seconds from now on; SIGXCPU ends it after them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = math.ceil(used.ru_utime + used.ru_stime) + more_s
    limit_myself(resource.RLIMIT_CPU, limit_s)


def _receive(reader: BinaryIO) -> bytes | None:
    prefix = reader.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        return None
    body = reader.read(length := frame_length(prefix))
    return body if len(body) == length else None


def _answer(question: MeasureMemory, trial: Trial, headers: _Headers, log: _Log) -> DryRunAnswer:
    try:
        return MemoryMeasured(trial.need(question.load, question.parts, headers.of(question)))
    except _IncompleteError as incomplete:
        return HeaderIncomplete(incomplete.path, incomplete.needed_bytes)
    except MemoryUnknownError as unknown:
        return MemoryUnknown(unknown.kind, str(unknown))
    except EngineError as error:
        return MemoryUnknown(*_sorted(str(error), list(log.errors)))


def _sorted(problem: str, errors: list[str]) -> tuple[str, str]:
    """Return the kind of an error and its reason, from ours and from llama.cpp's last words."""
    said = " | ".join(dict.fromkeys(errors))
    reason = f"{problem}; llama.cpp said: {said}" if said else problem
    if "unknown model architecture" in said:
        return "unknown_architecture", reason
    if "is not within the file bounds" in said or "file is corrupted or incomplete" in said:
        return "truncated", reason
    if "this build" in problem:
        return "unsupported", reason
    return ("model_refused" if "cannot load" in problem else "context_refused"), reason


# ------------------------------------------------------------------------------------- headers


class _IncompleteError(Exception):
    def __init__(self, path: str, needed_bytes: int) -> None:
        super().__init__(path)
        self.path = path
        self.needed_bytes = needed_bytes


@attrs.define(eq=False)
class _Headers:
    """The headers of files that were asked about; those of the last question are kept."""

    _known: dict[tuple[str, int, int, int], GgufHeader] = attrs.field(factory=dict, init=False)
    """The headers by path, size, time of the last change, and how many bytes are here."""

    def of(self, question: MeasureMemory) -> dict[str, GgufHeader]:
        """Return the header of every file that llama.cpp will read, by path; a projection that is
        none is left out, for without it the model still serves text."""
        load, present = question.load, question.present
        drafts = [] if load.settings.draft_model is None else [load.settings.draft_model]
        before, self._known = self._known, {}
        headers = {
            path: self._of_file(path, present.get(path), before)
            for path in (load.model_path, *question.parts)
        }
        for path in drafts:
            try:
                headers[path] = self._of_file(path, present.get(path), before)
            except MemoryUnknownError as error:
                raise MemoryUnknownError(
                    error.kind, f"the draft model (--draft-model): {error}"
                ) from error
        if load.projection_path is not None:
            with contextlib.suppress(MemoryUnknownError):
                path = load.projection_path
                headers[path] = self._of_file(path, present.get(path), before)
        return headers

    def _of_file(
        self, path: str, present: int | None, before: dict[tuple[str, int, int, int], GgufHeader]
    ) -> GgufHeader:
        """Return the header of a file; ``present``: bytes that are here, None for all."""
        try:
            with Path(path).open("rb") as file:
                status = os.fstat(file.fileno())
                here = status.st_size if present is None else min(present, status.st_size)
                if here == 0:
                    raise MemoryUnknownError("not_gguf", f"{path} is empty")
                key = (path, status.st_size, status.st_mtime_ns, here)
                header = before.get(key) or self._known.get(key)
                if header is None:
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                        size = status.st_size
                        header = _read_header(path, mapping, min(here, MAX_HEADER_BYTES), size)
                self._known[key] = header
                return header
        except (OSError, ValueError) as error:
            raise MemoryUnknownError("missing", f"{path} cannot be read: {error}") from error


def _read_header(path: str, mapping: mmap.mmap, here: int, size: int) -> GgufHeader:
    with memoryview(mapping) as whole, whole[:here] as data:
        try:
            return read_header(data)
        except NotGgufError as error:
            raise MemoryUnknownError("not_gguf", f"{path} is no GGUF file: {error}") from error
        except HeaderTooLargeError as error:
            raise MemoryUnknownError("header_too_large", f"{path}: {error}") from error
        except NeedsMoreError as error:
            if error.num_bytes > size:
                raise MemoryUnknownError(
                    "truncated",
                    f"{path} ends in its header: it has {size} bytes, the header at least "
                    f"{error.num_bytes}",
                ) from error
            raise _IncompleteError(path, error.num_bytes) from error


if __name__ == "__main__":
    main()
