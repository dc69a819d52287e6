"""Names of a request in the logs and traces of an agent: a member of the frame that starts it.

An agent that reads it offers :data:`FEATURE` in the header :data:`FEATURES_HEADER` when it dials;
the others are not sent it, since an unknown member is an error for them.
"""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.wire.codec import dumps
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent, parse_tracestate

FEATURES_HEADER: Final = b"x-paddler-trio-features"
"""Names, separated by commas."""
FEATURE: Final = b"trace"


@attrs.frozen
class RequestTrace:
    """``parent``: a ``traceparent`` that names the span of this placement; ``request``: the id of
    the request in logs, which routes nothing; ``state``: the ``tracestate``."""

    parent: str
    request: str
    state: str = attrs.field(default="", metadata=OMITTED)

    def frame_member(self) -> bytes:
        """Return the member as JSON."""
        state = b',"state":%b' % dumps(self.state) if self.state else b""
        return b'{"parent":%b,"request":%b%b}' % (dumps(self.parent), dumps(self.request), state)

    def context(self) -> TraceContext | None:
        """Return the context; None if ``parent`` is malformed."""
        context = parse_traceparent(self.parent)
        if context is None or not self.state:
            return context
        return attrs.evolve(context, state=parse_tracestate([self.state]))
