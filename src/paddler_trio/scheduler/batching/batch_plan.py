"""Split one forward pass among sequences. Decides; changes nothing.

Decode first, then prefill: every generating sequence gets its one token, so no stream stalls
behind a prompt; what is left of the budget goes to prompts, the shortest first, so a short prompt
is not stuck behind a long one, and every few passes the earliest. If more sequences generate than
the budget holds, the order rotates by the number of the pass.

Words and images are computed apart, so a chunk is of words only or of one image only. Where an
image must be computed in one go its chunk may exceed the budget, but only one does so in a pass.

Source: iteration-level scheduling, Orca (OSDI '22); chunked prefill, Sarathi-Serve (OSDI '24).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from paddler_trio.scheduler.batching.image_tokens import is_image, run_length
from paddler_trio.scheduler.batching.sequences import Sequence

TILE = 64
"""Tokens that llama.cpp's attention computes together: with a long context 48 take longer than 64
(measured on a CPU, 1,700 tokens before them: 157 and 98 ms)."""
EARLIEST_EVERY = 4
"""Passes; in one of them the earliest prompt goes first, however long it is."""


@attrs.frozen
class PrefillBudget:
    """Prompt tokens of one pass, of all prompts together. ``in_step``: no prompt is finished before
    all of them can be, as far as that is possible.
    """

    tokens: int
    in_step: bool = False


@attrs.frozen
class ScheduledChunk:
    """``count`` tokens of one sequence, from position ``start``, in one pass; after them
    ``drafts``, guesses that are computed along to be checked."""

    sequence: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def wants_logits(self) -> bool:
        """Return whether the chunk ends with the sequence's newest token, so the next one can be
        sampled."""
        return self.start + self.count == self.sequence.num_tokens


def plan_batch(
    sequences: Iterable[Sequence],
    *,
    token_budget: int,
    prefill_budget: PrefillBudget | None = None,
    turn: int = 0,
    whole_images: bool = False,
    free_cells: int | None = None,
) -> tuple[ScheduledChunk, ...]:
    """Return the chunks of the next pass.

    Args:
      sequences: in arrival order, each at most once.
      token_budget: tokens the engine takes in one pass (its ``n_batch``), >= 1.
      prefill_budget: how many of them may be prompt; None for all that generating ones leave.
      turn: number of the pass; rotates which go first when not all can.
      whole_images: an image is computed in one chunk; it may exceed both budgets.
      free_cells: what all chunks together may take, None for no limit.

    Returns:
      Chunks of >= 1 token each, summing to at most ``token_budget`` with their drafts, but for a
      whole image; decoding ones first; empty means there is nothing to compute.
    """
    assert token_budget >= 1, f"token_budget is {token_budget}"
    generating: list[Sequence] = []
    ingesting: list[Sequence] = []
    for sequence in sequences:
        if sequence.is_generating:
            generating.append(sequence)
        elif sequence.num_missing > 0:
            ingesting.append(sequence)
    if len(generating) > token_budget:
        first = (turn * token_budget) % len(generating)
        generating = (generating[first:] + generating[:first])[:token_budget]
    spare = token_budget - len(generating)
    chunks: list[ScheduledChunk] = []
    for sequence in generating:
        drafts = tuple(sequence.drafts[:spare]) if sequence.drafts else ()
        spare -= len(drafts)
        chunks.append(ScheduledChunk(sequence, sequence.num_computed, 1, drafts))
    if not ingesting:
        return tuple(chunks)
    budget = PrefillBudget(spare) if prefill_budget is None else prefill_budget
    left = None if free_cells is None else free_cells - (token_budget - spare)
    counts = _prefill_counts(ingesting, spare, budget, left, turn=turn, whole_images=whole_images)
    chunks += [
        ScheduledChunk(s, s.num_computed, count)
        for s, count in zip(ingesting, counts, strict=True)
        if count
    ]
    return tuple(chunks)


def _prefill_counts(
    ingesting: list[Sequence],
    spare: int,
    budget: PrefillBudget,
    free_cells: int | None,
    *,
    turn: int,
    whole_images: bool,
) -> list[int]:
    """Return how many tokens of each prompt are computed next."""
    room = min(spare, budget.tokens)
    if room <= 0:
        return [0] * len(ingesting)
    wants = [_next_run(sequence, spare, whole_images) for sequence in ingesting]
    if budget.in_step and sum(wants) > room:
        early = [_without_end(want) for want in wants]
        wants = early if any(early) else wants
    counts = divide_prefill_budget(wants, room, turn=turn)
    return _with_whole_images(ingesting, wants, counts, free_cells) if whole_images else counts


def _next_run(sequence: Sequence, room: int, whole_images: bool) -> int:
    """Return how many tokens could be computed together next; never more than ``room`` words."""
    start = sequence.num_computed
    if whole_images and is_image(sequence.tokens[start]):
        return run_length(sequence.tokens, start, sequence.num_missing)
    return run_length(sequence.tokens, start, min(room, sequence.num_until_checkpoint))


def _with_whole_images(
    sequences: list[Sequence], wants: list[int], counts: list[int], free_cells: int | None
) -> list[int]:
    """Return the counts with all of the first image that got anything of it, if there are cells;
    others wait."""
    is_an_image = [is_image(sequence.tokens[sequence.num_computed]) for sequence in sequences]
    counts = list(counts)
    images = [i for i, here in enumerate(is_an_image) if here and counts[i]]
    for index in images:
        counts[index] = 0
    room = None if free_cells is None else free_cells - sum(counts)
    for index in images:
        if room is None or wants[index] <= room:
            counts[index] = wants[index]
            break
    return counts


def divide_prefill_budget(wants: list[int], budget: int, *, turn: int = 0) -> list[int]:
    """Divide ``budget`` tokens among prompts that want so many each, in the order of arrival.

    The shortest go first: with equal parts all prompts of a pass would be late, and none waits
    behind a long one for more than its own length. In one of ``EARLIEST_EVERY`` turns the earliest
    goes first, so that a long one is not starved by a stream of short ones.

    Returns:
      Tokens of each; a part of what is wanted is a multiple of ``TILE`` where the budget has one.
    """
    chunks = [0] * len(wants)
    order = [index for index, want in enumerate(wants) if want > 0]
    if not order or budget <= 0:
        return chunks
    earliest = order[0]
    order.sort(key=lambda index: wants[index])
    if turn % EARLIEST_EVERY == 0:
        order.remove(earliest)
        order.insert(0, earliest)
    for index in order:
        if wants[index] <= budget or index == order[0] or budget >= TILE:
            chunks[index] = _part(wants[index], budget)
            budget -= chunks[index]
    return chunks


def _without_end(want: int) -> int:
    """Return the tiles of a prompt that leave one and what is more for later."""
    return max(0, want // TILE - 1) * TILE


def _part(want: int, room: int) -> int:
    """Return ``want``, or as many tiles as there is room for, or what room there is."""
    if want <= room:
        return want
    return room - room % TILE if room >= TILE else room
