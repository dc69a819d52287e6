"""One line in the log for each request that has ended."""

from __future__ import annotations

import structlog
import trio

from paddler_trio.nursery_tree.request import Failure, Request, Stopped

log = structlog.get_logger("dispatch")


def log_end(request: Request) -> None:
    match request.ending:
        case Failure(code, description):
            ending = f"{code} {description}"
        case Stopped():
            ending = "stopped"
        case _:
            ending = "done"
    log.info(
        "request ended",
        request=request.id,
        agents=request.agents,
        results=request.num_results,
        waited_s=round(request.waited_s, 3),
        took_s=round(trio.current_time() - request.arrived_s, 3),
        ending=ending,
    )
