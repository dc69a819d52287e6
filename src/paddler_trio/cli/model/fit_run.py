"""The questions of ``paddler-trio model fit``, and the answers as it prints them.

Each agent answers for its own devices, with its own llama.cpp, from the headers of the model's
files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import attrs
import typer
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerRefusedError, NoBalancerError
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.management_client import AgentView, ManagementClient
from paddler_trio.cli.model.model_extras import extras_of
from paddler_trio.cli.model.model_order import ModelRunOptions, state_of
from paddler_trio.cli.terminal import CANNOT_SAY, print_json, printable, stdout
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.scheduler.fit.fit_words import bytes_words
from paddler_trio.system.config import default_threads
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    NoModel,
    applicable_state,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS
from paddler_trio.wire.trio.fit_messages import FitQuestion

COLUMNS: Final[Mapping[str, str]] = {
    "device": "device",
    "weights": "weights",
    "kv": "KV",
    "compute": "compute",
    "projection": "projection",
    "draft": "draft",
    "other": "other",
    "needed": "sum",
    "free_now": "free now",
    "free_after": "free after old model",
    "reserve": "reserve",
    "limit": "limit",
    "available": "may take",
}
"""Fields of ``DeviceFit`` and their heads."""
SHOWN_IF_ANY: Final = frozenset({"projection", "draft", "limit"})


@attrs.frozen
class FitAnswer:
    """The answer of one agent; ``report`` is a ``FitReport`` as plain JSON, None without one."""

    agent: str
    fits: bool | None
    problem: str | None
    report: Mapping[str, object] | None = None
    is_paddlers: bool = False

    @classmethod
    def of(cls, agent: str, report: Mapping[str, object]) -> FitAnswer:
        fits, problem = report.get("fits"), report.get("problem")
        return cls(
            agent,
            fits if isinstance(fits, bool) else None,
            None if problem is None else str(problem),
            report,
        )


def show_answers(answers: list[FitAnswer]) -> None:
    """On standard output."""
    console = stdout()
    for answer in answers:
        devices = None if answer.report is None else answer.report.get("devices")
        rows = (
            [each for each in devices if isinstance(each, dict)]
            if isinstance(devices, list)
            else []
        )
        if rows:
            console.print(_table(rows))
        console.print(_verdict(answer))


def _table(devices: list[dict[str, object]]) -> Table:
    names = [
        name
        for name in COLUMNS
        if name not in SHOWN_IF_ANY or any(device.get(name) for device in devices)
    ]
    table = Table(box=None)
    for name in names:
        table.add_column(COLUMNS[name], justify="left" if name == "device" else "right")
    for device in devices:
        table.add_row(*(Text(printable(_cell(name, device.get(name)))) for name in names))
    return table


def _cell(name: str, value: object) -> str:
    if isinstance(value, int):
        return bytes_words(value)
    if value is None:
        return "none" if name == "limit" else "unknown"
    return str(value)


def _verdict(answer: FitAnswer) -> Text:
    words, colour = "cannot be said", "yellow"
    if answer.fits is not None:
        refusal = "does not load" if answer.report is None else "does not fit"
        words, colour = ("fits", "green") if answer.fits else (refusal, "red")
    parts = [f"{answer.agent}: {words}"]
    if answer.report is not None:
        parts.append(_shape(answer.report))
    if answer.problem:
        parts.append(answer.problem)
    hint = None if answer.report is None else answer.report.get("hint")
    if isinstance(hint, str) and hint:
        parts.append(hint)
    return Text(printable(": ".join(parts)), style=colour)


def _shape(report: Mapping[str, object]) -> str:
    """Return what the verdict is about."""
    chosen = report.get("chosen")
    is_chosen = chosen if isinstance(chosen, list) else []

    def named(name: str, value: object) -> str:
        return f"{name.replace('_', '-')} {value}{' (auto)' if name in is_chosen else ''}"

    most, slots = report.get("slot_context"), report.get("slots")
    each = f" ({most} tokens each)" if isinstance(most, int) and slots != 1 else ""
    layers, all_layers = report.get("n_gpu_layers"), report.get("n_layers")
    on_gpu = all_layers if isinstance(layers, int) and layers < 0 else layers
    return ", ".join(
        (
            named("context_size", report.get("context_size")),
            "1 slot" if slots == 1 else f"{slots} slots{each}",
            f"{report.get('k_cache_dtype')}/{report.get('v_cache_dtype')} KV",
            named("n_gpu_layers", f"{on_gpu} of {all_layers}"),
        )
    )


DOES_NOT_FIT: Final = 1
WOULD_NOT_LOAD: Final = 422
"""Status of an answer about a model that no memory would help."""
AT_ONCE: Final = 16
"""Agents that are asked at the same time."""
FIT_ANSWER_S: Final = 110.0


def run_fit(
    wish: ModelRunOptions,
    *,
    agent: str | None,
    here: bool,
    slots: int | None,
    as_json: bool,
    management: ManagementFlags,
) -> int:
    """Ask and print the answers; returns the exit status. BalancerRefusedError and the like."""
    if isinstance(wish.model, NoModel):
        raise typer.BadParameter("name a model", param_hint="SOURCE")
    answers = None if here else _asked(wish, agent, slots, management)
    if answers is None:
        here, answers = True, [_of_this_machine(_question(wish, None, None, slots or 1))]
    if as_json:
        print_json({"agents": [attrs.asdict(answer) for answer in answers]})
    else:
        show_answers(answers)
    return _exit_code(answers, is_one=here or agent is not None)


def _exit_code(answers: list[FitAnswer], *, is_one: bool) -> int:
    """Paddler's agents have no answer; they count only where one was asked for."""
    counted = [answer for answer in answers if is_one or not answer.is_paddlers]
    if any(answer.fits is False for answer in counted):
        return DOES_NOT_FIT
    return 0 if counted and all(answer.fits for answer in counted) else CANNOT_SAY


