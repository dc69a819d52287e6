"""The token bucket: never more than a burst and a rate allow, and never less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.limits.token_bucket import TokenBucket


@given(st.lists(st.integers(0, 16), max_size=60), st.integers(1, 8))
def test_what_is_taken_is_what_an_exact_count_allows(eighths: list[int], burst: int) -> None:
    """Times are whole eighths of a second at four tokens a second: exact in binary."""
    bucket = TokenBucket(burst, 4.0, now_s=0.0)
    now_s, tokens = 0.0, float(burst)
    for step in eighths:
        now_s += step / 8
        tokens = min(burst, tokens + step / 2)
        expected = tokens >= 1
        tokens -= expected
        assert bucket.take(now_s) is expected
