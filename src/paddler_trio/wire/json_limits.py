"""How much JSON a text may hold, counted before anything of it is decoded.

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
"""Counted at once, a millisecond at the most."""


class JsonLimitError(WireError):
    """A JSON text holds more than its limits allow; it was not decoded."""


@attrs.frozen(kw_only=True)
class JsonLimits:
    """What one text may hold.

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
"""For a text this short the bound estimates its memory well enough."""
VALUE_BYTES: Final = 48
"""An integer, or the head of a string, and its place in a list."""
CONTAINER_BYTES: Final = 128
"""A list, or an object with few members, beside the values in it."""

Bytes: TypeAlias = npt.NDArray[np.uint8]


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
    """At least as many values and containers as decoding ``text`` could make, as far as it is
    within ``limits``."""
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
    """The same without strings; exact if ``text`` is JSON, and linear if it is not."""
    count = JsonCount(1, 0, is_exact=True)
    for structure in _structure(text):
        containers = int(np.count_nonzero((structure == ord("[")) | (structure == ord("{"))))
        values = count.values + int(structure.size)
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


def _structure(text: bytes | bytearray) -> Iterator[Bytes]:
    """Commas, colons and opening brackets outside strings, slice by slice."""
    whole = np.frombuffer(text, dtype=np.uint8)
    is_inside = False  # of a string, at the beginning of the slice
    is_escaped = False  # its first byte, by a backslash at the end of the slice before
    for start in range(0, whole.size, SLICE_BYTES):
        part = whole[start : start + SLICE_BYTES]
        escaped, leaves_escape = _escaped(part, is_escaped=is_escaped)
        quotes = np.flatnonzero((part == ord('"')) & ~escaped)
        is_escaped = leaves_escape
        marks = np.flatnonzero(
            (part == ord(",")) | (part == ord(":")) | (part == ord("[")) | (part == ord("{"))
        )
        num_quotes_before = np.searchsorted(quotes, marks)
        yield part[marks[(num_quotes_before + is_inside) % 2 == 0]]
        is_inside = bool((quotes.size + is_inside) % 2)


def _escaped(part: Bytes, *, is_escaped: bool) -> tuple[npt.NDArray[np.bool_], bool]:
    """Which bytes a backslash escapes, and whether it escapes the first of the next slice.

    In a run of backslashes the first escapes the second, the third the fourth; the last of an odd
    number escapes what follows.
    """
    escaped = np.zeros(part.size + 1, dtype=np.bool_)
    slashes = np.flatnonzero(part == ord("\\"))
    if slashes.size:
        begins_run = np.diff(slashes, prepend=slashes[0] - 2) != 1
        run_starts = np.maximum.accumulate(np.where(begins_run, slashes, 0))
        if is_escaped:  # a backslash that is escaped itself escapes nothing
            run_starts[run_starts == 0] = 1
        escaped[slashes[(slashes - run_starts) % 2 == 0] + 1] = True
    escaped[0] = is_escaped
    return escaped[:-1], bool(escaped[-1])


def decoded_bytes(text: bytes | bytearray, limits: JsonLimits = DEFAULT_LIMITS) -> int:
    """What ``text`` takes once it is decoded, estimated from above; of a short one, its length.

    Raises:
      JsonLimitError: as ``check_count``.
    """
    if len(text) <= UNCOUNTED_BYTES:
        return len(text)
    count = check_count(text, limits)
    may_be_less = not count.is_exact and count.values * VALUE_BYTES > len(text)
    if may_be_less and len(text) > ESTIMATED_BYTES:
        count = count_of(text)  # or prose would pay for its commas
    return len(text) + count.values * VALUE_BYTES + count.containers * CONTAINER_BYTES
