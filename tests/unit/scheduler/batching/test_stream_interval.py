"""Short passes are delivered together, long ones one by one, and no token waits too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.stream_interval import StreamInterval

INTERVAL_S = 0.016
ROUNDING_S = 1e-9
intervals = st.sampled_from([0.0, 0.001, INTERVAL_S, 1.0])


def deliveries(interval_s: float, passes_s: list[float]) -> list[tuple[float, list[float]]]:
    """When what was delivered, with a clock that ends a wait exactly when it is due."""
    interval = StreamInterval(interval_s)
    now_s, waiting, delivered = 0.0, list[float](), list[tuple[float, list[float]]]()

    def deliver(at_s: float) -> None:
        delivered.append((at_s, waiting[:]))
        waiting.clear()
        interval.delivered(at_s)

    for took_s in passes_s:
        now_s += took_s
        if waiting and interval.due_s < now_s:
            deliver(interval.due_s)
        waiting.append(now_s)
        if interval.passed(now_s):
            deliver(now_s)
    if waiting:
        deliver(interval.due_s)
    return delivered


@given(intervals, st.lists(st.floats(0.0, 0.1), max_size=60))
def test_every_pass_is_delivered_once_in_order_and_in_time(
    interval_s: float, passes_s: list[float]
) -> None:
    delivered = deliveries(interval_s, passes_s)
    ready_s = [each for _, waited in delivered for each in waited]
    assert len(ready_s) == len(passes_s)
    assert ready_s == sorted(ready_s)
    for at_s, waited in delivered:
        assert all(0 <= at_s - each <= interval_s + ROUNDING_S for each in waited)


@given(st.floats(INTERVAL_S * 0.51, 1.0), st.integers(1, 50))
def test_passes_of_more_than_half_the_interval_are_delivered_one_by_one(
    pass_s: float, count: int
) -> None:
    delivered = deliveries(INTERVAL_S, [pass_s] * count)
    assert [len(waited) for _, waited in delivered] == [1] * count
    assert all(at_s == waited[0] for at_s, waited in delivered)


@given(st.floats(0.0005, INTERVAL_S / 2.1), st.integers(40, 100))
def test_short_passes_share_their_deliveries(pass_s: float, count: int) -> None:
    """After the first, which nothing was before, each has as many as fit."""
    delivered = deliveries(INTERVAL_S, [pass_s] * count)
    fit = int(INTERVAL_S / pass_s)
    assert [len(waited) for _, waited in delivered[:1]] == [1]
    assert all(fit - 1 <= len(waited) <= fit + 1 for _, waited in delivered[1:-1])
