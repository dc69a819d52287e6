"""W3C Trace Context: which trace a request belongs to, as headers and frames carry it.

``traceparent`` is ``00-<trace id>-<span id>-<flags>`` in lower-case hexadecimal digits;
``tracestate`` is a list of ``key=value`` that tracing systems keep for each other, passed on as it
came and within bounds. Both are read strictly: what is malformed counts as absent, so a client
cannot break a request with them, nor write anything of its own into a log or a trace.

Source: https://www.w3.org/TR/trace-context/ (versions 00 and later ones, whose first four fields
are the same).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import attrs

TRACEPARENT_CHARS: Final = 55
"""The length of version 00, which is the one that is written."""
MAX_LATER_CHARS: Final = 256
"""The length of a later version, whose further fields are unknown and not passed on."""
MAX_STATE_CHARS: Final = 512
MAX_STATE_MEMBERS: Final = 32
LONG_MEMBER_CHARS: Final = 128
"""Members above this go first when a tracestate is too long."""

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_KEY: Final = r"(?:[a-z0-9][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER: Final = re.compile(f"({_KEY})=({_VALUE})")
_SAMPLED: Final = 0x01
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


@attrs.frozen
class TraceContext:
    """The trace that a request belongs to.

    Args:
      trace_id: 32 hexadecimal digits.
      span_id: 16 of them: the span of this request here, the parent of what follows from it.
      is_sampled: its spans are to be exported wherever they arise.
      is_exported: they are, here; else ``span_id`` may be that of the caller.
      parent_id: the caller's span; None if the trace begins here.
      state: the ``tracestate`` to pass on; empty for none.
    """

    trace_id: str
    span_id: str
    is_sampled: bool = False
    is_exported: bool = False
    parent_id: str | None = None
    state: str = ""

    def traceparent(self, span_id: str | None = None) -> str:
        """Return the header for the next one; ``span_id`` for one of the spans below this one."""
        return f"00-{self.trace_id}-{span_id or self.span_id}-{self.is_sampled:02x}"

    def span_below(self, name: str) -> str:
        """Return the id of a span below this one, the same for the same name: it can be sent to an
        agent long before the span itself is made."""
        digest = hashlib.blake2s(f"{self.span_id}/{name}".encode(), digest_size=8)
        return digest.hexdigest()


def parse_traceparent(text: str) -> TraceContext | None:
    """Return the caller's trace and, as ``span_id``, its span; None if ``text`` is malformed."""
    found = _TRACEPARENT.match(text)
    if found is None or len(text) > MAX_LATER_CHARS:
        return None
    version, trace_id, span_id, flags = found.groups()
    rest = text[TRACEPARENT_CHARS:]
    if version == "ff" or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    if rest and (version == "00" or not rest.startswith("-")):
        return None
    return TraceContext(trace_id, span_id, is_sampled=bool(int(flags, 16) & _SAMPLED))


def parse_tracestate(headers: Sequence[str]) -> str:
    """Return the members of all ``tracestate`` headers as one, at most ``MAX_STATE_CHARS`` long.

    Empty if one of them is malformed or there are too many: half a list would be a wrong one. Of a
    list that is too long the members above ``LONG_MEMBER_CHARS`` are left out, then the last ones.
    """
    if sum(map(len, headers)) > MAX_STATE_MEMBERS * MAX_STATE_CHARS:
        return ""
    members = [each.strip(" \t") for text in headers for each in text.split(",")]
    members = [each for each in members if each]
    keys = [found[1] for found in map(_MEMBER.fullmatch, members) if found is not None]
    if len(members) > MAX_STATE_MEMBERS or len(set(keys)) != len(members):
        return ""
    if len(",".join(members)) > MAX_STATE_CHARS:
        members = [each for each in members if len(each) <= LONG_MEMBER_CHARS]
    while len(",".join(members)) > MAX_STATE_CHARS:
        members.pop()
    return ",".join(members)
