"""Limits on the status that an agent reports about itself.

The status is sent to every watcher of the fleet, again and again, so its parts have limits, far
above the sizes of real agents. A number that the balancer computes with ends the link when it is
out of range; a text that is only shown is cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeVar

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.paddler.agent_issue import AgentIssue, ModelPath
from paddler_trio.wire.paddler.status import SlotAggregatedStatusSnapshot
from paddler_trio.wire.trio.cache_commands import CacheProgress
from paddler_trio.wire.trio.fit_messages import MemoryInForce
from paddler_trio.wire.trio.placement_rules import MAX_AGENT_NAME_CHARS
from paddler_trio.wire.trio.trio_link import (
    DEFAULT_DEPLOYMENT,
    RESTARTS,
    Placement,
    Report,
)
from paddler_trio.wire.visible_text import visible

MAX_SLOTS: Final = 4096
"""llama.cpp runs 256 sequences at most."""
MAX_NAME_CHARS: Final = 256
MAX_ISSUES: Final = 512
MAX_ISSUE_CHARS: Final = 65536
"""Of each text: a chat template that does not compile is one."""
MAX_ISSUES_CHARS: Final = 1024 * 1024
"""Of all texts of all issues; those that do not fit are left out."""
MAX_PATH_CHARS: Final = 16384
MAX_DETAIL_CHARS: Final = 16384
MAX_DIGEST_CHARS: Final = 256
MAX_STATS: Final = 128
MAX_DEVICES: Final = 128
MAX_CHOSEN: Final = 16
MAX_LOAD_S: Final = 86_400.0
MAX_RESTARTS: Final = 2**31

_T = TypeVar("_T", bound=attrs.AttrsInstance)


def identity_problem(agent_id: str, name: str | None) -> str | None:
    """Why an agent may not have this id or name; None if it may."""
    for what, text in (("id", agent_id), ("name", name or "")):
        if len(text) > MAX_AGENT_NAME_CHARS:
            return (
                f"the agent's {what} has {len(text)} characters, the limit is "
                f"{MAX_AGENT_NAME_CHARS}: {text[:40]!r}..."
            )
    if not agent_id.isprintable():
        return f"the agent's id has a character that cannot be seen: {visible(agent_id)!r}"
    return None


def placement_problem(agent_id: str, placement: Placement) -> str | None:
    """Why an agent of this id may not have this place; None if it may."""
    deployment, host = placement.deployment, placement.host
    own = host if deployment == DEFAULT_DEPLOYMENT else f"{host}.{deployment}"
    if agent_id == own:
        return None
    return f"the instance of {deployment!r} on host {host[:80]!r} has the id {agent_id[:80]!r}"


def bounded_status(status: SlotAggregatedStatusSnapshot) -> SlotAggregatedStatusSnapshot:
    """Return the status with texts and issues within their limits; the same object if they are.

    Raises:
      WireError: its number of slots is out of range.
    """
    if not 0 <= status.slots_total <= MAX_SLOTS:
        raise WireError(f"slots_total is {status.slots_total}, must be 0 to {MAX_SLOTS}")
    return _evolved(
        status,
        issues=_bounded_issues(status.issues),
        model_path=_cut(status.model_path, MAX_PATH_CHARS),
        download_filename=_cut(status.download_filename, MAX_PATH_CHARS),
    )


def bounded_report(report: Report) -> Report:
    """Bound the report that our agents add; ``progress`` is clamped to 0..1, and of the engine's
    stats only numbers are kept."""
    progress = report.progress
    return _evolved(
        report,
        phase=_cut(report.phase, MAX_DIGEST_CHARS),
        wanted_state=_cut(report.wanted_state, MAX_DIGEST_CHARS),
        served_state=_cut(report.served_state, MAX_DIGEST_CHARS),
        model=_cut(report.model, MAX_DIGEST_CHARS),
        detail=_cut(report.detail, MAX_DETAIL_CHARS),
        progress=None if progress is None else min(1.0, max(0.0, progress)),
        engine=None if report.engine is None else _stats(report.engine),
        download=None
        if report.download is None
        else _evolved(
            report.download,
            source=_cut(report.download.source, MAX_NAME_CHARS),
            phase=_cut(report.download.phase, MAX_NAME_CHARS),
        ),
        memory=None if report.memory is None else _bounded_memory(report.memory),
        load_s=None if report.load_s is None else min(MAX_LOAD_S, max(0.0, report.load_s)),
        room=tuple(
            _evolved(each, device=_cut(each.device, MAX_NAME_CHARS))
            for each in report.room[:MAX_DEVICES]
        ),
    )


def restarts_in(report: Report, before: int) -> int:
    """Return how often the agent's engines were started again; ``before`` where it does not say."""
    restarts = None if report.engine is None else report.engine.get(RESTARTS)
    if not isinstance(restarts, int) or not 0 <= restarts <= MAX_RESTARTS:
        return before
    return restarts


