"""Logs, signals, and errors that a person can act on, for all commands that run a daemon."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import trio

from paddler_trio.cli.client_flags import LogLevel
from paddler_trio.errors import PaddlerError, leaves
from paddler_trio.system.heap import freeze_heap, give_back_large_blocks
from paddler_trio.system.logs.logs import configure_logs
from paddler_trio.system.signals import watch_signals


def run_daemon(
    body: Callable[[trio.Event], Awaitable[None]], *, log_level: LogLevel, log_json: bool | None
) -> None:
    """Run ``body(stop)`` with signals and logs; exit code 1 and one line for a known error."""
    configure_logs(level=log_level.value, as_json=log_json)
    give_back_large_blocks()
    freeze_heap()  # what was imported; all that a tree is assembled from is a fiftieth of it
    try:
        trio.run(_with_signals, body, strict_exception_groups=True)
    except* PaddlerError as group:
        for error in leaves(group):
            print(f"paddler-trio: {error}", file=sys.stderr)
        sys.exit(1)


async def _with_signals(body: Callable[[trio.Event], Awaitable[None]]) -> None:
    """The root of the tree: the daemon, and the task that listens for signals."""
    stop = trio.Event()
    async with trio.open_nursery() as root:
        await root.start(watch_signals, stop, root.cancel_scope, name="signals")
        await body(stop)
        root.cancel_scope.cancel(reason="the daemon has ended")
