"""End a child: give it a moment to do it by itself, then kill it, and reap it in any case."""

from __future__ import annotations

from typing import Final

import structlog
import trio

log = structlog.get_logger("processes")

KILLED_S: Final = 30.0
"""A killed process is gone at once, unless the machine has no time for it or a device holds it."""


async def end_process(process: trio.Process, *, name: str, grace_s: float = 0.0) -> None:
    """Close its stdin, kill it if it does not end within ``grace_s``, reap it, close its pipes.

    Cancellation: shielded, for ``grace_s`` and ``KILLED_S`` at most.
    """
    if grace_s:
        with trio.move_on_after(grace_s, shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            await process.wait()
        if process.returncode is None:
            log.error("a child did not end by itself: killing it", child=name, pid=process.pid)
    if process.returncode is None:
        process.kill()
    with trio.move_on_after(KILLED_S, shield=True) as reaping:
        await process.wait()
    if reaping.cancelled_caught:
        log.error("a child was killed and is still there", child=name, pid=process.pid)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await trio.aclose_forcefully(stream)
