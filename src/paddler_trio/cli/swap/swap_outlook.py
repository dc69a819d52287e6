"""The cost of a change: bytes to fetch, time to load, and the gap; decided from answers.

A gap is the time in which nobody serves the deployment. There is none where nothing is loaded,
where agents change one after the other, and where the new model loads beside the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from paddler_trio.cli.management_client import AgentView
from paddler_trio.cli.model.cache_display import size_words
from paddler_trio.cli.model.fit_run import FitAnswer
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

LOADS: Final = frozenset({"context", "weights", "added", "reload"})
"""Classes of change for which agents load; ``reload`` is all that an older balancer leads to."""
NO_GAP: Final[Mapping[str, str]] = {
    "none": "what is served stays the same",
    "in_place": "agents apply it to the running model",
    "removed": "nothing is loaded",
}


@attrs.frozen(kw_only=True)
class AgentOutlook:
    """The cost of the change on one agent; None where it cannot be known.

    ``fetch_bytes``: not on its disk yet. ``load_s``: how long loading will take, from its last
    load. ``beside``: its memory holds the old and the new model at once.
    """

    agent: str
    serves_now: bool
    fits: bool | None
    fetch_bytes: int | None
    load_s: float | None
    beside: bool | None

    @property
    def words(self) -> str:
        """One line."""
        fetch = "bytes to fetch: unknown"
        if self.fetch_bytes is not None:
            fetch = f"fetches {size_words(self.fetch_bytes) if self.fetch_bytes else 'nothing'}"
        load = "never loaded a model: load time unknown"
        if self.load_s is not None:
            load = f"loads in about {seconds_words(self.load_s)}"
        beside = {
            True: "old and new model fit side by side",
            False: "the old model ends before the new one loads",
            None: "whether both fit side by side is unknown",
        }[self.beside]
        return "; ".join([fetch, load, *([beside] if self.serves_now else [])])


@attrs.frozen(kw_only=True)
class Gap:
    """``gap_s``: None where it cannot be known; ``why`` is for people."""

    gap_s: float | None
    why: str


def agent_outlook(
    view: AgentView,
    answer: FitAnswer,
    *,
    models: Sequence[DesiredModel],
    cached: Sequence[Mapping[str, object]] | None,
) -> AgentOutlook:
    """Return the outlook of one agent.

    Args:
      view: the instance that serves the deployment, or the host that would.
      models: what would be served, the model first.
      cached: the models in its caches, as the agent lists them; None if it cannot.
    """
    return AgentOutlook(
        agent=view.label,
        serves_now=view.served_state is not None and view.slots_total > 0,
        fits=answer.fits,
        fetch_bytes=_fetch_bytes(answer, models, cached),
        load_s=_load_s(view, answer),
        beside=_fits_beside(answer),
    )


def expected_gap(
    change: str, agents: Sequence[AgentOutlook], *, rolls: bool, max_unavailable: int
) -> Gap:
    """The gap of the deployment.

    Args:
      rolls: the balancer changes agents one after the other; others change all at the same time.
      max_unavailable: agents that may be without a model at the same time.
    """
    if change not in LOADS:
        return Gap(gap_s=0.0, why=NO_GAP.get(change, "nothing is loaded"))
    serving = [each for each in agents if each.serves_now]
    if not agents:
        return Gap(gap_s=None, why="no agent may serve it")
    times = [each.load_s for each in agents if each.load_s is not None]
    longest_s = max(times, default=None)
    if not serving:
        how_long = "" if longest_s is None else f" for about {seconds_words(longest_s)}"
        return Gap(gap_s=longest_s, why=f"nobody serves it yet: requests wait{how_long}")
    if rolls and len(serving) > max_unavailable:
        return Gap(gap_s=0.0, why="agents change in turn, the others serve meanwhile")
    if all(each.beside for each in serving):
        return Gap(gap_s=0.0, why="the new model loads beside the old one, which serves meanwhile")
    loading = [each.load_s for each in serving]
    if any(load_s is None for load_s in loading):
        return Gap(gap_s=None, why="no load was measured yet; requests wait meanwhile")
    gap_s = max(load_s for load_s in loading if load_s is not None)
    if any(each.beside is None for each in serving):
        why = "unless both models fit side by side, which is unknown; requests wait meanwhile"
    elif rolls:
        why = "no other agent serves, and both models do not fit side by side; requests wait"
    else:
        why = "all agents change at the same time; requests wait for up to the buffer's time"
    return Gap(gap_s=gap_s, why=why)


def seconds_words(seconds: float) -> str:
    """``0.4 s``, ``25 s``, ``3 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _fetch_bytes(
    answer: FitAnswer,
    models: Sequence[DesiredModel],
    cached: Sequence[Mapping[str, object]] | None,
) -> int | None:
    """Return the bytes of the model's own files; its projection is small and not counted."""
    model = models[0]
    if isinstance(model, LocalToAgent | NoModel):
        return 0
    if cached is None:
        return None
    if any(each.get("state") == "whole" and _is_of(each, model) for each in cached):
        return 0
    size_bytes = None if answer.report is None else answer.report.get("file_bytes")
    return size_bytes if isinstance(size_bytes, int) else None


def _is_of(cached: Mapping[str, object], model: DesiredModel) -> bool:
    source = str(cached.get("source"))
    match model:
        case HuggingFaceModel(filename, repo_id, revision):
            place, _, commit = source.rpartition("@")
            revisions = cached.get("revisions")
            known = [commit, *(revisions if isinstance(revisions, list) else [])]
            return place == f"hf:{repo_id}/{part_names(filename)[0]}" and revision in known
        case UrlModel(url):  # caches list URLs without what may be secret
            return source == url.partition("#")[0].partition("?")[0]
        case _:
            return False


def _load_s(view: AgentView, answer: FitAnswer) -> float | None:
    """The last load, stretched as the new model needs more or less memory than that one."""
    if view.load_s is None:
        return None
    new = sum(_number(each.get("needed")) for each in _devices(answer.report))
    old = sum(_number(each.get("actual")) for each in _devices(view.memory))
    return view.load_s * new / old if new > 0 and old > 0 else view.load_s


def _fits_beside(answer: FitAnswer) -> bool | None:
    """Return whether the agent would load it with the old model still there; one that does not say
    so would if it fits into what is free now."""
    said = None if answer.report is None else answer.report.get("beside")
    if isinstance(said, bool):
        return said
    devices = _devices(answer.report)
    if not devices:
        return None
    for each in devices:
        free_now, free_after, limit = (each.get(k) for k in ("free_now", "free_after", "limit"))
        if not isinstance(free_now, int):
            return None
        room = free_now - _number(each.get("reserve"))
        if isinstance(limit, int):
            held = _number(free_after) - free_now if isinstance(free_after, int) else 0
            room = min(room, limit - max(0, held))
        if _number(each.get("needed")) > room:
            return False
    return True


def _devices(holder: Mapping[str, object] | None) -> list[Mapping[str, object]]:
    devices = None if holder is None else holder.get("devices")
    return [e for e in devices if isinstance(e, dict)] if isinstance(devices, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
