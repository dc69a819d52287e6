"""Numbers with the ranges their peers hold them in.

Floats travel as 32-bit values. The rule kept everywhere: a float in a wire value *is* the double
nearest to the shortest decimal that names its 32-bit value. So ``0.8`` stays ``0.8``, equality is
plain ``==``, and writing a float needs no further thought.

Source:
  Nine significant digits always identify a 32-bit float, six always survive a trip through one
  (IEEE 754-2019, 5.12.2).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.errors import WireError

_SINGLE = struct.Struct("=f")
_DIGITS = (6, 7, 8, 9)
_LARGEST_EXACT_POWER_OF_TEN = 22  # 10**22 is the last one a double holds exactly


@attrs.frozen
class IntRange:
    """The integers from ``low`` to ``high``, both included."""

    low: int
    high: int


@attrs.frozen
class SinglePrecision:
    """Marks a float that peers hold in 32 bits."""


Int32: TypeAlias = Annotated[int, IntRange(-(2**31), 2**31 - 1)]
Uint32: TypeAlias = Annotated[int, IntRange(0, 2**32 - 1)]
Uint64: TypeAlias = Annotated[int, IntRange(0, 2**64 - 1)]
Float32: TypeAlias = Annotated[float, SinglePrecision()]


def float32(value: float) -> float:
    """Return ``value`` rounded to 32 bits; the result is the double its shortest decimal names
    (``0.8``).

    Raises:
      WireError: NaN, infinite, or beyond the largest 32-bit float.
    """
    try:
        if not math.isfinite(value):
            raise WireError(f"expected a finite number, got {value}")
        single = _SINGLE.pack(value)
    except OverflowError as error:
        raise WireError("number does not fit a 32-bit float") from error
    (exact,) = _SINGLE.unpack(single)
    for digits in _DIGITS[:-1]:
        shortened = float(f"{exact:.{digits}g}")
        if _SINGLE.pack(shortened) == single:
            return shortened
    return float(f"{exact:.{_DIGITS[-1]}g}")


def float32s(values: Sequence[float] | npt.NDArray[np.floating[Any]]) -> tuple[float, ...]:
    """Return ``float32`` of each value, thirty times as fast: embeddings have thousands of them.

    An integer below 2**53 divided by an exact power of ten rounds once, to the very double the
    decimal names. Each candidate is checked against the 32-bit value it must name; the few that
    fall outside the fast range go through ``float32``.
    """
    try:
        with np.errstate(all="ignore"):
            single = np.asarray(values, dtype=np.float32)
    except OverflowError as error:
        raise WireError("number does not fit a 32-bit float") from error
    if not np.isfinite(single).all():
        raise WireError("expected finite numbers that fit a 32-bit float")
    exact = single.astype(np.float64)
    result = np.zeros_like(exact)
    pending = exact != 0
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log10(np.abs(exact)))
        for digits in _DIGITS:
            shift = digits - 1 - exponent
            scale = np.power(10.0, np.clip(shift, 0, _LARGEST_EXACT_POWER_OF_TEN))
            candidate = np.rint(exact * scale) / scale
            fits = (
                pending
                & (exponent < _DIGITS[0])  # else fewer digits may do, left of the point
                & (shift <= _LARGEST_EXACT_POWER_OF_TEN)
                & (candidate.astype(np.float32) == single)
            )
            result[fits] = candidate[fits]
            pending &= ~fits
    for index in np.flatnonzero(pending):
        result[index] = float32(float(exact[index]))
    return tuple(result.tolist())


def rfc3339(moment: datetime) -> str:
    """Return a time as RFC 3339 has it, in UTC and whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
