"""Find the trace that a request of a client belongs to: its caller's, or a new one.

Every request has one, whether spans are exported or not: its id is in all lines of the log. Where
nothing is exported here, the caller's span is passed on as it came, so that a trace has no span
whose parent is missing.
"""

from __future__ import annotations

import secrets
from typing import Final

import attrs

from paddler_trio.net.server.exchange import Exchange, Messages, TraceEntry
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent, parse_tracestate

_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"
_SPACE: Final = 1 << 64


@attrs.frozen
class Sampling:
    """Rules for which traces are exported here.

    Args:
      exports: any at all.
      ratio: of the traces that begin here, 0 to 1; those of a caller follow its flag.
    """

    exports: bool = False
    ratio: float = 1.0

    def begins(self) -> TraceContext:
        """Return a new trace."""
        trace_id = secrets.token_hex(16)
        if not self.exports:
            return TraceContext(trace_id, trace_id[:16])  # nothing is ever below this span
        # the lower half decides, as in OpenTelemetry's samplers: all who use it agree
        is_sampled = int(trace_id[16:], 16) < self.ratio * _SPACE
        return TraceContext(trace_id, secrets.token_hex(8), is_sampled, is_exported=is_sampled)

    def continues(self, caller: TraceContext | None) -> TraceContext:
        """Return the trace of a request of ``caller``, or without one."""
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


def caller_of(exchange: Exchange) -> TraceContext | None:
    """Return the trace of the caller, from exactly one valid ``traceparent``; None without."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in exchange.headers:
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


def enter_trace(
    exchange: Exchange, sampling: Sampling, messages: Messages | None = None
) -> TraceEntry:
    """Note the trace of this request."""
    caller = caller_of(exchange)
    entry = TraceEntry(sampling.continues(caller), caller, sampling.continues, messages)
    exchange.trace_entry = entry
    return entry


def trace_of(exchange: Exchange) -> TraceContext:
    """Return the trace of this request; one that is not exported where nothing noted it."""
    return _entry_of(exchange).trace


def begin_message(exchange: Exchange) -> TraceContext:
    """Return the trace of a request on a WebSocket, which is submitted next: of the caller who
    opened the WebSocket, or one of its own."""
    entry = _entry_of(exchange)
    trace = entry.of_message()
    if entry.messages is not None:
        entry.messages.began(exchange, trace)
    return trace


def refuse_message(exchange: Exchange, request: str, status: int) -> None:
    """Note that a request on a WebSocket is answered with an error and not submitted."""
    entry = _entry_of(exchange)
    if entry.messages is not None:
        entry.messages.refused(exchange, entry.of_message(), request, status)


def _entry_of(exchange: Exchange) -> TraceEntry:
    return exchange.trace_entry or enter_trace(exchange, NO_EXPORT)
