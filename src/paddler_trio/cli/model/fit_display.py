"""Verdicts on a model, shown: a table of devices for each agent, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.terminal import printable, stdout
from paddler_trio.scheduler.fit.fit_words import bytes_words

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
