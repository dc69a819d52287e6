"""Count how much JSON a text holds, before anything of it is decoded.

The cost of decoding grows with the values, not the bytes: three bytes, ``[],``, become a list of
56 bytes. So a text is counted first, at the speed of reading memory, and a text over a limit costs
only this count.

Commas, colons and opening brackets bound the number of values from above. They may also be part of
strings: if the bound is over a limit, they are counted again without the strings. That count works
on slices, in numpy, so that other threads run meanwhile. Either count ends where it is over a
limit: what is refused costs what the limits allow, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from paddler_trio.errors import WireError

SLICE_BYTES: Final = 262_144
"""Counted at once, in two milliseconds at the most."""


class JsonLimitError(WireError):
    """A JSON text holds more than its limits allow; it was not decoded."""


@attrs.frozen(kw_only=True)
class JsonLimits:
    """Limits of one text.

    Attributes:
      max_values: scalars, containers and names of members together. A prompt as token ids is one
        value for each token: the default is a prompt of a million tokens, the longest context
        that models are trained for.
      max_containers: objects and arrays. A message is one or two, so is a tool; the default is a
        conversation of 100,000 messages.
    """

    max_values: int = 1_048_576
    max_containers: int = 131_072


DEFAULT_LIMITS: Final = JsonLimits()
UNCOUNTED_BYTES: Final = 16_384
"""A text this short holds 5,461 values at the most: counting it would change nothing."""

ESTIMATED_BYTES: Final = 65_536
"""The bound estimates the memory of a text this short well enough."""
VALUE_BYTES: Final = 48
"""An integer, or the head of a string, and its place in a list."""
CONTAINER_BYTES: Final = 128
"""A list, or an object with few members, beside the values in it."""

Bools: TypeAlias = npt.NDArray[np.bool_]


@attrs.frozen
class JsonCount:
    """``is_exact``: without what stands in strings; otherwise an upper bound.

    One that is over the limits it was counted within is of a part of the text.
    """

    values: int
    containers: int
    is_exact: bool = False

    def within(self, limits: JsonLimits) -> bool:
        return self.values <= limits.max_values and self.containers <= limits.max_containers


def bound_of(text: bytes | bytearray, limits: JsonLimits | None = None) -> JsonCount:
    """Return at least as many values and containers as decoding ``text`` could make, as far as it
    is within ``limits``."""
    count = JsonCount(1, 0)
    for start in range(0, len(text), SLICE_BYTES):
        end = start + SLICE_BYTES
        separators = text.count(b",", start, end) + text.count(b":", start, end)
        containers = text.count(b"[", start, end) + text.count(b"{", start, end)
        count = JsonCount(count.values + separators + containers, count.containers + containers)
        if limits is not None and not count.within(limits):
            break
    return count


def count_of(text: bytes | bytearray, limits: JsonLimits | None = None) -> JsonCount:
    """Return the count without strings; exact if ``text`` is JSON, and linear if it is not."""
    count = JsonCount(1, 0, is_exact=True)
    for separators, containers in _structure(text):
        values = count.values + separators + containers
        count = JsonCount(values, count.containers + containers, is_exact=True)
        if limits is not None and not count.within(limits):
            break
    return count


def check_count(text: bytes | bytearray, limits: JsonLimits = DEFAULT_LIMITS) -> JsonCount:
    """Count ``text``, which is UTF-8 or claims to be.

    Raises:
      JsonLimitError: it holds more than ``limits`` allow; the message names the limit.
    """
    count = bound_of(text, limits)
    if not count.within(limits):
        count = count_of(text, limits)
    if count.containers > limits.max_containers:
        raise JsonLimitError(
            f"JSON with at least {count.containers} objects and arrays; the limit max_containers "
            f"is {limits.max_containers}: send less in one request"
        )
    if count.values > limits.max_values:
        raise JsonLimitError(
            f"JSON with at least {count.values} values; the limit max_values is "
            f"{limits.max_values}: send less in one request"
        )
    return count


def _structure(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield for each slice, without strings, how many commas and colons it has, and how many
    opening brackets."""
    whole = np.frombuffer(text, dtype=np.uint8)
    is_inside = False  # of a string, at the beginning of the slice
    is_escaped = False  # its first byte, by a backslash at the end of the slice before
    for start in range(0, whole.size, SLICE_BYTES):
        part = whole[start : start + SLICE_BYTES]
        turns = part == ord('"')
        slashes = part == ord("\\")
        if is_escaped or slashes.any():
            escaped, is_escaped = escaped_bytes(slashes, is_escaped=is_escaped)
            turns &= ~escaped
        turns[0] ^= is_inside
        inside = np.logical_xor.accumulate(turns)
        is_inside = bool(inside[-1])
        separators = ((part == ord(",")) | (part == ord(":"))) & ~inside
        brackets = ((part == ord("[")) | (part == ord("{"))) & ~inside
        yield int(np.count_nonzero(separators)), int(np.count_nonzero(brackets))


def escaped_bytes(slashes: Bools, *, is_escaped: bool) -> tuple[Bools, bool]:
    """Return which bytes of a slice a backslash escapes, and whether it escapes the first of the
    next slice.

    A byte is escaped after an odd number of backslashes: in a run of them the first escapes the
    second, the third the fourth.
    """
    slashes = np.concatenate(([is_escaped], slashes))  # the byte before the slice, and the slice
    places = np.arange(1, slashes.size + 1, dtype=np.int32)
    last_other = np.maximum.accumulate(places * ~slashes)
    escaped = ((places ^ last_other) & 1).astype(np.bool_)  # the parity of their difference
    return escaped[:-1], bool(escaped[-1])


def decoded_bytes(text: bytes | bytearray, limits: JsonLimits = DEFAULT_LIMITS) -> int:
    """Return what ``text`` takes once it is decoded, estimated from above; the length of a short
    one.

    Raises:
      JsonLimitError: as ``check_count``.
    """
    if len(text) <= UNCOUNTED_BYTES:
        return len(text)
    count = check_count(text, limits)
    may_be_less = not count.is_exact and count.values * VALUE_BYTES > len(text)
    if may_be_less and len(text) > ESTIMATED_BYTES:
        count = count_of(text)  # or prose would pay for its commas
    return _estimated_bytes(text, count)


def weight_bytes_of(text: bytes) -> int:
    """Return what a text of ours takes once it is decoded; it has any length, and no limits hold
    for it."""
    return _estimated_bytes(text, count_of(text))


def _estimated_bytes(text: bytes | bytearray, count: JsonCount) -> int:
    return len(text) + count.values * VALUE_BYTES + count.containers * CONTAINER_BYTES
