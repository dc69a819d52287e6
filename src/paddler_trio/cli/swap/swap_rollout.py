"""Waiting for a swap on a balancer that rolls changes out, and previewing one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.fleet.fleet_client import FleetClient
from paddler_trio.cli.fleet.fleet_words import EFFECTS, state_in
from paddler_trio.cli.fleet.issue_words import issues_words
from paddler_trio.cli.fleet.rollout_progress import Ending, RolloutProgress
from paddler_trio.cli.fleet.rollout_run import wait_and_show
from paddler_trio.cli.management_client import AgentView, ManagementClient
from paddler_trio.cli.model.cache_run import AgentResult
from paddler_trio.cli.model.fit_run import FitAnswer, answers_of, show_answers
from paddler_trio.cli.model.memory_words import chosen_words
from paddler_trio.cli.model.model_extras import Change
from paddler_trio.cli.swap.swap_display import Outcome
from paddler_trio.cli.swap.swap_outlook import (
    LOADS,
    NO_GAP,
    AgentOutlook,
    Gap,
    agent_outlook,
    expected_gap,
    seconds_words,
)
from paddler_trio.cli.terminal import DONE, FAILED, print_json, printable, stderr, stdout
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, LocalToAgent, NoModel
from paddler_trio.wire.trio.default_deployment import with_default
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.fit_messages import FitQuestion

DEFAULT = "default"
AGENT_KEY = "agent"


@attrs.frozen(kw_only=True)
class Preview:
    """The outlook of one deployment."""

    deployment: str
    change: str
    agents: list[AgentOutlook]
    answers: list[FitAnswer]
    gap: Gap

    @property
    def exit_code(self) -> int:
        """1 if the model does not fit an agent that it is for, or that cannot be said; agents of
        Paddler's have no answer."""
        asked = (each for each in self.answers if not each.is_paddlers)
        return DONE if all(each.fits for each in asked) else FAILED

    def show(self) -> None:
        """On standard output."""
        console = stdout()
        if self.answers:
            show_answers(self.answers)
        for each in self.agents:
            console.print(Text(printable(f"{each.agent}: {each.words}")))
        how_long = "unknown" if self.gap.gap_s is None else seconds_words(self.gap.gap_s)
        if self.gap.gap_s == 0:
            how_long = "none"
        console.print(
            Text(printable(f"{self.deployment}: expected gap: {how_long}: {self.gap.why}"))
        )

    def plain(self) -> dict[str, object]:
        """Return the document for ``--json``."""
        return {
            "deployment": self.deployment,
            "change": self.change,
            "agents": [
                {**attrs.asdict(outlook), "problem": answer.problem, "report": answer.report}
                for outlook, answer in zip(self.agents, self.answers, strict=True)
            ],
            "expected_gap_s": self.gap.gap_s,
            "gap_reason": self.gap.why,
        }


def preview(
    client: ManagementClient,
    question: FitQuestion,
    *,
    deployment: str,
    change: str,
    where: Sequence[str] = (),
    rolls: bool,
    max_unavailable: int = 1,
) -> Preview:
    """Ask every agent that the deployment is for.

    Args:
      question: the state that would be served.
      where: conditions on agents, ``label=value`` or ``agent=NAME``.
    """
    model, projection = question.state.model, question.state.multimodal_projection
    if change not in LOADS or isinstance(model, NoModel):
        why = NO_GAP.get(change, "agents give up their model")
        return Preview(
            deployment=deployment,
            change=change,
            agents=[],
            answers=[],
            gap=Gap(gap_s=0.0, why=why),
        )
    plain = unstructure(question)
    assert isinstance(plain, dict)
    views = instances(client.fleet().agents, deployment, where)
    answers = answers_of(client, plain, views)
    is_fetched = not isinstance(model, LocalToAgent)
    cached = _cached(client, views) if is_fetched else {}
    agents = [
        agent_outlook(view, answer, models=(model, projection), cached=cached.get(view.id))
        for view, answer in zip(views, answers, strict=True)
    ]
    gap = expected_gap(change, agents, rolls=rolls, max_unavailable=max_unavailable)
    return Preview(deployment=deployment, change=change, agents=agents, answers=answers, gap=gap)


def instances(
    agents: Sequence[AgentView], deployment: str, where: Sequence[str]
) -> list[AgentView]:
    """Return for each host that meets ``where`` its instance of the deployment, else its first
    link."""
    found = {
        view.host or view.id: view
        for view in agents
        if view.deployment == DEFAULT and all(_meets(view, condition) for condition in where)
    }
    for view in agents:
        if view.deployment == deployment and view.host in found:
            found[view.host] = view
    return sorted(found.values(), key=lambda view: (view.label, view.id))


def _meets(host: AgentView, condition: str) -> bool:
    key, _, value = condition.partition("=")
    if key == AGENT_KEY:
        return value in {host.name, host.id}
    return host.labels.get(key) == value


def _cached(
    client: ManagementClient, views: Sequence[AgentView]
) -> Mapping[str, list[Mapping[str, object]]]:
    """The models in each agent's caches; without agents that cannot list them."""
    if not views:
        return {}
    lines = client.command_caches(None, {"agents": [view.id for view in views]})
    results = [AgentResult.of(line) for line in lines if "progress" not in line]
    return {
        result.id: [dict(model) for model in result.entries("models")]
        for result in results
        if result.answer is not None
    }


