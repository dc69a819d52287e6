"""One line in the log for each request that has ended."""

from __future__ import annotations

import structlog
import trio

from paddler_trio.nursery_tree.request import Failure, Request, Stopped
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

log = structlog.get_logger("dispatch")


def log_end(request: Request) -> None:
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
        request=request.id,
        agents=request.agents,
        results=request.num_results,
        waited_s=round(request.waited_s, 3),
        took_s=round(trio.current_time() - request.arrived_s, 3),
        ending=ending,
        **named,
    )
