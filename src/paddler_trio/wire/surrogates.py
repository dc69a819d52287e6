"""Escapes in JSON text that stand for half a surrogate pair.

``json`` decodes them to a text that cannot be written as UTF-8 again. Looking for them in the value
would hold the interpreter for as long as the value is large; this looks at the text, in slices.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from paddler_trio.wire.json_limits import SLICE_BYTES, Bools, escaped_bytes

ESCAPE_BYTES: Final = 6
"""The bytes of one escape, such as ``\\ud83d``."""


def has_half_pair(text: bytes | bytearray) -> bool:
    """Return whether ``text``, which must be valid JSON, escapes a high surrogate without a low one
    right behind it, or a low one without a high one before it."""
    whole = np.frombuffer(text, dtype=np.uint8)
    is_escaped = False  # the first byte of the slice, by a backslash at the end of the one before
    open_high = np.array([], dtype=np.intp)  # where a high one ended what was looked at
    for start in range(0, whole.size, SLICE_BYTES):
        slashes = whole[start : start + SLICE_BYTES] == ord("\\")
        escaped, is_escaped = escaped_bytes(slashes, is_escaped=is_escaped)
        places, is_high = _surrogates(whole, start + np.flatnonzero(slashes & ~escaped))
        if not places.size:
            continue
        places = np.concatenate((open_high, places))
        is_high = np.concatenate((np.ones(open_high.shape, dtype=np.bool_), is_high))
        is_pair = is_high[:-1] & ~is_high[1:] & (np.diff(places) == ESCAPE_BYTES)
        if not is_high[0] or (is_high[:-1] & ~is_pair).any() or (~is_high[1:] & ~is_pair).any():
            return True
        open_high = places[-1:] if is_high[-1] else places[:0]
    return bool(open_high.size)


def _surrogates(
    whole: npt.NDArray[np.uint8], escapes: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], Bools]:
    """Return the ``escapes`` that are surrogates, and which of them are high ones."""
    escapes = escapes[whole[escapes + 1] == ord("u")]
    lower = 0x20  # what makes a letter small, and leaves a digit as it is
    escapes = escapes[(whole[escapes + 2] | lower) == ord("d")]
    digits = whole[escapes + 3] | lower
    is_surrogate = digits >= ord("8")
    return escapes[is_surrogate], digits[is_surrogate] < ord("c")
