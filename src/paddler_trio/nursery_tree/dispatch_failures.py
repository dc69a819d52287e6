"""The endings that the dispatcher gives requests, in words for their clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.request import Failure, Request
from paddler_trio.scheduler.truth.request_truth import CANCELLED_CODE
from paddler_trio.wire.trio.paddler_translation import UnsupportedByPaddler
from paddler_trio.wire.trio.request_frame import TooLong

SHUTTING_DOWN: Final = Failure(503, "balancer is shutting down")
MOVED: Final = Failure(503, "another process has taken over from this balancer: send it again")
OVERFLOW: Final = Failure(503, "Buffered requests overflow")
DISPLACED: Final = Failure(
    503, "Buffered requests overflow; it made room for a client that has fewer requests waiting"
)
BUFFERED_TOO_LONG: Final = Failure(504, "Waiting for available slot timed out")
OLD_FOR_INFILL: Final = Failure(
    501,
    "the agents that are connected are of a version before infill: update them, or write the "
    "prompt with the model's own markers",
)
CUT_OFF: Final = Failure(502, "Response channel closed before terminator")
CANCELLED: Final = Failure(CANCELLED_CODE, "An operator cancelled this request")


def no_such_deployment(name: str) -> Failure:
    return Failure(404, f"There is no deployment {name[:80]!r}")


def other_kind(name: str, *, is_upstream: bool) -> Failure:
    """A deployment is of models or of servers, and the request is for the other kind."""
    if is_upstream:
        words = (
            f"The deployment {name[:80]!r} is of servers that answer HTTP themselves: ask it for "
            "one of their own paths, such as /v1/chat/completions"
        )
    else:
        words = f"The deployment {name[:80]!r} has no servers to forward a request to"
    return Failure(501, words)


def silent_server(response_timeout_s: float) -> Failure:
    words = (
        f"The upstream server sent nothing for {response_timeout_s:g} s. "
        "Increase --reverseproxy-response-timeout if its answers take longer."
    )
    return Failure(504, words, blames_agent=True)


def hopeless(reason: UnsupportedByPaddler | TooLong) -> Failure:
    """Why agents of Paddler's alone cannot take a request."""
    if isinstance(reason, TooLong):
        words = f"{_too_long(reason)} by the agents that are connected, which are Paddler's"
        return Failure(413, words)
    words = (
        f"{reason.field} is more than the agents that are connected can do: Paddler 4.1 "
        "has no such field; start an agent of this package, or leave the field out"
    )
    return Failure(501, words)


def too_long(excess: TooLong) -> Failure:
    return Failure(413, _too_long(excess))


def _too_long(excess: TooLong) -> str:
    return (
        f"The request has {excess.size_bytes} bytes as it is sent to an agent, "
        f"at most {excess.most_bytes} are taken"
    )


def token_timeout(item_timeout_s: float) -> Failure:
    words = (
        f"Inference timed out after {round(item_timeout_s * 1000)}ms waiting for next token. "
        "Increase --inference-item-timeout if the prompt requires longer processing."
    )
    return Failure(504, words, blames_agent=True)


def stranded(request: Request, waited_s: float, agents: Iterable[AgentConnection]) -> Failure:
    """Why no agent can go on with what was begun."""
    waited_ms = round(1000 * waited_s)
    if not request.tokens and request.pin is not None:
        revision = (request.pin.revision or "")[:12]
        words = (
            f"This call was begun with revision {revision}, which no agent has served "
            f"for {waited_ms}ms; send the whole call again"
        )
        return Failure(502, words)
    serving = [agent for agent in agents if agent.is_accepting]
    words = (
        f"The agent was lost after {len(request.tokens)} tokens, and no agent that can "
        f"continue the answer connected within {waited_ms}ms"
    )
    if any(agent.kind.continues for agent in serving):
        words = f"{words}; the others serve a different model"
    elif serving:
        words = f"{words}; the others are Paddler 4.1 agents, which continue no answer"
    return Failure(502, words)
