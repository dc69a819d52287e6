"""The stages of a prompt that an agent computed: in an entry of a ``Step``, once, with the first
results.

Names of a request in the logs and traces of an agent: a member of the frame that starts it.

An agent that reads it offers :data:`FEATURE` in the header :data:`FEATURES_HEADER` when it dials;
the others are not sent it, since an unknown member is an error for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from paddler_trio.wire.codec import dumps
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent, parse_tracestate

MAX_TOKENS: Final = 2**31 - 1
MAX_MS: Final = 86_400_000


@attrs.frozen(kw_only=True)
class PromptStages:
    """Counts are tokens, times milliseconds.

    Args:
      tokens: of the prompt, cached ones included.
      cached: those that were not computed.
      template_ms: from the arrival of the request until its prompt was tokens.
      wait_ms: until the engine began with it.
      prefill_ms: until the first token was sampled.
    """

    tokens: int
    cached: int
    template_ms: int
    wait_ms: int
    prefill_ms: int

    def fields(self) -> dict[str, int]:
        """Return the stages as they stand in a frame."""
        return attrs.asdict(self)

    @classmethod
    def read(cls, value: object) -> PromptStages | None:
        """Return None if ``value`` holds no stages; each number is held within its limits: it is
        only shown."""
        if not isinstance(value, Mapping):
            return None
        numbers: dict[str, int] = {}
        for name in _NAMES:
            number = value.get(name)
            if type(number) is not int:
                return None
            most = MAX_MS if name.endswith("_ms") else MAX_TOKENS
            numbers[name] = max(0, min(most, number))
        return cls(**numbers)


def bounded_count(value: object) -> int:
    """Return a count that an agent reported, within the limits of what is shown; 0 for anything
    else."""
    return max(0, min(MAX_TOKENS, value)) if type(value) is int else 0


_NAMES: Final = tuple(field.name for field in attrs.fields(PromptStages))


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
