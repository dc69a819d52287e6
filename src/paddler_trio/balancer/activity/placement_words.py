"""Why a request got the slot that it got, in words."""

from __future__ import annotations

from functools import lru_cache

from paddler_trio.balancer.activity.request_record import MAX_NAME_CHARS, MAX_TEXT_CHARS
from paddler_trio.scheduler.dispatch.slot_decisions import Choice, Prediction
from paddler_trio.wire.trio.adapters import ADAPTER


def why(choice: Choice | None) -> str:
    """Why an agent got a request, in words; empty if it is not known."""
    if choice is None:
        return ""
    wanted = choice.wanted
    names = sorted(n.removeprefix(ADAPTER) for n in wanted.needs if n.startswith(ADAPTER))
    adapters = f"; it is computed with the LoRA adapters {', '.join(names)}" if names else ""
    may_be_any = wanted.kind is None and wanted.revision is None
    if may_be_any and choice.prediction is not None and choice.prediction.tokens:
        return f"{_predicted(choice.prediction, is_held=choice.held)}{adapters}"[:MAX_TEXT_CHARS]
    words = _why(
        choice.candidates,
        choice.busy,
        choice.slots,
        wanted.kind is not None,
        wanted.revision is not None,
        bool(wanted.needs),
    )
    return f"{words}{adapters}"[:MAX_TEXT_CHARS]


def _predicted(prediction: Prediction, *, is_held: bool) -> str:
    """Return what was compared: of each agent what is there, and when the first token comes."""
    options = prediction.options
    if is_held:
        options = tuple(sorted(options, key=lambda each: each.predicted_s))
    words = []
    for place, each in enumerate(options):
        there = f"{each.tokens_there:,} of {prediction.tokens:,} tokens are there, "
        busy = "busy, " if each.wait_s else ""
        predicted = "predicted " if not place else ""
        words.append(
            f"{each.agent[:MAX_NAME_CHARS]}: {there if each.tokens_there else ''}{busy}"
            f"{predicted}{each.predicted_s:.2f} s"
        )
    waited = "; it waited for the slot" if is_held else ""
    return f"{'; '.join(words)}{waited}"[:MAX_TEXT_CHARS]


@lru_cache(maxsize=4096)
def _why(
    candidates: int, busy: int, slots: int, is_continued: bool, is_pinned: bool, has_needs: bool
) -> str:
    load = f"{busy} of {slots} slots busy"
    such = "".join(
        f" {text}"
        for text, applies in (
            ("with the model that began the answer", is_continued),
            ("on the revision of its call", is_pinned),
            ("with what the request needs", has_needs),
        )
        if applies
    )
    if candidates == 1:
        return f"the only agent{such} that had a free slot: {load}"
    return f"least loaded of {candidates} agents{such} that had a free slot: {load}"
