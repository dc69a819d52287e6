"""Say what is true of a deployment: who answers, with what, and what requests meet now."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.truth.truths import Severity, Truth, plural, span

Meets: TypeAlias = Literal["slot", "queue", "hold", "nobody"]
"""What a request that comes now meets: a free slot; a turn in the queue, for agents that answer;
a queue that nobody answers, with something under way that will; the same with nothing under way."""
UNDER_WAY: Final = frozenset({"prefetching", "canary", "rolling", "rolling_back"})
STATES: Final = (
    *("serving", "changing", "partly", "loading", "failed", "drained", "waiting", "unloaded"),
    "empty",
)


@attrs.frozen(kw_only=True)
class RolloutFacts:
    """A rollout that is shown.

    Args:
      aim: the digest of what it goes to now, which is back to the good state if it failed.
      revision: the words for that.
      done, total: agents that serve that, and all that are in it.
      is_wanted: an operator asked for the state that it goes back to.
    """

    phase: str
    aim: str
    revision: str
    reason: str = ""
    done: int = 0
    total: int = 0
    is_wanted: bool = False


@attrs.frozen(kw_only=True)
class AgentCounts:
    """The agents of a deployment in numbers.

    Args:
      connected: all that are here.
      answering: those that get requests, with this model or the one before.
      current: of those, the ones that have what is desired.
      slots, free: of those that answer.
      failed, ejected, drained, unloaded, moving: of those that are here.
      reason: why one of those failed that did.
    """

    connected: int = 0
    answering: int = 0
    current: int = 0
    slots: int = 0
    free: int = 0
    failed: int = 0
    ejected: int = 0
    drained: int = 0
    unloaded: int = 0
    moving: int = 0
    reason: str = ""


@attrs.frozen(kw_only=True)
class DeploymentFacts:
    """A deployment and its agents.

    Args:
      wanted: how many agents shall serve it.
      is_all: every agent that may.
      offline: known agents of it that were lost and have not come back.
      waiting: requests in its queue; while slots are free, only those that the model or the
        revision must go on with that began them, and that no agent with a free slot serves.
      is_full: no more of them are taken.
      expected: what is under way that a request without an agent waits for; empty for nothing.
      left_s: how long that will take; None if that is not known.
      timeout_s: how long a request waits for nothing.
    """

    is_empty: bool = False
    wanted: int = 0
    is_all: bool = False
    agents: AgentCounts = AgentCounts()
    offline: int = 0
    waiting: int = 0
    is_full: bool = False
    expected: str = ""
    left_s: float | None = None
    timeout_s: float = 0.0
    rollout: RolloutFacts | None = None

    @property
    def meets(self) -> Meets:
        """See ``Meets``."""
        if self.agents.free > 0:
            return "slot"
        if self.agents.slots > 0:
            return "queue"
        return "hold" if self.expected else "nobody"


def truth_of_deployment(facts: DeploymentFacts) -> Truth:
    """Return what is true of it now."""
    if facts.is_empty:
        return Truth(
            state="empty",
            word="no model",
            severity="quiet",
            sentence="no model is desired",
            todo="choose a model",
        )
    agents = facts.agents
    if not agents.answering:
        return _unanswered(facts)
    who = f"{plural(agents.answering, 'agent')} {_verb('answer', agents.answering)}"
    who = f"{who} with {plural(agents.slots, 'slot')}"
    rollout = facts.rollout
    if rollout is not None and rollout.phase in UNDER_WAY:
        is_failing = rollout.phase == "rolling_back" and not rollout.is_wanted
        return Truth(
            state="changing",
            word="changing",
            severity="warn" if is_failing else "info",
            sentence=f"{who}; {_how_far(rollout)}",
            follows=_follows(facts),
        )
    if not agents.current:
        failed = agents.failed > 0
        return Truth(
            state="failed" if failed else "changing",
            word="serves what was before",
            severity="warn" if failed else "info",
            sentence=f"{who}, all of them with what was desired before{_reason_of(facts)}",
            follows=_follows(facts),
            todo="choose another model, or undo the change" if failed else "",
        )
    if facts.wanted > agents.current or facts.offline:
        return Truth(
            state="partly",
            word="partly serving",
            severity="warn",
            sentence=f"{who}; {_missing(facts)}",
            follows=_follows(facts),
            todo="look at the agents that are missing",
        )
    return Truth(
        state="serving", word="serving", severity="ok", sentence=who, follows=_follows(facts)
    )


def _unanswered(facts: DeploymentFacts) -> Truth:
    """Nobody answers: say why, and what becomes of requests."""
    agents = facts.agents
    waits = f"requests wait, and end with 504 after {span(facts.timeout_s)}"
    left = "" if facts.left_s is None else span(facts.left_s)
    until = f"requests wait until it is there{', about ' if left else ''}{left}"
    back = (
        f"requests wait {left or 'a while'} for it, and end with 504 {span(facts.timeout_s)} later"
    )
    if facts.is_full:
        waits = until = back = "as many requests wait as may: others are refused with 503"
    if facts.expected and not agents.connected and facts.offline:
        return _none("failed", "no agent", "bad", facts.expected, back, "start its agents again")
    if facts.expected:
        return _none("loading", "loading", "info", facts.expected, until)
    if agents.failed or agents.ejected:
        return _none(
            "failed",
            "failed",
            "bad",
            agents.reason.rstrip(".") or "every agent has failed",
            waits,
            "choose another model or other settings, or undo the change",
        )
    if agents.connected and agents.drained == agents.connected:
        return _none(
            "drained", "drained", "warn", "all of its agents are drained", waits, "give one work"
        )
    if agents.connected and agents.drained + agents.unloaded == agents.connected:
        why = "operators unloaded or drained all of its agents"
        if agents.unloaded == agents.connected:
            why = "operators unloaded it on all of its agents"
        return _none("drained", "unloaded", "warn", why, waits, "let one load it again")
    if agents.moving:
        return _none("loading", "loading", "info", "its agents load the model", waits)
    if agents.connected:
        return _none("waiting", "not answering", "bad", "none of its agents takes requests", waits)
    if facts.offline:
        lost = f"{plural(facts.offline, 'agent')} that served it {_verb('is', facts.offline)} gone"
        return _none("failed", "no agent", "bad", lost, waits, "start its agents again")
    if facts.rollout is not None and facts.rollout.phase in UNDER_WAY and facts.rollout.reason:
        why = facts.rollout.reason.rstrip(".")
        return _none("waiting", "no agent", "bad", why, waits, "make room for it, or add an agent")
    if facts.wanted == 0 and not facts.is_all:
        return _none("unloaded", "unloaded", "quiet", "no agent is asked to have it loaded", "")
    return _none("waiting", "no agent", "warn", "there is no agent for it", waits, "add an agent")


def _none(
    state: str, word: str, severity: Severity, why: str, follows: str, todo: str = ""
) -> Truth:
    return Truth(
        state=state,
        word=word,
        severity=severity,
        sentence=f"no agent answers: {why}",
        follows=follows,
        todo=todo,
    )


def _follows(facts: DeploymentFacts) -> str:
    """Return what requests meet while agents answer."""
    if facts.meets == "slot":
        if not facts.waiting:
            return ""
        bound = f"{plural(facts.waiting, 'request')} {_verb('wait', facts.waiting)}"
        return f"{bound} for the model that began the answer"
    waiting = f"{plural(facts.waiting, 'request')} {_verb('wait', facts.waiting)} for a turn"
    if facts.is_full:
        return f"{waiting}, as many as may: others are refused with 503"
    return waiting if facts.waiting else "all slots are taken: a request waits for its turn"


def _how_far(rollout: RolloutFacts) -> str:
    count = rollout.done if rollout.total > 1 else 1
    back = f"{_verb('is', count)} back at"
    verb = back if rollout.phase == "rolling_back" else _verb("has", count)
    return f"{rollout.done} of {plural(rollout.total, 'agent')} {verb} {rollout.revision}"


def _missing(facts: DeploymentFacts) -> str:
    served = facts.agents.current
    if facts.offline:
        return f"{plural(facts.offline, 'agent')} {_verb('is', facts.offline)} offline"
    return f"{served} of {plural(facts.wanted, 'agent')} {_verb('has', served)} what is desired"


def _reason_of(facts: DeploymentFacts) -> str:
    if facts.rollout is not None and facts.rollout.reason:
        return f": {facts.rollout.reason.rstrip('.')}"
    reason = facts.agents.reason
    return f": {reason.rstrip('.')}" if reason else ""


_PLURALS: Final = {"is": "are", "has": "have"}


def _verb(verb: str, count: int) -> str:
    """Return the form of a verb that goes with so many."""
    if count == 1:
        return verb if verb in _PLURALS else f"{verb}s"
    return _PLURALS.get(verb, verb)
