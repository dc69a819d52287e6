"""Say what is true of a request: where it is, or how it ended and on whose account."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.scheduler.truth.truths import Truth

CANCELLED_CODE: Final = 499
"""Of what an operator cancelled: no client is to send it again by itself. Google's APIs answer so
for ``CANCELLED``, and none of the clients' libraries retries it."""
FINISHES: Final = ("stop", "length", "context", "tools")
"""Why an answer ended that was given: the model or a stop text ended it; so many tokens were asked
for; the slot's context was full; the model called tools."""
ENDINGS: Final = ("done", "refused", "failed", "stopped", "cancelled")
"""``refused``: what was asked cannot be answered as it is; ``stopped``: its client left or stopped
it; ``cancelled``: an operator did."""

Ended: TypeAlias = Literal["completed", "stopped", "failure"]
_OF_ENGINE: Final = {
    "stop": "stop",
    "stop_text": "stop",
    "length": "length",
    "cells": "context",
}
_FINISH_WORDS: Final = {
    "stop": "the model ended its answer",
    "length": "it has as many tokens as it may have",
    "context": "the context of its slot was full",
    "tools": "the model called tools",
}


@attrs.frozen(kw_only=True)
class EndingFacts:
    """An ending as the balancer knows it.

    Args:
      ended: for the balancer: ``completed`` also if the agent's last word was a refusal.
      code: HTTP's, of a failure or a refusal.
      finish: one of ``FINISHES``; None if that is not known, as from Paddler's agents.
    """

    ended: Ended
    code: int | None = None
    text: str = ""
    finish: str | None = None

    @property
    def kind(self) -> str:
        """One of ``ENDINGS``."""
        if self.ended == "stopped":
            return "stopped"
        if self.code is None:
            return "done"
        if self.code == CANCELLED_CODE:
            return "cancelled"
        return "refused" if self.code < 500 or self.code == 501 else "failed"


def finish_of(reason: object, *, calls_tools: bool) -> str | None:
    """Return one of ``FINISHES``, from the reason that an engine gives with its last result."""
    found = _OF_ENGINE.get(reason) if isinstance(reason, str) else None
    return "tools" if calls_tools and found in (None, "stop") else found


def truth_of_ending(ending: EndingFacts) -> Truth:
    """Return what became of a request; its sentence has no "it was answered" to be read twice."""
    kind, code, text = ending.kind, ending.code, ending.text.rstrip(".")
    match kind:
        case "stopped":
            return Truth(
                state=kind,
                word="stopped by client",
                severity="quiet",
                sentence="its client stopped it, or left",
            )
        case "cancelled":
            return Truth(
                state=kind,
                word="cancelled by operator",
                severity="quiet",
                sentence="an operator cancelled it",
                follows=f"its client was told so with {code}, and not to send it again",
            )
        case "refused":
            return Truth(
                state=kind,
                word=f"refused {code}",
                severity="warn",
                sentence=f"it was refused with {code}: {text}",
                todo="whoever sent it can correct it",
            )
        case "failed":
            return Truth(
                state=kind,
                word=f"failed {code}",
                severity="bad",
                sentence=f"it failed with {code}: {text}",
            )
        case _:
            finish = ending.finish
            return Truth(
                state=kind,
                word="done" if finish in (None, "stop") else f"done, {finish}",
                severity="ok" if finish in (None, "stop", "tools") else "info",
                sentence="it was answered"
                if finish is None
                else f"it was answered: {_FINISH_WORDS[finish]}",
            )


def truth_of_flight(phase: str, position: int | None) -> Truth:
    """Return where a request is that has not ended.

    Args:
      phase: ``buffered``, ``leased``, ``streaming`` or ``stopping``.
      position: how many stand before it in the queue, if that was looked at.
    """
    match phase:
        case "buffered":
            ahead = "" if position is None else ", next" if not position else f", {position} ahead"
            return Truth(state="queued", word=f"queued{ahead}", severity="warn")
        case "leased":
            return Truth(state="prefill", word="prefill", severity="info")
        case "streaming":
            return Truth(state="decode", word="decode", severity="info")
        case "stopping":
            return Truth(state="stopping", word="stopping", severity="quiet")
        case _:
            return Truth(state="ended", word="ended", severity="quiet")


def obstacle_words(agents: int, drained: int) -> str:
    """Return why requests of a deployment with so many agents, of which none answers, had to
    wait."""
    if not agents:
        return "it had no agent"
    if drained == agents:
        return "all of its agents were drained"
    beside = f", and {drained} of {agents} were drained" if drained else ""
    return f"none of its agents was ready{beside}"
