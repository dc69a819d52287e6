"""Which trace a request of a client belongs to: its caller's, or a new one.

Every request has one, whether spans are exported or not: its id is in all lines of the log. Where
nothing is exported here, the caller's span is passed on as it came, so that a trace has no span
whose parent is missing.
"""

from __future__ import annotations

import secrets
from typing import Final

import attrs

from paddler_trio.http.asgi import Scope
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent, parse_tracestate

_ENTRY: Final = "paddler_trio.trace"
"""The member of a scope that has the ``TraceEntry`` of its request."""

_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"
_SPACE: Final = 1 << 64


@attrs.frozen
class Sampling:
    """Which traces are exported here.

    Args:
      exports: any at all.
      ratio: of the traces that begin here, 0 to 1; those of a caller follow its flag.
    """

    exports: bool = False
    ratio: float = 1.0

    def begins(self) -> TraceContext:
        """A new trace."""
        trace_id = secrets.token_hex(16)
        # the lower half decides, as in OpenTelemetry's samplers: all who use it agree
        is_sampled = self.exports and int(trace_id[16:], 16) < self.ratio * _SPACE
        return TraceContext(trace_id, secrets.token_hex(8), is_sampled, is_exported=is_sampled)

    def continues(self, caller: TraceContext | None) -> TraceContext:
        """A request of ``caller``, or without one."""
        if caller is None:
            return self.begins()
        if not self.exports:
            return attrs.evolve(caller)  # an object for each request: see request_account.py
        return attrs.evolve(
            caller,
            span_id=secrets.token_hex(8),
            is_exported=caller.is_sampled,
            parent_id=caller.span_id,
        )


NO_EXPORT: Final = Sampling()


def caller_of(scope: Scope) -> TraceContext | None:
    """The trace of the caller, from exactly one valid ``traceparent``; None without."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in scope["headers"]:
        if name == _TRACEPARENT:
            parents.append(value)
        elif name == _TRACESTATE:
            states.append(value)
    if len(parents) != 1:
        return None
    caller = parse_traceparent(parents[0].decode("latin-1").strip(" \t"))
    if caller is None or not states:
        return caller
    state = parse_tracestate([value.decode("latin-1") for value in states])
    return attrs.evolve(caller, state=state)


@attrs.frozen(eq=False)
class TraceEntry:
    """How a request came in: its trace, that of its caller, if it has one, and what is exported."""

    trace: TraceContext
    caller: TraceContext | None
    sampling: Sampling


def enter_trace(scope: Scope, sampling: Sampling) -> TraceEntry:
    """Note the trace of this request in its scope."""
    caller = caller_of(scope)
    entry = scope[_ENTRY] = TraceEntry(sampling.continues(caller), caller, sampling)
    return entry


def trace_of(scope: Scope) -> TraceContext:
    """The trace of this request; of an application that nothing is in front of, not exported."""
    return _entry_of(scope).trace


def trace_of_message(scope: Scope) -> TraceContext:
    """The trace of one request on a WebSocket: of the caller who opened it, or one of its own."""
    entry = _entry_of(scope)
    return entry.sampling.continues(entry.caller)


def _entry_of(scope: Scope) -> TraceEntry:
    entry = scope.get(_ENTRY)
    return entry if isinstance(entry, TraceEntry) else enter_trace(scope, NO_EXPORT)
