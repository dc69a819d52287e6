"""Prometheus text for ``/metrics``: Paddler's three gauges first, byte by byte, then ours."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from paddler_trio.http.input_budget import InputBudget
from paddler_trio.http.key_ring import KeyRing
from paddler_trio.nursery_tree.loop_lag import LoopLag
from paddler_trio.scheduler.dispatch.slot_ledger import LedgerStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=values"


@attrs.frozen
class Gauge:
    name: str
    help: str
    value: int


def gauges(statistics: LedgerStatistics) -> tuple[Gauge, ...]:
    """The gauges of Prometheus and statsd alike."""
    return (
        Gauge("slots_processing", "Number of processing slots", statistics.slots_processing),
        Gauge("slots_total", "Number of total slots", statistics.slots_total),
        Gauge("requests_buffered", "Number of buffered requests", statistics.requests_buffered),
    )


def input_gauges(budget: InputBudget, lag: LoopLag) -> tuple[Gauge, ...]:
    """The input held for clients, and the lag of the event loop."""
    return (
        Gauge("input_bytes", "Bytes held of requests under way", budget.held_bytes),
        Gauge("input_bytes_limit", "Bytes that may be held of them", budget.limit_bytes),
        Gauge("input_refusals", "Requests and messages refused for want of room", budget.refusals),
        Gauge(
            "event_loop_lag_milliseconds",
            "The latest the event loop was in the last minute or two",
            round(lag.worst_s * 1000),
        ),
        Gauge("event_loop_stalls", "Times it was later than 250 ms", lag.stalls),
    )


def render(prefix: str, values: Iterable[Gauge]) -> str:
    """``prefix`` is put before each name as it is."""
    return "\n".join(
        f"# HELP {prefix}{gauge.name} {gauge.help}\n"
        f"# TYPE {prefix}{gauge.name} gauge\n"
        f"{prefix}{gauge.name} {gauge.value}\n"
        for gauge in values
    )


def render_keys(prefix: str, keys: KeyRing) -> str:
    """Requests by the name of their API key, and how many had none; nothing without a key file."""
    if keys.path is None:
        return ""
    uses = f"{prefix}api_key_requests_total"
    refusals = f"{prefix}api_key_refusals_total"
    counted = "".join(
        f'{uses}{{key="{name}"}} {number}\n' for name, number in sorted(keys.requests.items())
    )
    return (
        f"# HELP {uses} Requests let in, by the name of their API key\n"
        f"# TYPE {uses} counter\n{counted}"
        f"# HELP {refusals} Requests refused for want of an API key\n"
        f"# TYPE {refusals} counter\n{refusals} {keys.refusals}\n"
    )
