"""The kinds of agents: what each can do, and by what it shows whether it serves what it shall.

An agent is of one kind from its registration on, and so are its features: what is done with it
differs by a capability that is named here, or by its ``Readiness``, and by nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

import attrs

from paddler_trio.scheduler.dispatch.swap_gate import SwapGate
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio import trio_link
from paddler_trio.wire.trio.operations.operator_orders import ORDERS
from paddler_trio.wire.trio.prompt_stages import FEATURE
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL, Report

MAX_FEATURES_BYTES: Final = 256
TRIO_OFFERS: Final = frozenset({SUBPROTOCOL})
"""The offers of an agent of ours, which requests need that Paddler's do not understand."""
KEEPS_OLD_MODEL: Final = frozenset({"downloading", "loading", "probing", "failed"})
"""Phases in which an agent that cannot serve the desired state (yet) may serve the one before it;
it reports which one, or none."""


class Feature(Enum):
    """Something that an agent of ours may understand: it names what it does as it dials."""

    TRACES = FEATURE
    """It takes the names of requests in logs and traces."""
    BOUNDS = trio_link.BOUND
    """It hands back what another model than the one in force must answer."""
    BESIDE = trio_link.BESIDE
    """It says whether it would load a model beside the one in force."""
    INFILL = trio_link.INFILL
    """It understands prompts with a gap to fill."""
    CONTEXT = trio_link.CONTEXT
    """It understands prompts behind a context."""
    FOLLOWS = trio_link.FOLLOWS
    """It can be told that another process takes over."""
    ORDERS = ORDERS
    """It takes orders of operators."""


def features_in(header: bytes) -> frozenset[Feature]:
    """Return the features that an agent names; those that are not known here are left out."""
    named = header[:MAX_FEATURES_BYTES].split(b",")
    return frozenset(feature for feature in Feature if feature.value in named)


class Reporting(Protocol):
    """An agent, as its ``Readiness`` looks at it."""

    id: str
    status: SlotAggregatedStatusSnapshot
    report: Report | None
    is_suspended: bool

    @property
    def slots_processing(self) -> int: ...


@attrs.define(eq=False)
class Readiness:
    """Judges whether an agent serves what it shall; there is one for each kind, below."""

    admissible: frozenset[str] | None = attrs.field(default=None, init=False)
    """The digests of the states that it may serve to get work; None for the one sent to it."""
    may_stand_in: bool = attrs.field(default=False, init=False)
    """No agent of its deployment serves an admissible state: one that still serves the state before
    it gets work."""
    sent_digest: str | None = attrs.field(default=None, init=False)
    sent_revision: str | None = attrs.field(default=None, init=False)
    """Digest of the state sent last, with its extras also where they cannot be sent: those who
    serve the same state for a request have the same."""

    def await_state(self) -> None:
        """It has just registered, and was sent nothing yet."""

    def sent(self, digest: str, revision: str, *, slots_total: int, now_s: float) -> bool:
        """A state is about to be sent; False if it is the one sent before."""
        self.sent_revision = revision
        is_new, self.sent_digest = digest != self.sent_digest, digest
        return is_new

    def released(self, now_s: float) -> None:
        """A request has left the agent."""

    def judged(self, agent: Reporting, now_s: float) -> tuple[bool, bool]:
        """Return whether the agent can get work, and whether it can by right: it serves a state
        that is admissible, and does not only stand in. Ask at every status."""
        raise NotImplementedError

    def revision(self, agent: Reporting) -> str | None:
        """Return the digest of the state that the agent serves, as ``sent_revision`` has it."""
        raise NotImplementedError


@attrs.define(eq=False)
class ReadyByReport(Readiness):
    """An agent of ours reports which state it serves: the answer is a comparison."""

    def judged(self, agent: Reporting, now_s: float) -> tuple[bool, bool]:
        report = agent.report
        serves_desired = report is not None and (
            report.served_state == self.sent_digest
            if self.admissible is None
            else report.served_state in self.admissible and self._has_heard(report)
        )
        return serves_desired or (self.may_stand_in and self._keeps_old_model(report)), (
            serves_desired
        )

    def revision(self, agent: Reporting) -> str | None:
        return None if agent.report is None else agent.report.served_state

    def _has_heard(self, report: Report) -> bool:
        """It reported after it was sent its newest state: until then it may be about to drain."""
        return self.sent_digest in (None, report.wanted_state, report.served_state)

    def _keeps_old_model(self, report: Report | None) -> bool:
        """It was sent what is desired now, and serves what was desired before."""
        return (
            report is not None
            and report.wanted_state == self.sent_digest
            and report.served_state is not None
            and report.phase in KEEPS_OLD_MODEL
        )


