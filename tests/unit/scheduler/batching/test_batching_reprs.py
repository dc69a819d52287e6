"""Sequences and streams show themselves in a few words."""

from __future__ import annotations

from paddler_trio.scheduler.batching.batch_plan import PrefillBudget
from paddler_trio.scheduler.batching.cells import SplitCells, UnifiedCells
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams


def test_a_sequence_shows_its_phase_and_its_tokens() -> None:
    streams = Streams(2, UnifiedCells(2, 100), 2)
    sequence = Sequence(7, [1, 2, 3], 3)
    assert repr(sequence) == "<Sequence 7: waiting, 0 of 3 tokens computed, 0 sampled>"
    streams.enqueue(sequence)
    streams.start_next()
    assert "prefill in stream 0, 0 of 3" in repr(sequence)
    streams.commit(streams.plan(token_budget=8, prefill_budget=PrefillBudget(8)))
    sequence.tokens.append(4)
    assert "generating in stream 0, 3 of 4 tokens computed, 1 sampled" in repr(sequence)


def test_streams_show_who_runs_and_which_cells_are_used() -> None:
    streams = Streams(2, UnifiedCells(2, 100), 2)
    for key in range(3):
        streams.enqueue(Sequence(key, [1, 2, 3], 3, salt=None))
    while streams.start_next() is not None:
        pass
    streams.commit(streams.plan(token_budget=8, prefill_budget=PrefillBudget(8)))
    assert repr(streams) == (
        "<Streams: 2 of 2 slots running, 1 waiting, 0 tokens resident, "
        "<UnifiedCells: 6 of 100 used>>"
    )
    cells = SplitCells(2, 50)
    cells.grow(1, 4)
    assert repr(cells) == "<SplitCells: 2 of 50, used [0, 4]>"
