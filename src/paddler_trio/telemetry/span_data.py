"""Spans as plain values: what balancer and agents make of a request that has ended.

Times are seconds of Trio's clock. Names have few values; what varies is in the attributes. Neither
ever has a text of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.wire.trace_parent import TraceContext

Attribute: TypeAlias = "str | int | float | bool"
Attributes: TypeAlias = Mapping[str, Attribute]
Kind: TypeAlias = Literal["server", "client", "internal"]

MAX_ATTRIBUTE_CHARS: Final = 256


@attrs.frozen
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    at_s: float
    attributes: Attributes = attrs.field(factory=dict)


@attrs.frozen
class SpanData:
    """One span.

    Args:
      parent_id: of the span that it belongs to; None for the first one of a trace.
      is_entry: its parent is in another process.
      error: what kind of error it ended with; None for none.
    """

    name: str
    trace: TraceContext
    span_id: str
    parent_id: str | None
    start_s: float
    end_s: float
    kind: Kind = "internal"
    is_entry: bool = False
    attributes: Attributes = attrs.field(factory=dict)
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None


MakeSpans: TypeAlias = Callable[[], list[SpanData]]
"""Makes the spans of a request that has ended; called in a thread."""


def filled(**attributes: Attribute | None) -> dict[str, Attribute]:
    """Return the attributes that have a value; ``a__b`` stands for ``a.b``, and texts are cut."""
    return {
        name.replace("__", "."): value[:MAX_ATTRIBUTE_CHARS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value is not None
    }
