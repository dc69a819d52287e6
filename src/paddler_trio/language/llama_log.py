"""llama.cpp's words from inside the agent (its vocabulary handle) into the agent's own log."""

from __future__ import annotations

import os

import llama_cpp.llama_cpp as lib
import structlog

log = structlog.get_logger("vocabulary")

_WARNING, _ERROR = 3, 4


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    line = text.decode(errors="replace").rstrip()
    if not line.strip(". "):
        return
    if level in (_WARNING, _ERROR):
        log.warning("llama.cpp", text=line)
    else:
        log.debug("llama.cpp", text=line)


def route_llama_log() -> None:
    """From now on nothing is printed; process-wide, safe to say again."""
    lib.llama_log_set(_log, None)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _print(level: int, text: bytes, _: object) -> None:
    if level in (_WARNING, _ERROR):
        os.write(2, text)


def print_llama_log() -> None:
    """From now on warnings and errors go to standard error; process-wide, for child processes."""
    lib.llama_log_set(_print, None)
