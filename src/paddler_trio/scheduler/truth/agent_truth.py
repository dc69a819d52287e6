"""Say what is true of an agent: of one that is connected, and of one that was."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.scheduler.truth.truths import Truth, plural

MOVING: Final = frozenset(
    {"resolving", "downloading", "draining", "loading", "probing", "restarting"}
)
"""Phases of an agent that is on its way to serve something."""
UNLOADED: Final = frozenset({"unloading", "unloaded"})
"""The phases of an agent whose model an operator unloads, or has unloaded."""
GONE: Final = ("offline", "stopped")


@attrs.frozen(kw_only=True)
class AgentFacts:
    """A connected agent.

    Args:
      phase: as it reports it, or as its status of Paddler's means it.
      progress: 0..1 of what it downloads or loads.
      gets_work: requests may be given to it now.
      serves_target: it serves what is desired, not what was before.
      is_ejected: it failed too often, and rests for a while.
      slots: those that it may be given requests for.
      issues: how many keep it from what is desired.
    """

    label: str
    phase: str
    progress: float | None = None
    detail: str = ""
    gets_work: bool = False
    serves_target: bool = False
    is_drained: bool = False
    is_ejected: bool = False
    slots: int = 0
    busy: int = 0
    issues: int = 0

    @property
    def capacity(self) -> int:
        """Slots that count: those of agents that get work."""
        return self.slots if self.gets_work else 0


def paddlers_phase(status: str, *, slots: int, downloads: bool, has_model: bool) -> str:
    """Return the phase that an agent of Paddler's would report, from its application status."""
    if downloads:
        return "downloading"
    match status:
        case "Applied":
            return "serving" if slots > 0 else "waiting"
        case "AttemptedAndNotAppliable" | "Stuck":
            return "failed"
        case "Fresh":
            return "loading" if has_model else "waiting"
        case _:
            return "loading"


def truth_of_agent(agent: AgentFacts) -> Truth:
    """Return the most important: trouble, orders of operators, loading, serving."""
    detail = agent.detail.rstrip(".")
    if agent.is_ejected:
        return Truth(
            state="ejected",
            word="ejected",
            severity="bad",
            sentence="it failed too often, and gets no requests for a while",
            follows="its slots are missing until then",
            todo="look at its log, and at the requests that failed on it",
        )
    if agent.phase in UNLOADED or agent.is_drained:
        return _withdrawn(agent, detail)
    match agent.phase:
        case "serving" if agent.gets_work:
            return Truth(
                state="serving",
                word="serving",
                severity="warn" if agent.issues else "ok",
                sentence=detail,
            )
        case "serving":
            return Truth(
                state="idle",
                word="not accepting",
                severity="warn",
                sentence=detail or "it serves nothing that is desired now",
            )
        case "failed":
            return _failed(agent, detail)
        case "waiting":
            return Truth(
                state="waiting",
                word="no model",
                severity="quiet",
                sentence=detail or "it waits for a model to be set",
            )
        case "leaving":
            return Truth(state="leaving", word="leaving", severity="quiet", sentence=detail)
        case phase:
            shown = "changing the model" if phase == "draining" else phase
            how_far = "" if agent.progress is None else f" {agent.progress:.0%}"
            return Truth(
                state=phase,
                word=f"{shown}{how_far}",
                severity="info",
                sentence=detail or _meanwhile(agent),
            )


def _withdrawn(agent: AgentFacts, detail: str) -> Truth:
    """An operator unloaded or drained it."""
    left = f"{plural(agent.busy, 'request')} still running" if agent.busy else ""
    if agent.phase in UNLOADED:
        is_over = agent.phase == "unloaded"
        return Truth(
            state="unloaded",
            word=agent.phase,
            severity="quiet",
            sentence=detail or left or "an operator unloaded it",
            follows="its slots are missing, its memory is free, and it loads nothing"
            if is_over
            else "its slots are missing; running answers end first, or go on elsewhere",
            todo="load it again once it may have requests",
        )
    return Truth(
        state="drained",
        word="draining" if agent.busy else "drained",
        severity="quiet",
        sentence=left or "an operator drained it: it gets no requests",
        todo="give it work again once it may have some",
    )


def _failed(agent: AgentFacts, detail: str) -> Truth:
    return Truth(
        state="failed",
        word="failed, serves the model before" if agent.gets_work else "failed",
        severity="warn" if agent.gets_work else "bad",
        sentence=detail or "the model could not be loaded",
        follows=_meanwhile(agent) or "it answers nothing",
        todo="choose another model or other settings, or repair what it names",
    )


def _meanwhile(agent: AgentFacts) -> str:
    if agent.phase == "draining":
        return "running answers end first"
    return "it answers with the model before meanwhile" if agent.gets_work else ""


def truth_of_gone(
    *, said_goodbye: bool, last_words: str = "", reason: str = "its connection broke"
) -> Truth:
    """Return what is true of an agent that was here.

    Args:
      said_goodbye: it was stopped in order, and not lost.
      last_words: what it reported last.
      reason: why it is not here.
    """
    if said_goodbye:
        return Truth(
            state="stopped",
            word="stopped",
            severity="quiet",
            sentence="it was stopped in order",
            todo="start it again, or forget it",
        )
    return Truth(
        state="offline",
        word="offline",
        severity="bad",
        sentence=f"{reason}; its last words: {last_words}" if last_words else reason,
        follows="its slots are missing; what it answered goes on elsewhere",
        todo="look at the machine and start the agent again, or forget it if it is gone for good",
    )
