"""Which bytes are asked for, whatever arrives in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.download.block_plan import BlockPlan, ByteRange, block_count


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
    while True:
        wanted = data.draw(st.none() | st.integers(0, size - 1)) if size else None
        if wanted is not None:
            plan.prefer(wanted)
        part = plan.take()
        if part is None:
            break
        if wanted is not None and here[wanted // block] == 0:
            earlier = any(each.start <= wanted < each.stop for each in taken)
            assert earlier or part.start <= wanted < part.stop, "what is waited for goes first"
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
        for position in (start, max(0, start - block)):
            reach = plan.here_from(position)
            blocks_here = plan.here[position // block : block_count(position + reach, block)]
            assert all(blocks_here), "nothing is promised that is not here"
    assert plan.is_complete
    assert plan.here_bytes == plan.contiguous_bytes == size
