"""``--dry-run``: what a change would do to each agent, asked of the balancer and its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from rich.text import Text

from paddler_trio.cli.exit_codes import DONE, FAILED
from paddler_trio.cli.management_client import AgentView, ManagementClient
from paddler_trio.cli.model.cache_run import AgentResult
from paddler_trio.cli.model.fit_display import FitAnswer, show_answers
from paddler_trio.cli.model.fit_run import answers_of
from paddler_trio.cli.swap.swap_outlook import (
    LOADS,
    NO_GAP,
    AgentOutlook,
    Gap,
    agent_outlook,
    expected_gap,
    seconds_words,
)
from paddler_trio.cli.terminal import printable, stdout
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import LocalToAgent, NoModel
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
