"""Which bytes are asked for, whatever arrives in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.block_plan import BlockPlan, ByteRange, block_count


def test_a_range_header_has_its_last_byte() -> None:
    assert ByteRange(0, 10).header == "bytes=0-9"


@given(
    st.integers(0, 500),
    st.integers(1, 50),
    st.integers(1, 5),
    st.data(),
)
def test_what_is_missing_is_taken_once_in_parts_of_the_limit(
    size: int, block: int, per_part: int, data: st.DataObject
) -> None:
    count = block_count(size, block)
    here = data.draw(st.lists(st.sampled_from([0, 1]), min_size=count, max_size=count))
    plan = BlockPlan(size, block, per_part, bytearray(here))
    before = plan.here_bytes
    taken: list[ByteRange] = []
    while (part := plan.take()) is not None:
        taken.append(part)
        assert 0 <= part.start < part.stop <= size
        assert part.stop - part.start <= block * per_part
    assert sum(part.stop - part.start for part in taken) == size - before
    blocks = [start for part in taken for start in range(part.start, part.stop, block)]
    assert len(set(blocks)) == len(blocks)
    for start in data.draw(st.permutations(blocks)):
        plan.arrived(start)
        front = plan.contiguous_bytes
        assert all(plan.here[i // block] for i in range(front))
        assert front == size or plan.here[front // block] == 0
    assert plan.is_complete
    assert plan.here_bytes == plan.contiguous_bytes == size
