"""What an engine counts: reported when it changed, not too often, and by two threads in order."""

from __future__ import annotations

import threading

import attrs

from paddler_trio.processes.engine.stats import INTERVAL_S, Counters
from paddler_trio.wire.engine.engine_pipe import EngineStats


@attrs.define
class Cells:
    num_used: int = 30
    num_free: int = 70


@attrs.define
class SomeStreams:
    """Of ``scheduler.batching.streams.Streams`` what is reported."""

    cells: Cells = attrs.field(factory=Cells)
    preemptions: int = 2
    num_running: int = 3
    num_waiting: int = 4
    num_resident: int = 20


def test_everything_that_was_counted_and_is_held_is_reported() -> None:
    said: list[EngineStats] = []
    counters = Counters(said.append)
    counters.passed(sequences=3, tokens=9, prompt_tokens=7, pass_ms=2.0)
    counters.passed(sequences=2, tokens=2, prompt_tokens=0, pass_ms=1.0)
    counters.now.drawn_tokens += 5
    counters.embedded(documents=4, tokens=60, pass_ms=8.0)
    counters.report_streams(SomeStreams(), stored_tokens=11, stored_bytes=1100)  # type: ignore[arg-type]
    counters.now.drawn_tokens += 1
    assert said == [
        EngineStats(
            passes=2,
            prompt_tokens=7,
            drawn_tokens=5,
            preemptions=2,
            busy_ms=3.0,
            last_sequences=2,
            last_tokens=2,
            last_ms=1.0,
            running=3,
            waiting=4,
            cells_total=100,
            cells_used=30,
            cells_resident=20,
            stored_tokens=11,
            stored_bytes=1100,
            embedding_documents=4,
            embedding_tokens=60,
            embedding_passes=1,
            embedding_ms=8.0,
        )
    ]


def test_each_thread_reports_its_own_news_at_its_own_time() -> None:
    said: list[EngineStats] = []
    counters = Counters(said.append)
    counters.report_embedding(100.0, force=True)
    assert not counters.is_due(100.0, force=True)
    assert not said, "nothing happened yet"
    counters.embedded(documents=1, tokens=1, pass_ms=1.0)
    counters.report_embedding(100.0, force=False)
    counters.embedded(documents=1, tokens=1, pass_ms=1.0)
    counters.report_embedding(100.0 + INTERVAL_S / 2, force=False)
    assert [each.embedding_documents for each in said] == [1], "too early"
    counters.passed(sequences=1, tokens=1, prompt_tokens=1, pass_ms=1.0)
    assert counters.is_due(100.0, force=False), "the other thread's report is not this one's"
    assert not counters.is_due(200.0, force=True), "nothing was generated since"
    counters.report_embedding(100.0 + INTERVAL_S / 2, force=True)
    assert [each.embedding_documents for each in said] == [1, 2]


def test_stats_never_go_back_from_whichever_thread_they_are_reported() -> None:
    said: list[EngineStats] = []
    counters = Counters(said.append)
    rounds = 2000

    def embed() -> None:
        for _ in range(rounds):
            counters.embedded(documents=1, tokens=2, pass_ms=1.0)
            counters.report_embedding(0.0, force=True)

    thread = threading.Thread(target=embed)
    thread.start()
    for _ in range(rounds):
        counters.passed(sequences=1, tokens=1, prompt_tokens=1, pass_ms=1.0)
        counters.report_streams(SomeStreams(), stored_tokens=0, stored_bytes=0)  # type: ignore[arg-type]
    thread.join()
    assert len(said) == 2 * rounds
    for name in ("passes", "embedding_documents", "embedding_tokens"):
        values = [getattr(each, name) for each in said]
        assert values == sorted(values), name
    assert (said[-1].passes, said[-1].embedding_tokens) == (rounds, 2 * rounds)