OUTCOMES = {
    Ending.COMPLETE: Outcome.ALL_SERVE.value,
    Ending.TIMED_OUT: Outcome.TIMEOUT.value,
    Ending.SUPERSEDED: Outcome.SUPERSEDED.value,
    Ending.FAILED: Outcome.SOME_FAILED.value,
}
"""Of ``--json``: the words that scripts know."""
RELOADS = "agents load the model anew, all at the same time"


def wait_for_swap(
    client: FleetClient,
    desired: BalancerDesiredState,
    extras: Extras,
    digest: str,
    *,
    is_new: bool,
    timeout_s: float,
    told: dict[str, object],
    as_json: bool,
) -> int:
    """Follow the rollout of ``default`` and print how it ended; returns the exit code.

    Args:
      digest: of what agents shall serve.
      is_new: it was stored just now.
      told: gets what ``--json`` has to tell.
    """
    number, spec = _revision_of(client, desired, extras)
    progress = RolloutProgress(
        number,
        {DEFAULT: spec},
        unchanged=frozenset() if is_new else frozenset({DEFAULT}),
    )
    waited = wait_and_show(client, progress, timeout_s=timeout_s, needs_agents=True)
    agents = [view for view in client.management.fleet().agents if view.deployment == DEFAULT]
    told["outcome"] = Outcome.NO_AGENT.value
    if waited.ended:
        (ended,) = waited.ended
        told["outcome"] = OUTCOMES.get(ended.ending, ended.ending.value)
        told["reason"] = ended.reason or None
    told["agents"] = [_told(view, digest) for view in agents]
    waited.tell()
    if not as_json and waited.exit_code == DONE:
        for line in _served(agents, digest, desired):
            stdout().print(Text(printable(line)))
    for view in agents if waited.exit_code == FAILED else ():
        if view.phase == "failed" and view.wanted_state == digest:
            why = view.detail or issues_words(view.issues)
            stderr().print(Text(printable(f"failed on {view.label}: {why}")))
    return waited.exit_code


def preview_swap(
    client: ManagementClient,
    desired: BalancerDesiredState,
    extras: Extras,
    different: Sequence[Change],
    *,
    as_json: bool,
) -> int:
    """Print what storing this would do to each agent; returns the exit code: 1 unless it fits.

    Args:
      different: the fields that would change, printed already.
    """
    fleet = FleetClient(client)
    change = "none"
    if different:
        change = "reload" if any(each.needs_reload for each in different) else "in_place"
    rolls, max_unavailable = True, 1
    where: tuple[str, ...] = ()
    try:
        state = state_in(fleet.state().revision)
    except BalancerRefusedError as error:
        if error.status != 404:
            raise
        rolls = False
    else:
        plain = unstructure(with_default(state, desired, extras))
        assert isinstance(plain, dict)
        classes = {each.deployment: each.change for each in fleet.changes(plain)}
        change = classes.get(DEFAULT, "none")
        spec = state.find(DEFAULT)
        if spec is not None:
            where, max_unavailable = spec.where, spec.rollout.max_unavailable
    made = preview(
        client,
        FitQuestion(state=desired, extras=extras),
        deployment=DEFAULT,
        change=change,
        where=where,
        rolls=rolls,
        max_unavailable=max_unavailable,
    )
    if as_json:
        print_json({**made.plain(), "changes": [attrs.asdict(each) for each in different]})
    else:
        words = change.replace("_", " ")
        stdout().print(f"class of change: {words}: {EFFECTS.get(change, RELOADS)}")
        made.show()
    return made.exit_code


def _revision_of(
    client: FleetClient, desired: BalancerDesiredState, extras: Extras
) -> tuple[int, Mapping[str, object] | None]:
    """The revision that has this as ``default``, and ``default`` itself; another one may have been
    stored since."""
    revision = client.state().revision
    spec = with_default(state_in(revision), desired, extras).find(DEFAULT)
    plain = None if spec is None else unstructure(spec)
    assert plain is None or isinstance(plain, dict)
    if revision.spec(DEFAULT) != plain:
        for earlier in client.history()[0]:
            if earlier.spec(DEFAULT) == plain:
                return earlier.revision, plain
    return revision.revision, plain


def _told(view: AgentView, digest: str) -> dict[str, object]:
    serves = view.slots_total > 0 if view.is_paddlers else view.served_state == digest
    verdict = "serving" if serves else "failed" if view.phase == "failed" else "pending"
    reason = None if serves else view.detail or issues_words(view.issues) or None
    return {**attrs.asdict(view), "verdict": verdict, "reason": reason}


def _served(
    agents: Sequence[AgentView], digest: str, desired: BalancerDesiredState
) -> Iterator[str]:
    """The last lines: who serves it, and what they chose by themselves."""
    serving = sorted(
        (view for view in agents if view.is_paddlers or view.served_state == digest),
        key=lambda view: view.label,
    )
    yield f"served by {', '.join(view.label for view in serving)}: {text_of(desired.model)}"
    for view in serving:
        if words := chosen_words(view):
            yield f"{view.label} chose {words}"
