"""The Range header: what is asked for is a part of the file, or all of it, or nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.download.block_plan import ByteRange
from paddler_trio.processes.model_store.send_arriving import WHOLE, Unsatisfiable, wanted_range

SIZES = st.integers(min_value=0, max_value=10**15)


@given(SIZES, SIZES, SIZES)
def test_a_range_is_what_a_slice_would_be(size: int, first: int, last: int) -> None:
    wanted = wanted_range(f"bytes={first}-{last}", size_bytes=size)
    if last < first:
        assert wanted is WHOLE, "RFC 9110: such a range is to be ignored"
    elif first >= size:
        assert wanted == Unsatisfiable()
    else:
        assert wanted == ByteRange(first, min(last + 1, size))


@given(SIZES, SIZES)
def test_open_ranges_end_with_the_file(size: int, number: int) -> None:
    from_there = wanted_range(f"bytes={number}-", size_bytes=size)
    last_ones = wanted_range(f"bytes=-{number}", size_bytes=size)
    assert from_there == (ByteRange(number, size) if number < size else Unsatisfiable())
    is_some = number > 0 and size > 0
    assert last_ones == (ByteRange(max(0, size - number), size) if is_some else Unsatisfiable())


@given(st.text("bytes=-, 0123456789", max_size=30).map("bytes=".__add__), SIZES)
def test_whatever_else_stands_there_means_the_whole_file_or_a_part_of_it(
    text: str, size: int
) -> None:
    wanted = wanted_range(text, size_bytes=size)
    if isinstance(wanted, ByteRange):
        assert 0 <= wanted.start < wanted.stop <= size


def test_a_range_counts_only_for_the_file_that_the_client_has() -> None:
    assert wanted_range("bytes=1-2", size_bytes=9, if_range='"a"', etag='"a"') == ByteRange(1, 3)
    assert wanted_range("bytes=1-2", size_bytes=9, if_range='"a"', etag='"b"') is WHOLE
    assert wanted_range("bytes=1-2,4-5", size_bytes=9) is WHOLE
    assert wanted_range(None, size_bytes=9) is WHOLE
