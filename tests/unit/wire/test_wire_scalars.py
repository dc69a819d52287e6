from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.scalars import float32, float32s

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@given(SINGLES)
@example(LARGEST)
@example(-SMALLEST)
@example(float(np.float32(2.0**-44)))
def test_the_shortest_decimal_names_the_same_32_bit_value(single: float) -> None:
    shortest = float32(single)
    assert np.float32(shortest) == np.float32(single)
    assert len(repr(shortest)) <= len(repr(single))
    assert float32(shortest) == shortest


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.8, "0.8"), (0.05, "0.05"), (1.1, "1.1"), (1, "1.0"), (0.1 + 0.2, "0.3"), (1e-5, "1e-05")],
)
def test_floats_are_written_as_people_write_them(value: float, text: str) -> None:
    assert repr(float32(value)) == text


def test_doubles_are_rounded_to_32_bits() -> None:
    assert float32(0.123456789012) == 0.12345679
    assert float32(1e-60) == 0.0
    assert float32(2**24 + 1) == 2**24


@given(st.lists(SINGLES, max_size=8))
@example([LARGEST, -LARGEST, SMALLEST, 0.0, -0.0, 1e30, 1e-30])
@example([41289152.0])
def test_a_vector_is_rounded_as_its_members_are(values: list[float]) -> None:
    assert float32s(values) == tuple(float32(value) for value in values)


def test_a_real_embedding_is_rounded_as_numpy_prints_it() -> None:
    vector = np.random.default_rng(7).standard_normal(4096).astype(np.float32) / 64
    assert float32s(vector) == tuple(float(str(single)) for single in vector)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39, -1e300, 10**400])
def test_what_32_bits_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(WireError):
        float32(value)
    with pytest.raises(WireError):
        float32s([0.5, value])
