"""The columns of ``top``: agents and requests.

Paddler 1.x's dashboard had Name, Issues, Llama.cpp address, Last update, Idle slots and Processing
slots. They are all here; an address has an agent in front of a server only, so the column is there
when one is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final, TypeVar

from paddler_trio.cli.figures import NOTHING, count, duration, part_of, rate, share
from paddler_trio.cli.fleet.issue_words import OLD_MODEL_SERVES, issues_words
from paddler_trio.cli.live.columns import Column, number_order, text_order
from paddler_trio.cli.live.live_picture import LiveAgent, LivePicture, RatesView
from paddler_trio.cli.live.request_views import RequestView
from paddler_trio.scheduler.fit.fit_words import bytes_words

UPDATED: Final = "updated"
"""Since the last news of an agent: nothing to say at the first look."""
OF_ENGINES: Final = frozenset({"in/s", "out/s", "cached", "memory"})
"""Nothing of these is known of a server: where there are only servers, issues have their room."""
LEAST_LANES: Final = 5
LANES_SHOWN: Final = 16
T = TypeVar("T")
AGENT_STYLES: Final = {"serving": "green", "failed": "red", "draining": "yellow", "waiting": ""}
SEVERITY_STYLES: Final = {"ok": "green", "info": "cyan", "warn": "yellow", "bad": "red"}


def agent_phase(agent: LiveAgent) -> str:
    """Return what an agent is doing, in the balancer's word."""
    return agent.state.get("word", "?")


def agent_issues(agent: LiveAgent) -> str:
    """Return what is wrong with an agent, and whether it answers with the model before all the
    same."""
    wrong = issues_words(agent.issues) or agent.detail or ""
    words = (OLD_MODEL_SERVES if agent.keeps_old_model else "", wrong)
    return "; ".join(filter(None, words)) or NOTHING


def agent_columns(picture: LivePicture, now_ms: int) -> list[Column[LiveAgent]]:
    """``now_ms``: the balancer's clock."""

    def rates(agent: LiveAgent) -> RatesView:
        return agent.rates or RatesView()

    def silent_ms(agent: LiveAgent) -> float | None:
        then_ms = picture.updated_ms.get(str(agent.key))
        return None if then_ms is None else max(0, now_ms - then_ms)

    def style(agent: LiveAgent) -> str:
        if agent.is_drained or agent.ejected_until_ms is not None:
            return "yellow"
        return AGENT_STYLES.get(agent.phase or "", "cyan")

    most = max((agent.slots_total for agent in picture.agents.values()), default=0)
    lanes = min(max(most, LEAST_LANES), LANES_SHOWN)
    columns: list[Column[LiveAgent]] = [
        Column("name", 14, lambda a: a.label, lambda a: text_order(a.label)),
        Column("phase", 15, agent_phase, lambda a: text_order(agent_phase(a)), style=style),
        Column(
            "slots", lanes, lambda a: a.lane_letters(lanes), importance=2, style=lambda a: "cyan"
        ),
        _number("idle", 4, lambda a: a.slots_idle, str),
        _number("busy", 4, lambda a: a.slots_processing, str),
        _number("in/s", 6, lambda a: rates(a).prompt_tokens_per_s, rate, 3),
        _number("out/s", 6, lambda a: rates(a).generated_tokens_per_s, rate, 1),
        _number("cached", 6, lambda a: rates(a).cached_ratio, share, 4),
        _number("memory", 10, memory_bytes, lambda n: bytes_words(int(n)), 6),
        _number(UPDATED, 9, silent_ms, duration, 5),
        Column("model", 18, model_name, lambda a: text_order(model_name(a)), 7),
        Column(
            "issues",
            8,
            agent_issues,
            lambda a: text_order(issues_words(a.issues)),
            takes_rest=True,
            style=lambda a: "red" if a.issues or a.phase == "failed" else "dim",
        ),
    ]
    if picture.agents and all(agent.upstream for agent in picture.agents.values()):
        columns = [column for column in columns if column.title not in OF_ENGINES]
    if any(agent.address for agent in picture.agents.values()):
        address = Column[LiveAgent](
            "address", 21, lambda a: a.address or NOTHING, lambda a: text_order(a.address or ""), 1
        )
        columns.insert(2, address)
    if any(agent.deployment != "default" for agent in picture.agents.values()):
        deployment = Column[LiveAgent](
            "deployment", 12, lambda a: a.deployment, lambda a: text_order(a.deployment), 1
        )
        columns.insert(1, deployment)
    return columns


