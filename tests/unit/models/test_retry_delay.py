"""When a download is tried again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.download.download_progress import (
    LONGEST_RETRY_S,
    PERMANENT_RETRY_S,
    RetryDelay,
)
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    ServerFailedError,
    ServerUnreachableError,
    Subject,
)

SUBJECT = Subject("https://host/m", is_hub=False)


def test_delays_double_up_to_a_minute_and_start_again_after_a_success() -> None:
    retry, error = RetryDelay(), ServerUnreachableError(SUBJECT, "")
    assert [retry.after(error, 1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    retry.reset()
    assert retry.after(error, 1.0) == 1


def test_what_is_permanent_waits_ten_minutes_and_counts_as_no_failure() -> None:
    retry = RetryDelay()
    assert retry.after(AccessDeniedError(SUBJECT, ""), 0.5) == PERMANENT_RETRY_S
    assert retry.after(ServerUnreachableError(SUBJECT, ""), 1.0) == 1


def test_a_servers_wish_counts_up_to_ten_minutes() -> None:
    assert RetryDelay().after(ServerFailedError(SUBJECT, "", 7.0), 0.0) == 7
    assert RetryDelay().after(ServerFailedError(SUBJECT, "", 1e9), 0.0) == PERMANENT_RETRY_S


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=40))
def test_jitter_takes_at_most_half(chances: list[float]) -> None:
    retry, full = RetryDelay(), RetryDelay()
    error = ServerUnreachableError(SUBJECT, "")
    for chance in chances:
        longest = full.after(error, 1.0)
        assert longest / 2 <= retry.after(error, chance) <= longest <= LONGEST_RETRY_S
