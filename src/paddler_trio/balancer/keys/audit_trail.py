"""Record what operators did, as those who carry it out report it: one record an action.

A handler records what it has done, with what only it can name: the target, digests, a revision. A
request that may change something and of which no handler recorded anything gets a record of its
method and path from :func:`audited`, so that no route is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import App, AuditTrail, Exchange

DONE: Final = "done"
NOT_FOUND: Final = 404
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def audited(
    app: App,
    trail: AuditTrail,
    *,
    changes: Callable[[Exchange], bool] = lambda exchange: True,
) -> App:
    """``app``, of whose requests each that may change something leaves a record.

    Args:
      changes: whether a request with another method than to read may change something; others have
        the records of their handlers only.
    """

    async def answer(exchange: Exchange) -> None:
        exchange.audit = trail
        if not exchange.is_http or exchange.method in READS or not changes(exchange):
            await app(exchange)
            return
        recorded = exchange.recorded = list[str]()
        send = exchange.send
        status: int | None = None

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            exchange.send = watched_send
            await app(exchange)
        finally:
            if not recorded and status != NOT_FOUND:  # what is not there was not changed
                action = f"{exchange.method} {exchange.path}"
                trail.record(exchange, action, outcome=outcome_of(status))

    return answer


def outcome_of(status: int | None) -> str:
    """Return the outcome that a record has for a request that was answered with ``status``; None
    for one that was not."""
    if status is None:
        return "cut off"
    if status < 400:
        return DONE
    return f"{'refused' if status < 500 else 'failed'}: {status}"
