"""Split one forward pass among sequences. Decides; changes nothing.

Decode first, then prefill: every generating sequence gets its one token, so nobody's stream
stalls behind a prompt; what is left of the budget goes to prompts in equal shares, so a short
prompt is not stuck behind a long one. If more sequences generate than the budget holds, the turn
rotates by the number of the pass.

Source: iteration-level scheduling, Orca (OSDI '22); chunked prefill, Sarathi-Serve (OSDI '24).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from paddler_trio.scheduler.batching.sequences import Sequence


@attrs.frozen
class Share:
    """``count`` tokens of one sequence, from position ``start``, in one pass."""

    sequence: Sequence
    start: int
    count: int

    @property
    def wants_logits(self) -> bool:
        """The share ends with the sequence's newest token, so the next one can be drawn."""
        return self.start + self.count == self.sequence.num_tokens


def plan_batch(
    sequences: Iterable[Sequence], *, token_budget: int, turn: int = 0
) -> tuple[Share, ...]:
    """The shares of the next pass.

    Args:
      sequences: in arrival order, each at most once.
      token_budget: tokens the engine takes in one pass (its ``n_batch``), >= 1.
      turn: number of the pass; rotates who goes first when not all can.

    Returns:
      Shares of >= 1 token each, summing to at most ``token_budget``, decoding ones first;
      empty means there is nothing to compute.
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
    shares = [Share(s, s.num_computed, 1) for s in generating]
    counts = fair_shares([s.num_missing for s in ingesting], token_budget - len(shares), turn)
    shares += [
        Share(s, s.num_computed, count) for s, count in zip(ingesting, counts, strict=True) if count
    ]
    return tuple(shares)


def fair_shares(wants: list[int], budget: int, turn: int = 0) -> list[int]:
    """Max-min fair division: nobody gets more than it wants, nobody less without need.

    Tokens that do not divide evenly go round by ``turn``.
    """
    shares = [0] * len(wants)
    hungry = sorted((i for i, want in enumerate(wants) if want > 0), key=lambda i: wants[i])
    while hungry and budget > 0:
        each = budget // len(hungry)
        if each == 0:
            for step in range(budget):
                shares[sorted(hungry)[(turn + step) % len(hungry)]] += 1
            break
        if wants[hungry[0]] - shares[hungry[0]] <= each:
            index = hungry.pop(0)
            budget -= wants[index] - shares[index]
            shares[index] = wants[index]
            continue
        for index in hungry:
            shares[index] += each
        budget -= each * len(hungry)
    return shares