def request_columns(now_ms: int) -> list[Column[RequestView]]:
    """``now_ms``: the balancer's clock."""

    def prompt(request: RequestView) -> int | None:
        return None if request.placement is None else request.placement.prompt_tokens

    def cached(request: RequestView) -> int | None:
        return None if request.placement is None else request.placement.cached_tokens

    return [
        Column("key", 7, lambda r: str(r.key), lambda r: number_order(r.key), is_right=True),
        Column("client", 10, lambda r: r.who or NOTHING, lambda r: text_order(r.who), 5),
        Column("deployment", 12, lambda r: r.deployment, lambda r: text_order(r.deployment), 6),
        Column("what", 20, lambda r: r.what, lambda r: text_order(r.what), 4),
        Column(
            "phase",
            12,
            request_phase,
            lambda r: text_order(request_phase(r)),
            style=lambda r: SEVERITY_STYLES.get(r.state.severity, "dim"),
        ),
        Column("agent", 14, lambda r: r.place or NOTHING, lambda r: text_order(r.place), 1),
        _number("queue", 5, lambda r: r.position, str, 2),
        _number("age", 10, lambda r: r.age_ms(now_ms), duration),
        _number("first", 9, lambda r: r.first_after_ms, duration, 3),
        _number("tokens", 6, lambda r: r.tokens, lambda n: count(int(n))),
        _number("tok/s", 6, lambda r: r.tokens_per_s(now_ms), rate, 2),
        _number("prompt", 6, prompt, lambda n: count(int(n)), 7),
        Column("cached", 6, lambda r: part_of(cached(r), prompt(r)), None, 8, is_right=True),
        Column("id", 8, lambda r: r.id or NOTHING, lambda r: text_order(r.id), 9, takes_rest=True),
    ]


def request_phase(request: RequestView) -> str:
    """Return the phase of a request, or how it ended; its place in the queue has a column."""
    state = request.state
    if state.state in ("queued", "stopped", "cancelled"):
        return state.state
    return state.word or request.phase


def agent_words(agent: LiveAgent) -> str:
    """The text that a filter is compared with, in lower case."""
    words = (
        agent.label,
        agent.id,
        agent.deployment,
        agent_phase(agent),
        agent.model_path or "",
        agent.address or "",
        *agent.models,
        *agent.labels.values(),
    )
    return " ".join(words).casefold()


def request_words(request: RequestView) -> str:
    """The text that a filter is compared with, in lower case."""
    return " ".join(
        (
            str(request.key),
            request.id,
            request.who,
            request.deployment,
            request.what,
            request_phase(request),
            request.agent,
        )
    ).casefold()


def model_name(agent: LiveAgent) -> str:
    """The last part of its model's path, or the names that a server has for its models."""
    if agent.model_path:
        return PurePosixPath(agent.model_path).name
    return ", ".join(agent.models) or NOTHING


def memory_bytes(agent: LiveAgent) -> int | None:
    """Return what its model takes on all devices together; None if it does not report it."""
    devices = (agent.memory or {}).get("devices")
    taken = [
        device["actual"]
        for device in (devices if isinstance(devices, list) else [])
        if isinstance(device, dict) and isinstance(device.get("actual"), int)
    ]
    return sum(taken) if taken else None


def _number(
    title: str,
    width: int,
    value: Callable[[T], float | None],
    words: Callable[[float], str],
    importance: int = 0,
) -> Column[T]:
    """A column of figures; what is not known is a dash."""

    def text(row: T) -> str:
        known = value(row)
        return NOTHING if known is None else words(known)

    return Column(
        title, width, text, lambda row: number_order(value(row)), importance, is_right=True
    )
