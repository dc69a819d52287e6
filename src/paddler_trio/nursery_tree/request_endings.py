"""The ways in which requests end, and why the dispatcher ends them, in words for clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

import attrs

from paddler_trio.nursery_tree.agent_kinds import AgentKind
from paddler_trio.wire.trio.paddler_translation import UnsupportedByPaddler
from paddler_trio.wire.trio.request_frame import TooLong


@attrs.frozen
class Completed:
    """The agent sent the ending result, and it was passed on."""


@attrs.frozen
class Failure:
    """An ending that no agent produced; ``code`` mirrors HTTP status numbers."""

    code: int
    description: str
    blames_agent: bool = attrs.field(default=False, eq=False)
    """It counts against the health of the agent that held the request."""


@attrs.frozen
class Stopped:
    """The client is gone or asked to stop; nothing more is sent to it."""


Ending: TypeAlias = Completed | Failure | Stopped


SHUTTING_DOWN: Final = Failure(503, "balancer is shutting down")
MOVED: Final = Failure(503, "another process has taken over from this balancer: send it again")
OVERFLOW: Final = Failure(503, "Buffered requests overflow")
DISPLACED: Final = Failure(
    503, "Buffered requests overflow; it made room for a client that has fewer requests waiting"
)
BUFFERED_TOO_LONG: Final = Failure(504, "Waiting for available slot timed out")
CUT_OFF: Final = Failure(502, "Response channel closed before terminator")


def too_old_for(feature: str) -> Failure:
    return Failure(501, f"the agents that are connected are older than {feature}: update them")


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
    """Return why agents of Paddler's alone cannot take a request."""
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


def revision_gone(revision: str, waited_s: float) -> Failure:
    """Return why no agent can go on with a call that was begun with this revision."""
    words = (
        f"This call was begun with revision {revision[:12]}, which no agent has served "
        f"for {round(1000 * waited_s)}ms; send the whole call again"
    )
    return Failure(502, words)


def stranded(num_tokens: int, waited_s: float, ready: Collection[AgentKind]) -> Failure:
    """Return why no agent can go on with an answer; ``ready``: the kinds of those that serve."""
    words = (
        f"The agent was lost after {num_tokens} tokens, and no agent that can "
        f"continue the answer connected within {round(1000 * waited_s)}ms"
    )
    if any(kind.continues for kind in ready):
        words = f"{words}; the others serve a different model"
    elif ready:
        words = f"{words}; the others are Paddler 4.1 agents, which continue no answer"
    return Failure(502, words)
