"""What an engine's passes produced, on its way to the pipe: together, in order, and in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from queue import Queue
from threading import Thread
from typing import Final, NoReturn

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.engine.pipe import (
    HELD_LOGPROBS,
    OUTBOX_FRAMES,
    OUTBOX_LOGPROBS,
    Outbox,
    together,
)
from paddler_trio.wire.engine.engine_pipe import (
    Ending,
    EngineStats,
    FromEngine,
    Logprobs,
    Progress,
    SampledToken,
    Step,
)

NEVER_S: Final = 3600.0
SOON_S: Final = 0.05
PATIENCE_S: Final = 30.0
BLOCKED_S: Final = 0.2


def token(number: int, key: int = 1) -> SampledToken:
    return SampledToken(key, number, b"%d" % number)


def plain(number: int) -> Step:
    return Step([token(number)], [])


def ending(number: int) -> Step:
    return Step([token(number)], [Ending(1, "length", 1, 0)])


@contextmanager
def running(
    interval_s: float, *, room: int = 0, most_held: int = OUTBOX_FRAMES
) -> Iterator[tuple[Outbox, Queue[FromEngine]]]:
    """An outbox, and what its agent has read; with ``room`` the agent takes no more at a time."""
    sent: Queue[FromEngine] = Queue(room)

    def crashed() -> NoReturn:
        raise AssertionError("the outbox crashed")

    outbox = Outbox(sent.put, interval_s, most_held=most_held)
    outbox.start(on_crash=crashed)
    yield outbox, sent


def numbers(frame: FromEngine) -> list[int]:
    assert isinstance(frame, Step)
    return [each.token for each in frame.sampled]


def test_tokens_wait_for_an_ending_and_go_with_it() -> None:
    with running(NEVER_S) as (outbox, sent):
        outbox.put(plain(1))
        assert numbers(sent.get(timeout=PATIENCE_S)) == [1]  # nothing was delivered before
        for number in (2, 3, 4):
            outbox.put(plain(number))
        outbox.put(ending(5))
        last = sent.get(timeout=PATIENCE_S)
        assert numbers(last) == [2, 3, 4, 5]
        assert isinstance(last, Step)
        assert len(last.endings) == 1


@pytest.mark.parametrize(
    "urgent",
    [
        Step([token(3)], [], [Progress(1, 5, 0, 5)]),
        Step([], [Ending(1, "stop", 1, 0)]),
        Step([], [], preempted=[1]),
        EngineStats(),
    ],
    ids=["a first token", "an ending", "a preemption", "statistics"],
)
def test_what_is_more_than_next_tokens_takes_along_what_waits(urgent: FromEngine) -> None:
    with running(NEVER_S) as (outbox, sent):
        outbox.put(plain(1))
        sent.get(timeout=PATIENCE_S)
        outbox.put(plain(2))
        outbox.put(urgent)
        expected = list(together([plain(2), urgent]))
        assert [sent.get(timeout=PATIENCE_S) for _ in expected] == expected


def test_a_token_is_delivered_although_no_pass_follows() -> None:
    with running(SOON_S) as (outbox, sent):
        outbox.put(plain(1))
        outbox.put(plain(2))
        received: list[int] = []
        while len(received) < 2:
            received += numbers(sent.get(timeout=PATIENCE_S))
        assert received == [1, 2]


def test_without_an_interval_every_pass_goes_by_itself() -> None:
    with running(0.0) as (outbox, sent):
        for number in range(5):
            outbox.put(plain(number))
            assert numbers(sent.get(timeout=PATIENCE_S)) == [number]


def test_no_more_passes_wait_than_there_is_room_for() -> None:
    with running(NEVER_S) as (outbox, sent):
        outbox.put(plain(0))
        sent.get(timeout=PATIENCE_S)
        for number in range(OUTBOX_FRAMES):
            outbox.put(plain(number))
        assert numbers(sent.get(timeout=PATIENCE_S)) == list(range(OUTBOX_FRAMES))


@pytest.mark.parametrize("most_held", [0, 1, 3])
def test_fewer_passes_wait_where_each_has_many_tokens(most_held: int) -> None:
    with running(NEVER_S, most_held=most_held) as (outbox, sent):
        outbox.put(plain(0))
        sent.get(timeout=PATIENCE_S)
        count = max(1, most_held)
        for number in range(count):
            outbox.put(plain(number))
        assert numbers(sent.get(timeout=PATIENCE_S)) == list(range(count))


def likely(number: int, alternatives: int) -> Step:
    """One token, with its own probability and so many others."""
    count = 1 + alternatives
    logprobs = Logprobs([number] * count, [b"x"] * count, [-1.0] * count)
    return Step([attrs.evolve(token(number), logprobs=logprobs)], [])


def test_tokens_with_many_probabilities_wait_for_no_next_pass() -> None:
    with running(NEVER_S) as (outbox, sent):
        outbox.put(plain(0))
        sent.get(timeout=PATIENCE_S)
        for number in range(3):
            outbox.put(likely(number, HELD_LOGPROBS))
            assert numbers(sent.get(timeout=PATIENCE_S)) == [number]
        outbox.put(likely(3, 3))
        outbox.put(plain(4))
        outbox.put(ending(5))
        assert numbers(sent.get(timeout=PATIENCE_S)) == [3, 4, 5], "few of them may wait"


def test_an_agent_that_does_not_read_makes_passes_with_many_probabilities_wait_sooner() -> None:
    each = OUTBOX_LOGPROBS // 2 - 1
    with running(NEVER_S, room=1) as (outbox, sent):
        passes = Thread(
            target=lambda: [outbox.put(likely(n, each)) for n in range(20)], daemon=True
        )
        passes.start()
        passes.join(timeout=BLOCKED_S)
        assert passes.is_alive()
        received: list[int] = []
        while len(received) < 20:
            delivery = numbers(sent.get(timeout=PATIENCE_S))
            assert len(delivery) <= 2
            received += delivery
        assert received == list(range(20))
        outbox.put(likely(20, 4 * OUTBOX_LOGPROBS))  # however many it has, a pass goes
        assert numbers(sent.get(timeout=PATIENCE_S)) == [20]
        passes.join(timeout=PATIENCE_S)
        assert not passes.is_alive()


def test_an_agent_that_does_not_read_makes_passes_wait() -> None:
    count = 10 * OUTBOX_FRAMES
    with running(NEVER_S, room=1) as (outbox, sent):
        passes = Thread(target=lambda: [outbox.put(plain(n)) for n in range(count)], daemon=True)
        passes.start()
        passes.join(timeout=BLOCKED_S)
        assert passes.is_alive()
        received: list[int] = []
        while len(received) < count - OUTBOX_FRAMES:
            delivery = numbers(sent.get(timeout=PATIENCE_S))
            assert len(delivery) <= OUTBOX_FRAMES
            received += delivery
        assert received == list(range(len(received)))
        passes.join(timeout=PATIENCE_S)
        assert not passes.is_alive()


frames = st.one_of(
    st.builds(lambda number: plain(number), st.integers(0, 99)),
    st.builds(lambda number: ending(number), st.integers(0, 99)),
    st.builds(lambda key: Step([token(1, key)], [], [Progress(key, 1, 0, 1)]), st.integers(1, 9)),
    st.builds(lambda key: Step([token(2, key)], [], preempted=[key]), st.integers(1, 9)),
    st.builds(EngineStats),
)


@given(st.lists(frames, max_size=20))
def test_together_they_say_what_each_said(produced: list[FromEngine]) -> None:
    """Nothing is lost or moved, and nothing moves past a preemption or what is no step."""
    merged = list(together(produced))
    assert _said(merged) == _said(produced)
    assert len(merged) <= len(produced)
    for before, after in pairwise(merged):
        if isinstance(before, Step) and isinstance(after, Step):
            assert before.preempted or after.preempted, "neighbours that could have been one"


def _said(frames: list[FromEngine]) -> list[object]:
    """Each sort of news by itself, between two things that nothing moves past."""
    said: list[object] = []
    run: list[list[object]] = [[], [], []]
    for frame in frames:
        if isinstance(frame, Step) and not frame.preempted:
            for sort, news in zip(run, (frame.sampled, frame.endings, frame.progress), strict=True):
                sort.extend(news)
        else:
            said += [run, frame]
            run = [[], [], []]
    return [*said, run]
