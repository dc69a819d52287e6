"""Restart a child that failed for outside reasons; let everything else rise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import structlog
import trio

from paddler_trio.errors import ChildGaveUpError, one_line
from paddler_trio.system.printed_tree import forget_this_task, history_of_this_task
from paddler_trio.system.restart_budget import RestartBudget

log = structlog.get_logger("supervise")


@attrs.frozen
class Child:
    """What to run, which crashes are the outside world's fault, and how many are forgiven.

    ``on_crash`` is called with each; with ``wait_for_refill`` a spent budget means a
    long pause instead of giving up: right for what only time or an operator can heal.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    restart_on: tuple[type[Exception], ...]
    budget: RestartBudget
    wait_for_refill: bool = False
    on_crash: Callable[[BaseException], None] = lambda crash: None


async def supervise(child: Child) -> None:
    """Run ``child`` again after each forgiven crash; return when it returns."""
    history = history_of_this_task()
    try:
        while True:
            crash: ExceptionGroup[Exception] | None = None
            try:
                await child.run()
            except* child.restart_on as group:  # bugs, Cancelled and Ctrl-C pass through
                crash = group
            if crash is None:
                return
            reason = one_line(crash)
            history.restarts += 1
            history.last_crash = reason
            child.on_crash(crash)
            now_s = trio.current_time()
            pause_s = child.budget.crashed(now_s)
            if pause_s is None:
                if not child.wait_for_refill:
                    raise ChildGaveUpError(
                        f"{child.name} crashed more than {child.budget.max_restarts} times in "
                        f"{child.budget.period_s:g} s; the last time: {reason}"
                    ) from crash
                pause_s = child.budget.refilled_in_s(now_s)
            log.error("child crashed", child=child.name, reason=reason, again_in_s=pause_s)
            await trio.sleep(pause_s)
    finally:
        forget_this_task()