def _question(
    wish: ModelRunOptions,
    raw_state: Mapping[str, object] | None,
    raw_extras: Mapping[str, object] | None,
    slots: int | None,
) -> FitQuestion:
    """Return a question in which what is not given is as desired now, but for another
    projection."""
    current = BalancerDesiredState.default() if raw_state is None else state_of(raw_state)
    if wish.projection is None and wish.model != current.model:
        wish = attrs.evolve(wish, projection=NoModel())
    extras = NO_EXTRAS if raw_extras is None else extras_of(raw_extras)
    return FitQuestion(state=wish.applied_to(current), extras=wish.extras_over(extras), slots=slots)


def _asked(
    wish: ModelRunOptions, agent: str | None, slots: int | None, management: ManagementFlags
) -> list[FitAnswer] | None:
    """Return the answers of agents; None where nobody asked for a certain balancer, and none runs
    at the usual address."""
    try:
        with ManagementClient.open(management) as client:
            return _of_agents(client, wish, agent, slots)
    except NoBalancerError:
        if agent is not None or management != ManagementFlags():
            raise
        words = f"no balancer runs at {management.address}: judging this machine"
        print(words, file=sys.stderr)
        return None


def _of_agents(
    client: ManagementClient, wish: ModelRunOptions, only: str | None, slots: int | None
) -> list[FitAnswer]:
    question = _question(wish, *client.extended_state(), slots)
    plain = unstructure(question)
    assert isinstance(plain, dict)
    fleet = client.fleet().agents
    if only is not None:
        named = [view for view in fleet if view.id == only]
        fleet = named or [view for view in fleet if view.name == only]
        if len({view.host or view.id for view in fleet}) != 1:
            client.ask_agent("POST", only, "fit", body=plain)  # refused, with those that there are
        fleet = [view for view in fleet if view.id == view.host][:1] or fleet[:1]
    if not fleet:
        raise BalancerRefusedError(404, "no agent is connected; --here judges this machine")
    fleet = sorted(fleet, key=lambda view: (view.label, view.id))
    return answers_of(client, plain, fleet)


def answers_of(
    client: ManagementClient, question: Mapping[str, object], agents: Sequence[AgentView]
) -> list[FitAnswer]:
    """Ask these agents; ``question`` is a ``FitQuestion`` as plain JSON."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(partial(_of_agent, client, question), agents))


def _of_agent(client: ManagementClient, plain: Mapping[str, object], view: AgentView) -> FitAnswer:
    if view.is_paddlers:
        problem = "a Paddler agent judges no models"
        return FitAnswer(view.label, None, problem, is_paddlers=True)
    try:
        report = client.ask_agent("POST", view.id, "fit", body=plain, answer_s=FIT_ANSWER_S)
    except BalancerRefusedError as error:
        fits = False if error.status == WOULD_NOT_LOAD else None
        return FitAnswer(view.label, fits, str(error).rpartition(f"): {view.label}: ")[2])
    return FitAnswer.of(view.label, report)


def _of_this_machine(question: FitQuestion) -> FitAnswer:
    import trio

    from paddler_trio.agent.model.fit_report import fit_report
    from paddler_trio.agent.model.model_file import describe
    from paddler_trio.agent.model.model_fit import NOT_LOADING, Held, ModelFit
    from paddler_trio.agent.model.model_load import LoadRules
    from paddler_trio.models.hub.hub_settings import HubSettings
    from paddler_trio.models.memory.memory_prediction import open_memory_questions

    desired, extras = applicable_state(question.state), question.extras
    rules = LoadRules(
        slots=question.slots or 1, threads=default_threads(), settings=EngineSettings()
    )
    load = rules.load(desired, extras, model_path=describe(desired.model), projection_path=None)
    judge = ModelFit(open_memory_questions, HubSettings.from_environment()).judge
    ask = partial(judge, adapters=extras.sources, held=Held(), auto=extras.automatic)
    name = "this machine"
    try:
        judged = trio.run(ask, load, desired.model, desired.multimodal_projection)
    except MemoryUnknownError as error:
        return FitAnswer(name, False if error.kind in NOT_LOADING else None, str(error))
    report = unstructure(fit_report(judged))
    assert isinstance(report, dict)
    return FitAnswer.of(name, report)
