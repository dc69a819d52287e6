"""Requests in words: in the log when they have ended, and in the printed tree until then."""

from __future__ import annotations

import structlog
import trio

from paddler_trio.nursery_tree.request import Buffered, Ended, Leased, Request, Stopping, Streaming
from paddler_trio.nursery_tree.request_endings import Failure, Stopped
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

log = structlog.get_logger("dispatch")


def log_end(request: Request) -> None:
    """One line, which the context of the request's task names."""
    match request.ending:
        case Failure(code, description):
            ending = f"{code} {description}"
        case Stopped():
            ending = "stopped"
        case _:
            ending = "done"
    named = {} if request.deployment == DEFAULT_DEPLOYMENT else {"deployment": request.deployment}
    log.info(
        "request ended",
        agents=request.agents,
        results=request.num_results,
        waited_s=round(request.waited_s, 3),
        took_s=round(trio.current_time() - request.arrived_s, 3),
        ending=ending,
        **named,
    )


def shown(request: Request, ahead: int | None) -> str:
    """Return, for the printed tree, why it waits, behind how many, or where it runs."""
    match request.phase:
        case Buffered():
            again = f", continuing after {len(request.tokens)} tokens" if request.tokens else ""
            return f"waits for a slot behind {ahead}{again}"
        case Leased(lease) | Streaming(lease):
            return f"on {lease.agent.label}, {request.num_results} results so far"
        case Stopping(lease):
            return f"waits for {lease.agent.label} to confirm a stop"
        case Ended():
            return "ending"