def _bounded_memory(memory: MemoryInForce) -> MemoryInForce:
    return _evolved(
        memory,
        chosen=tuple(_cut(name, MAX_NAME_CHARS) for name in memory.chosen[:MAX_CHOSEN]),
        devices=tuple(
            _evolved(each, device=_cut(each.device, MAX_NAME_CHARS))
            for each in memory.devices[:MAX_DEVICES]
        ),
    )


def bounded_progress(progress: CacheProgress) -> CacheProgress:
    """Bound how far a command about the cache is."""
    return _evolved(
        progress,
        phase=_cut(progress.phase, MAX_DETAIL_CHARS),
        source=_cut(progress.source, MAX_PATH_CHARS),
        filename=_cut(progress.filename, MAX_PATH_CHARS),
    )


def bounded_reason(reason: str) -> str:
    """Bound why an agent hands a request back, which operators and clients are shown."""
    return _cut(reason, MAX_DETAIL_CHARS) or ""


def _bounded_issues(issues: tuple[AgentIssue, ...]) -> tuple[AgentIssue, ...]:
    kept: list[AgentIssue] = []
    num_chars = 0
    for issue in issues[:MAX_ISSUES]:
        bounded = _bounded_issue(issue)
        num_chars += _num_chars(bounded)
        if num_chars > MAX_ISSUES_CHARS:
            break
        kept.append(bounded)
    return issues if kept == list(issues) else tuple(kept)


def _bounded_issue(issue: AgentIssue) -> AgentIssue:
    changes: dict[str, object] = {}
    for field in attrs.fields(type(issue)):
        value = getattr(issue, field.name)
        if isinstance(value, str):
            changes[field.name] = _cut(value, MAX_ISSUE_CHARS)
        elif isinstance(value, ModelPath):
            changes[field.name] = _evolved(value, model_path=_cut(value.model_path, MAX_PATH_CHARS))
    return _evolved(issue, **changes)


def _num_chars(issue: AgentIssue) -> int:
    values = attrs.astuple(issue, recurse=False)
    texts = [value.model_path if isinstance(value, ModelPath) else value for value in values]
    return sum(len(text) for text in texts if isinstance(text, str))


def _stats(engine: Mapping[str, object]) -> Mapping[str, object]:
    kept: dict[str, object] = {}
    for name, value in engine.items():
        is_number = type(value) is int or (type(value) is float and math.isfinite(value))
        if is_number and len(kept) < MAX_STATS and len(name) <= MAX_NAME_CHARS and name.isascii():
            kept[name] = value
    return engine if len(kept) == len(engine) else kept


def _cut(text: str | None, limit: int) -> str | None:
    if text is None:
        return None
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if (
        not text.isascii()
    ):  # a frame of ours may carry half a surrogate pair, which UTF-8 does not have
        text = text.encode(errors="replace").decode()
    return text


def _evolved(value: _T, **changes: object) -> _T:
    """``value`` itself if nothing changes, so that a comparison by identity shows it."""
    if all(getattr(value, name) == changed for name, changed in changes.items()):
        return value
    return attrs.evolve(value, **changes)  # type: ignore[misc]  # a class of attrs, whichever
