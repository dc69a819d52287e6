"""Say how requests end, in the few words that are labels of metrics."""

from __future__ import annotations

from typing import Final

from paddler_trio.nursery_tree.request import SLOW_READER
from paddler_trio.nursery_tree.request_endings import (
    BUFFERED_TOO_LONG,
    DISPLACED,
    OVERFLOW,
    SHUTTING_DOWN,
    Completed,
    Ending,
    Failure,
    Stopped,
)
from paddler_trio.scheduler.truth.request_truth import CANCELLED_CODE, EndingFacts

_BY_FAILURE: Final = {
    OVERFLOW: "overflow",
    DISPLACED: "overflow",
    BUFFERED_TOO_LONG: "queue_timeout",
    SHUTTING_DOWN: "shutting_down",
    SLOW_READER: "slow_reader",
}
_BY_CODE: Final = {
    CANCELLED_CODE: "cancelled",
    404: "refused",
    413: "refused",
    501: "refused",
    502: "agent_lost",
    504: "token_timeout",
}


def request_outcome(ending: Ending | None, answered_with: int | None = None) -> str:
    """Return one of ``REQUEST_OUTCOMES``.

    Args:
      answered_with: the status of a refusal by its agent, or by the server behind it.
    """
    match ending:
        case Completed():
            facts = EndingFacts(ended="completed", code=refused_with(answered_with))
            return "completed" if facts.kind == "done" else facts.kind
        case Stopped():
            return "stopped"
        case Failure(code) as failure:
            return _BY_FAILURE.get(failure) or _BY_CODE.get(code, "failed")
        case None:
            return "failed"


def refused_with(status: int | None) -> int | None:
    """The status of an answer that is none; None for one that is."""
    return status if status is not None and status >= 400 else None


def queue_outcome(ending: Ending | None, *, has_agents: bool) -> str:
    """Return one of ``QUEUE_OUTCOMES``.

    Args:
      ending: of a request that left the queue for its end; None for one that got a slot.
      has_agents: an agent serves its deployment.
    """
    match ending:
        case None:
            return "dispatched"
        case Stopped():
            return "evicted_context_cancelled"
        case Failure(code) if code == CANCELLED_CODE:
            return "evicted_context_cancelled"
        case Failure() as failure if failure == OVERFLOW:
            return "rejected_capacity"
        case Failure() as failure if failure == BUFFERED_TOO_LONG:
            return "evicted_ttl" if has_agents else "evicted_no_endpoints"
        case Failure(code) if _BY_CODE.get(code) == "refused":
            return "rejected_other"
        case Failure() | Completed():
            return "evicted_other"


def retry_reason(how: str) -> str:
    """Return one of ``RETRY_REASONS``, from what observers are given with the loss of a slot."""
    if how.startswith("handed back"):
        return "handed_back"
    return "agent_left" if how == "lost: the agent left" else "connection_lost"
