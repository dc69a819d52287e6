"""SIGTERM and SIGINT: the first asks for an orderly end, the second ends everything at once.

SIGHUP reloads what can be reloaded. To a daemon that has no such things it is what a terminal says
that goes away, and asks for an orderly end as well; with nohup(1) it does nothing.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
import trio

log = structlog.get_logger("signals")


async def watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set ``stop`` at the first signal, cancel ``everything`` at the second."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    hangups = () if is_ignored else (signal.SIGHUP,)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangups) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP and stop.is_set():
                continue  # a terminal that goes away says so twice: the system does, and its shell
            name = signal.Signals(number).name
            if stop.is_set():
                log.warning("second signal: ending at once", signal=name)
                everything.cancel(reason=f"second signal ({name})")
                return
            log.info("stopping: finishing what runs", signal=name)
            stop.set()


async def watch_hangups(hangups: AsyncIterator[int], reload: Callable[[], Awaitable[None]]) -> None:
    """Call ``reload`` at every SIGHUP; several in quick succession may become one call."""
    async for _ in hangups:
        await reload()
