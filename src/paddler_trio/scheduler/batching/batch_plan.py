"""Split one forward pass among sequences. Decides; changes nothing.

Decode first, then prefill: every generating sequence gets its one token, so nobody's stream
stalls behind a prompt; what is left of the budget goes to prompts, the shortest first, so a short
prompt is not stuck behind a long one, and the earliest in any case. If more sequences generate
than the budget holds, the turn rotates by the number of the pass.

Words and images are computed apart, so a share is of words only or of one image only. Where an
image must be computed in one go it takes more than its share, but only one in a pass.

Source: iteration-level scheduling, Orca (OSDI '22); chunked prefill, Sarathi-Serve (OSDI '24).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from paddler_trio.scheduler.batching.image_tokens import is_image, run_length
from paddler_trio.scheduler.batching.sequences import Sequence


@attrs.frozen
class Share:
    """``count`` tokens of one sequence, from position ``start``, in one pass; after them
    ``drafts``, guesses that are computed along to be checked."""

    sequence: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def wants_logits(self) -> bool:
        """The share ends with the sequence's newest token, so the next one can be drawn."""
        return self.start + self.count == self.sequence.num_tokens


def plan_batch(
    sequences: Iterable[Sequence],
    *,
    token_budget: int,
    prompt_budget: int | None = None,
    turn: int = 0,
    whole_images: bool = False,
    free_cells: int | None = None,
) -> tuple[Share, ...]:
    """The shares of the next pass.

    Args:
      sequences: in arrival order, each at most once.
      token_budget: tokens the engine takes in one pass (its ``n_batch``), >= 1.
      prompt_budget: how many of them may be prompt; None for all that generating ones leave.
      turn: number of the pass; rotates who goes first when not all can.
      whole_images: an image is computed in one share; it may exceed both budgets.
      free_cells: what all shares together may take, None for no limit.

    Returns:
      Shares of >= 1 token each, summing to at most ``token_budget`` with their drafts, but for a
      whole image; decoding ones first; empty means there is nothing to compute.
    """
    assert token_budget >= 1, f"token_budget is {token_budget}"
    generating: list[Sequence] = []
    ingesting: list[Sequence] = []
    for sequence in sequences:
        if sequence.num_missing > 0:
            (generating if sequence.is_generating else ingesting).append(sequence)
    if len(generating) > token_budget:
        first = (turn * token_budget) % len(generating)
        generating = (generating[first:] + generating[:first])[:token_budget]
    spare = token_budget - len(generating)
    shares: list[Share] = []
    for sequence in generating:
        drafts = tuple(sequence.drafts[:spare])
        spare -= len(drafts)
        shares.append(Share(sequence, sequence.num_computed, 1, drafts))
    room = spare if prompt_budget is None else min(spare, prompt_budget)
    if room > 0:
        wants = [_next_run(sequence, room, whole_images) for sequence in ingesting]
        counts = prompt_shares(wants, room)
        if whole_images:
            taken = sum(share.count + len(share.drafts) for share in shares)
            left = None if free_cells is None else free_cells - taken
            counts = _with_whole_images(ingesting, wants, counts, left)
    else:
        counts = [0] * len(ingesting)
    shares += [
        Share(s, s.num_computed, count) for s, count in zip(ingesting, counts, strict=True) if count
    ]
    return tuple(shares)


def _next_run(sequence: Sequence, room: int, whole_images: bool) -> int:
    """How many of its tokens could be computed together next; never more than ``room`` words."""
    start = sequence.num_computed
    if whole_images and is_image(sequence.tokens[start]):
        return run_length(sequence.tokens, start, sequence.num_missing)
    return run_length(sequence.tokens, start, min(room, sequence.num_until_checkpoint))


def _with_whole_images(
    sequences: list[Sequence], wants: list[int], counts: list[int], free_cells: int | None
) -> list[int]:
    """The first image that got anything gets all of it, if there are cells; others wait."""
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


def prompt_shares(wants: list[int], budget: int) -> list[int]:
    """Divide ``budget`` tokens among prompts that want so many each, in the order of arrival.

    The shortest go first: of prompts that share a pass equally all would be late, and nobody is
    behind a long one for more than his own length. The earliest gets a quarter in any case, so
    that a long one is not starved by a stream of short ones.
    """
    shares = [0] * len(wants)
    hungry = [index for index, want in enumerate(wants) if want > 0]
    if not hungry or budget <= 0:
        return shares
    shares[hungry[0]] = min(wants[hungry[0]], -(-budget // 4))
    budget -= shares[hungry[0]]
    for index in sorted(hungry, key=lambda index: (wants[index], index)):
        more = min(budget, wants[index] - shares[index])
        shares[index] += more
        budget -= more
    return shares