@attrs.define(eq=False)
class ReadyByGate(Readiness):
    """An agent of Paddler's reports no state: its slots show what it does. One that gets work
    serves what was sent to it."""

    awaits_state: bool = attrs.field(default=False, init=False)
    """It has just registered: what its slots serve shows after the next state."""
    _was_applied: bool = attrs.field(default=False, init=False)
    _gate: SwapGate = attrs.field(factory=SwapGate, init=False)

    def await_state(self) -> None:
        self.awaits_state = True

    def sent(self, digest: str, revision: str, *, slots_total: int, now_s: float) -> bool:
        self.awaits_state = False
        is_new = super().sent(digest, revision, slots_total=slots_total, now_s=now_s)
        if is_new:
            self._gate.close(slots_total=slots_total, now_s=now_s)
        return is_new

    def released(self, now_s: float) -> None:
        self._gate.released(now_s=now_s)

    def judged(self, agent: Reporting, now_s: float) -> tuple[bool, bool]:
        status = agent.status
        applied = status.state_application_status is AgentStateApplicationStatus.APPLIED
        if self._was_applied and not applied:  # it begins to apply a state that was delayed
            self._gate.close(slots_total=status.slots_total, now_s=now_s)
        self._was_applied = applied
        serves = not self.awaits_state and self._gate.is_open(
            slots_total=status.slots_total, slots_processing=agent.slots_processing, now_s=now_s
        )
        return serves, serves

    def revision(self, agent: Reporting) -> str | None:
        return self.sent_revision


@attrs.define(eq=False)
class ReadyByServer(Readiness):
    """An agent in front of a server is ready while that has slots and answers."""

    def judged(self, agent: Reporting, now_s: float) -> tuple[bool, bool]:
        serves = agent.status.slots_total > 0 and not agent.is_suspended
        return serves, serves

    def revision(self, agent: Reporting) -> str | None:
        return agent.id  # so a call that is pinned to it goes to no other server


@attrs.frozen(eq=False, kw_only=True)
class AgentKind:
    """One kind of agents and what they can do; there are the three below.

    Args:
      protocol: as operators are shown it.
      readiness: by what they show whether they serve what they shall.
      is_extended: messages that Paddler's protocol does not have go both ways.
      forwards: they pass requests on to a server, and load no model themselves.
      answers_questions: about the model, the fit of another one, the cache and their tasks.
      reports_state: they say which state they serve, and of what model.
      reports_tokens: they say which tokens their results were made of, and when a request is
        prepared; tokens of one pass come together.
      continues: they go on after tokens that another agent sampled.
      isolates: they keep apart what may have killed an engine.
      runs_instances: they serve other deployments beside ``default``.
      generates_beside_embeddings: one model makes tokens and embeddings.
    """

    protocol: str
    readiness: type[Readiness]
    is_extended: bool = True
    forwards: bool = False
    answers_questions: bool = True
    reports_state: bool = True
    reports_tokens: bool = True
    continues: bool = True
    isolates: bool = True
    runs_instances: bool = True
    generates_beside_embeddings: bool = True

    def __repr__(self) -> str:
        return f"<AgentKind {self.protocol}{' in front of a server' if self.forwards else ''}>"

    def offers(self, features: frozenset[Feature]) -> frozenset[str]:
        """Return what requests may need of an agent with these features."""
        if self.forwards:
            return frozenset({"upstream"})
        if not self.is_extended:
            return frozenset()
        named = features & {Feature.INFILL, Feature.CONTEXT}
        return TRIO_OFFERS.union(each.value.decode() for each in named)


TRIO: Final = AgentKind(protocol=SUBPROTOCOL, readiness=ReadyByReport)
UPSTREAM: Final = AgentKind(protocol=SUBPROTOCOL, readiness=ReadyByServer, forwards=True)
PADDLER: Final = AgentKind(
    protocol="paddler-4.1",
    readiness=ReadyByGate,
    is_extended=False,
    answers_questions=False,
    reports_state=False,
    reports_tokens=False,
    continues=False,
    isolates=False,
    runs_instances=False,
    generates_beside_embeddings=False,
)
