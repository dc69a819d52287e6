"""The Range header of RFC 9110, as far as files need it: one range of bytes. Pure."""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.models.download.block_plan import ByteRange

_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


@attrs.frozen
class Unsatisfiable:
    """An answer of 416: nothing of the file is in the range that was asked for."""


WHOLE: Final = None


def wanted_range(
    text: str | None, *, size_bytes: int, if_range: str | None = None, etag: str = ""
) -> ByteRange | Unsatisfiable | None:
    """Return what to send of a file; :data:`WHOLE` if it is all of it, as for a header that is
    none.

    Args:
      text: of the Range header.
      if_range, etag: of the request, and of the file as it is now; the range counts only if they
        are equal.
    """
    match = None if text is None else _RANGE.fullmatch(text.strip())
    if match is None or (if_range is not None and if_range != etag):
        return WHOLE
    first, last = match.groups()
    if not first and not last:
        return WHOLE
    if not first:
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), size_bytes if not last else min(int(last) + 1, size_bytes)
        if last and int(last) < start:
            return WHOLE
    return ByteRange(start, stop) if start < stop else Unsatisfiable()
