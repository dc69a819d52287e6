"""Why a request got the slot that it got: kept in a few numbers, and told in words to who asks."""

from __future__ import annotations

from typing import Final, TypeAlias

from paddler_trio.scheduler.dispatch.slot_decisions import Choice
from paddler_trio.wire.trio.adapters import ADAPTER

MAX_TEXT_CHARS: Final = 200
"""The most that is kept of an id, a client's name, a route and a reason."""
MAX_NAME_CHARS: Final = 40
"""The most that is kept of an agent's name in a reason."""

Compared: TypeAlias = "tuple[str, int, float, float]"
"""An agent, the tokens that are there, when the first token was predicted, and how much of that was
the wait for a slot."""
Reason: TypeAlias = "tuple[int, int, int, bool, bool, bool, str, bool, int, tuple[Compared, ...]]"
"""How many agents could have it; how many slots of the chosen one were busy, of how many; whether
it had to be of a model, of a revision, or to offer something; the names of adapters; whether the
request waited for the slot; the tokens of its prompt, and what was compared."""


def reason_of(choice: Choice | None) -> Reason | None:
    """Return the reason of a choice in plain values; None if it is not known."""
    if choice is None:
        return None
    wanted, prediction = choice.wanted, choice.prediction
    adapters = ""
    if wanted.needs:
        names = [n.removeprefix(ADAPTER) for n in wanted.needs if n.startswith(ADAPTER)]
        adapters = ", ".join(sorted(names))[:MAX_TEXT_CHARS]
    return (
        choice.candidates,
        choice.busy,
        choice.slots,
        wanted.kind is not None,
        wanted.revision is not None,
        bool(wanted.needs),
        adapters,
        choice.held,
        0 if prediction is None else prediction.tokens,
        ()
        if prediction is None
        else tuple(
            [(each[0][:MAX_NAME_CHARS], each[1], each[2], each[3]) for each in prediction.options]
        ),
    )


def why(reason: Reason | None) -> str:
    """Return why an agent got a request, in words; empty if it is not known."""
    if reason is None:
        return ""
    candidates, busy, slots, is_continued, is_pinned, has_needs, adapters, is_held, *_ = reason
    tokens, options = reason[-2:]
    such = "".join(
        f" {text}"
        for text, applies in (
            ("with the model that began the answer", is_continued),
            ("on the revision of its call", is_pinned),
            ("with what the request needs", has_needs),
        )
        if applies
    )
    if options and tokens:
        words = _compared(tokens, options, is_held=is_held)
        words += f"; of agents{such}" if such else ""
    elif candidates == 1:
        words = f"the only agent{such} that had a free slot: {busy} of {slots} slots busy"
    else:
        words = (
            f"least loaded of {candidates} agents{such} that had a free slot: "
            f"{busy} of {slots} slots busy"
        )
    named = f"; it is computed with the LoRA adapters {adapters}" if adapters else ""
    return f"{words}{named}"[:MAX_TEXT_CHARS]


def _compared(tokens: int, options: tuple[Compared, ...], *, is_held: bool) -> str:
    """Return what was compared: of each agent what is there, and when the first token comes."""
    if is_held:
        options = tuple(sorted(options, key=lambda each: each[2]))
    words = []
    for place, (agent, tokens_there, predicted_s, wait_s) in enumerate(options):
        there = f"{tokens_there:,} of {tokens:,} tokens are there, " if tokens_there else ""
        busy = "busy, " if wait_s else ""
        predicted = "predicted " if not place else ""
        words.append(f"{agent}: {there}{busy}{predicted}{predicted_s:.2f} s")
    return "; ".join(words) + ("; it waited for the slot" if is_held else "")
