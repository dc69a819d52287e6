"""Compare what status said with what a client met in the same time: pure, for any clock.

A client's time is covered by several samples of status, or by one where time stands still. What it
met contradicts them only if it contradicts all of them: between two samples a fleet may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

Outcome: TypeAlias = Literal["answered", "waits", "full", "late", "failed"]
"""``waits``: it has no slot at once; ``full``: refused, since as many wait as may; ``late``: it
waited for as long as it may; ``failed``: in any other way that is no fault of its own."""
NOBODY = "no agent answers"
REFUSED = "refused with 503"
LAST_S = 1.0
"""Of the time of a request that ended in vain: it may have had a slot before, of an agent that
died."""
NOTICED_S = 0.2
"""What a client learns later than the balancer."""


@attrs.frozen(kw_only=True)
class Said:
    """What status said of a deployment at one moment, which was between two times.

    Args:
      free: slots.
      problems: the sentences of the list of problems.
      model: what the deployment desires.
    """

    since_s: float = 0.0
    until_s: float = 0.0
    state: str
    severity: str
    sentence: str
    follows: str
    meets: str
    answering: int
    free: int
    problems: tuple[str, ...] = ()
    model: str = ""

    @property
    def is_full(self) -> bool:
        return REFUSED in self.follows

    @property
    def is_well(self) -> bool:
        return self.severity == "ok" and not self.problems


@attrs.frozen(kw_only=True)
class Met:
    """What one client met, from when to when; ``model``: the one that wrote its answer."""

    since_s: float = 0.0
    until_s: float = 0.0
    outcome: Outcome
    words: str = ""
    model: str = ""


def faults_in(said: Said) -> Iterator[str]:
    """Yield what of one status contradicts the rest of it."""
    answers = said.answering > 0
    if answers == (NOBODY in said.sentence):
        yield f"{said.answering} answer: {said.sentence}"
    if (said.meets == "slot") != (said.free > 0):
        yield f"{said.free} slots are free, and a request meets {said.meets}"
    if not answers and said.severity == "ok":
        yield f"well, and nobody answers: {said}"
    if not answers and not said.follows and said.state not in ("empty", "unloaded"):
        yield f"nobody answers, and nothing follows: {said}"
    if said.meets == "queue" and not said.follows:
        yield f"requests wait for a turn, and nothing follows: {said}"


def contradictions(said: Sequence[Said], met: Met) -> Iterator[str]:
    """Yield what a client met that none of the samples of its time allows."""
    began_s, ended_s = met.until_s - LAST_S, met.until_s - NOTICED_S
    at_last = [s for s in said if began_s <= s.since_s and s.until_s <= ended_s]
    if met.outcome == "answered":
        if all(s.answering == 0 for s in said):
            yield "answered, while nobody answers"
        is_settled = all(s.state == "serving" and s.model == said[0].model for s in said)
        if met.model and is_settled and met.model != said[0].model:
            yield f"answered by {met.model}, while all serve {said[0].model}"
    if met.outcome == "waits" and all(s.meets == "slot" for s in said):
        yield "it waits, while a slot is free"
    if met.outcome == "full" and not any(s.is_full for s in said):
        yield "refused for a full queue that is not full"
    if met.outcome == "waits" and all(s.is_full for s in said):
        yield "taken, while requests are refused"
    if met.outcome == "late" and any(s.meets == "slot" for s in at_last):
        yield "it waited in vain, while a slot was free"
    if met.outcome in ("late", "failed") and all(s.is_well for s in said):
        yield "it failed, while all is well"
