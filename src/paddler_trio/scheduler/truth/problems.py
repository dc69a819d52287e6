"""List what is wrong, over a whole fleet, with what follows and what to do about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.truth.agent_truth import AgentFacts, truth_of_agent, truth_of_gone
from paddler_trio.scheduler.truth.deployment_truth import DeploymentFacts, truth_of_deployment
from paddler_trio.scheduler.truth.truths import Severity, Truth, plural, span

Page: TypeAlias = Literal["fleet", "model", "requests", "logs", "keys", "metrics"]
EXPIRES_SOON_S: Final = 14 * 86_400.0
LATE_LOOP_S: Final = 0.5
_REPAIR: Final = "make room on its disk, or repair what it names"
_BEFORE: Final = "the agents serve what they served before"
_MIXED: Final = "some agents serve the new state, and some the one before"
_ENDS: Final = {
    "paused": ("it is paused", _MIXED, "resume or abort it"),
    "aborted": ("it was aborted", _BEFORE, "apply another change"),
    "rolled_back": ("it failed and was taken back", _BEFORE, "apply another change"),
}
"""Of a rollout by its phase: what is so, what follows and what to do."""


@attrs.frozen(kw_only=True)
class Problem:
    """One thing that is wrong.

    Args:
      id: the same as long as it is the same problem.
      subject: what it is about, as a title.
      page: where the panel shows more.
    """

    id: str
    subject: str
    severity: Severity
    sentence: str
    follows: str = ""
    todo: str = ""
    page: Page = "fleet"

    def view(self) -> Mapping[str, str]:
        """Return it as JSON."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class GoneFacts:
    """An agent that was here; see ``truth_of_gone``."""

    name: str
    said_goodbye: bool
    last_words: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class RefusedFacts:
    """Somebody who dials in as an agent and is refused: with which status, and how often."""

    address: str
    status: int
    times: int


@attrs.frozen(kw_only=True)
class BalancerFacts:
    """The balancer itself.

    Args:
      lag_s: how late its event loop is.
      certificate_left_s: None without TLS.
      audit_problem: why the audit log is not written; empty if it is.
      history_problem: why the history is not as it should be; empty if it is.
      suspicious: agents whose credentials may have been copied.
    """

    is_draining: bool = False
    waiting: int = 0
    most_waiting: int = 0
    lag_s: float = 0.0
    certificate_left_s: float | None = None
    audit_problem: str = ""
    history_problem: str = ""
    suspicious: Sequence[str] = ()


@attrs.frozen(kw_only=True)
class FleetFacts:
    """Everything that can be wrong.

    Args:
      agents: those that are here, and do not simply serve; by label.
    """

    deployments: Mapping[str, DeploymentFacts] = attrs.field(factory=dict)
    agents: Sequence[AgentFacts] = ()
    gone: Sequence[GoneFacts] = ()
    refused: Sequence[RefusedFacts] = ()
    balancer: BalancerFacts = BalancerFacts()


def problems_of(facts: FleetFacts) -> list[Problem]:
    """Return all of them, the worst first."""
    found = [
        *_of_balancer(facts.balancer),
        *_of_deployments(facts.deployments),
        *_of_agents(facts),
    ]
    return sorted(found, key=lambda each: each.severity != "bad")


def _of_balancer(facts: BalancerFacts) -> Iterator[Problem]:
    if facts.most_waiting and facts.waiting >= facts.most_waiting:
        yield Problem(
            id="balancer:full",
            subject="Queue",
            severity="bad",
            sentence=f"{plural(facts.waiting, 'request')} wait, which is as many as may",
            follows="further requests are refused with 503",
            todo="add agents or slots, or raise --max-buffered-requests",
            page="requests",
        )
    if facts.lag_s > LATE_LOOP_S:
        yield Problem(
            id="balancer:lag",
            subject="Balancer",
            severity="warn",
            sentence=f"it does everything {span(facts.lag_s)} late",
            follows="tokens arrive late",
            todo="look whether other processes take its processor time",
            page="metrics",
        )
    left_s = facts.certificate_left_s
    if left_s is not None and left_s < EXPIRES_SOON_S:
        is_over = left_s <= 0
        yield Problem(
            id="balancer:certificate",
            subject="Certificate",
            severity="bad" if is_over else "warn",
            sentence="it has expired" if is_over else f"it expires in {span(left_s)}",
            follows="clients refuse to connect" if is_over else "then clients refuse to connect",
            todo="renew it; the balancer reads the new files by itself",
        )
    yield from _of_files(facts)
    for name in facts.suspicious:
        yield Problem(
            id=f"credential:{name}",
            subject=f"Credential of {name}",
            severity="bad",
            sentence="somebody else may have a copy of it",
            todo=f"revoke it with `paddler-trio agents revoke {name}`, and let the machine join "
            "again",
        )


def _of_files(facts: BalancerFacts) -> Iterator[Problem]:
    """Yield its own files that it cannot write or read."""
    if facts.audit_problem:
        yield Problem(
            id="balancer:audit",
            subject="Audit log",
            severity="bad",
            sentence=f"it cannot be written: {facts.audit_problem.rstrip('.')}",
            follows="who changes what is kept in memory only",
            todo=_REPAIR,
            page="logs",
        )
    if facts.history_problem:
        yield Problem(
            id="balancer:history",
            subject="History",
            severity="warn",
            sentence=facts.history_problem.rstrip("."),
            follows="none: requests wait for nothing of it",
            todo=f"{_REPAIR}; a file that is set aside may be moved away",
            page="metrics",
        )


def _of_deployments(deployments: Mapping[str, DeploymentFacts]) -> Iterator[Problem]:
    for name, facts in deployments.items():
        truth, rollout = truth_of_deployment(facts), facts.rollout
        if truth.severity in ("warn", "bad"):
            yield _problem(f"deployment:{name}", f"Deployment {name}", truth, "model")
        elif rollout is not None and rollout.phase in _ENDS and not rollout.is_wanted:
            words, follows, todo = _ENDS[rollout.phase]
            reason = f": {rollout.reason.rstrip('.')}" if rollout.reason else ""
            yield Problem(
                id=f"rollout:{name}",
                subject=f"Rollout of {name}",
                severity="warn",
                sentence=f"{words}{reason}",
                follows=follows,
                todo=todo,
                page="model",
            )


def _of_agents(facts: FleetFacts) -> Iterator[Problem]:
    gone = [
        (
            each.name,
            truth_of_gone(
                said_goodbye=each.said_goodbye, last_words=each.last_words, reason=each.reason
            ),
        )
        for each in facts.gone
    ]
    here = [(agent.label, truth_of_agent(agent)) for agent in facts.agents]
    seen: set[str] = set()
    for name, truth in (*gone, *here):
        if truth.severity in ("warn", "bad") and name not in seen:
            seen.add(name)
            yield _problem(f"agent:{name}", f"Agent {name}", truth, "fleet")
    for refused in facts.refused:
        yield Problem(
            id=f"refused:{refused.address}",
            subject=f"Agent at {refused.address}",
            severity="warn",
            sentence=f"it was refused with {refused.status}, {plural(refused.times, 'time')}",
            follows="it serves nothing",
            todo="give it a key or a credential: `paddler-trio join-token new` makes a token here, "
            "`paddler-trio join` takes it there",
            page="logs",
        )


def _problem(name: str, subject: str, truth: Truth, page: Page) -> Problem:
    return Problem(
        id=name,
        subject=subject,
        severity=truth.severity,
        sentence=truth.sentence or truth.word,
        follows=truth.follows,
        todo=truth.todo,
        page=page,
    )
