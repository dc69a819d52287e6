"""The text of ``/metrics``: in Prometheus's format or OpenMetrics, rendered once a second.

``prometheus_client`` writes the lines, this decides when and in which pieces. A fleet of hundreds
of agents has ten thousand lines, which take tens of milliseconds: they are written in pieces, and
the event loop turns between two of them. The text is kept for a second, and several scrapers at
once wait for one rendering. Paddler's three gauges are written here, as Paddler writes them: with
whole numbers, and an empty line between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import attrs
import trio
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as prometheus_text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.samples import Exemplar as ClientExemplar

from paddler_trio.net.server.asgi import send_bytes
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.telemetry.metric_kind import MetricDefinition
from paddler_trio.telemetry.recording import Family, Sample
from paddler_trio.telemetry.shared_metrics import PADDLERS

PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8; escaping=values"
"""The type of the content, as Paddler answers."""
OPENMETRICS: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
KEPT_S: Final = 1.0
PIECE: Final = 100
"""Samples between two turns of the event loop: half a millisecond."""
_END: Final = b"# EOF\n"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_:]")


def metric_prefix(prefix: str) -> str:
    """Return ``prefix`` with ``_`` for what Prometheus takes in no name: a prefix for StatsD has
    dots."""
    safe = _NOT_IN_NAMES.sub("_", prefix)
    return f"_{safe}" if safe[:1].isdigit() else safe


@attrs.define(eq=False)
class _Kept:
    text: bytes = b""
    until_s: float = float("-inf")
    lock: trio.Lock = attrs.field(factory=trio.Lock)


@attrs.define(eq=False, repr=False)
class Exposition:
    """See the module docstring.

    Args:
      prefix: before every name; see :func:`metric_prefix`.
      collect: all families in their order, Paddler's three first. Each is a snapshot made when it
        is asked for, and its samples may be drawn later.
    """

    prefix: str
    collect: Callable[[], Iterable[Family]]
    _prometheus: _Kept = attrs.field(factory=_Kept, init=False)
    _openmetrics: _Kept = attrs.field(factory=_Kept, init=False)

    def __attrs_post_init__(self) -> None:
        self.prefix = metric_prefix(self.prefix)

    def __repr__(self) -> str:
        return f"<Exposition of {self.prefix}*>"

    def add_to(self, routes: Router) -> None:
        """Answer ``GET`` and ``HEAD`` on ``/metrics``."""
        routes.stream("GET", "/metrics", self._answer)
        routes.stream("HEAD", "/metrics", self._answer_head)

    async def text(self, *, openmetrics: bool = False) -> bytes:
        """Return the text as it was at most a second ago.

        Cancellation: the next waiter for this rendering begins its own.
        """
        kept = self._openmetrics if openmetrics else self._prometheus
        async with kept.lock:
            if trio.current_time() >= kept.until_s:
                pieces = bytearray()
                for piece in self._pieces(openmetrics=openmetrics):
                    pieces += piece
                    await trio.lowlevel.checkpoint()
                kept.text = bytes(pieces)
                kept.until_s = trio.current_time() + KEPT_S
            return kept.text

    def _pieces(self, *, openmetrics: bool) -> Iterator[bytes]:
        families = iter(self.collect())
        if not openmetrics:
            yield self._paddlers(islice(families, len(PADDLERS)))
        for each in families:
            yield from self._rendered(each, openmetrics=openmetrics)
        if openmetrics:
            yield _END

    def _paddlers(self, families: Iterable[Family]) -> bytes:
        blocks: list[str] = []
        for each in families:
            name = f"{self.prefix}{each.definition.name}"
            (sample,) = each.samples
            blocks.append(
                f"# HELP {name} {each.definition.help}\n"
                f"# TYPE {name} gauge\n"
                f"{name} {int(sample.value)}\n"
            )
        return "\n".join(blocks).encode()

    def _rendered(self, each: Family, *, openmetrics: bool) -> Iterator[bytes]:
        is_first = True
        while samples := list(islice(each.samples, PIECE)):
            metric = self._metric(each.definition, samples, exemplars=openmetrics)
            text = (openmetrics_text if openmetrics else prometheus_text)(_One(metric))
            text = text.removesuffix(_END)
            yield text if is_first else _without_header(text)
            is_first = False

    def _metric(
        self, definition: MetricDefinition, samples: list[Sample], *, exemplars: bool
    ) -> Metric:
        full = f"{self.prefix}{definition.name}"
        # the formats add these themselves
        suffix = {"counter": "_total", "info": "_info"}.get(definition.kind, "")
        name = full.removesuffix(suffix)
        unit = definition.unit if name.endswith(f"_{definition.unit}") else ""
        metric = Metric(name, definition.help, definition.kind, unit)
        for sample in samples:
            exemplar = sample.exemplar if exemplars else None
            metric.add_sample(
                full + sample.suffix,
                dict(sample.labels),
                sample.value,
                exemplar=None
                if exemplar is None
                else ClientExemplar({exemplar[0]: exemplar[1]}, exemplar[2], exemplar[3]),
            )
        return metric

    async def _answer(self, exchange: Exchange, params: Params) -> None:
        wants_openmetrics = accepts_openmetrics(exchange.header(b"accept"))
        text = await self.text(openmetrics=wants_openmetrics)
        kind = OPENMETRICS if wants_openmetrics else PROMETHEUS
        await send_bytes(
            exchange.send, 200, text, content_type=kind, headers=[(b"vary", b"accept")]
        )

    async def _answer_head(self, exchange: Exchange, params: Params) -> None:
        wants_openmetrics = accepts_openmetrics(exchange.header(b"accept"))
        text = await self.text(openmetrics=wants_openmetrics)
        kind = OPENMETRICS if wants_openmetrics else PROMETHEUS
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(text))]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


@attrs.frozen
class _One:
    """A collector of one metric."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)


def _without_header(text: bytes) -> bytes:
    """Return the lines of samples alone."""
    start = 0
    while text.startswith(b"# ", start):
        start = text.index(b"\n", start) + 1
    return text[start:]


def accepts_openmetrics(accept: bytes | None) -> bool:
    """Return whether an ``Accept`` header names OpenMetrics: any other is answered as Paddler
    does."""
    for part in (accept or b"").split(b","):
        kind, *parameters = (each.strip().lower() for each in part.split(b";"))
        if kind == b"application/openmetrics-text" and b"q=0" not in parameters:
            return True
    return False
