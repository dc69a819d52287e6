"""The report as a JSON document for other programs. Pure.

Its ``schema`` is a number that grows with every change that is more than a new member. Times are
milliseconds, shares 0..1; null is what nobody told.
"""

from __future__ import annotations

from typing import Final

from paddler_trio.cli.bench.bench_figures import Percentiles
from paddler_trio.cli.bench.report.report import Point, Report

SCHEMA: Final = 1
Json = dict[str, object]


def report_json(report: Report) -> Json:
    """The whole of it, as plain JSON."""
    plan = report.plan
    return {
        "kind": "paddler-trio bench",
        "schema": SCHEMA,
        "version": report.version,
        "started": report.started,
        "stopped": report.stopped or None,
        "targets": [
            {"label": each.label, "url": each.url, "model": each.model} for each in report.targets
        ],
        "plan": {
            "workloads": [str(each) for each in plan.workloads],
            "concurrencies": list(plan.concurrencies),
            "rounds": plan.rounds,
            "requests_per_client": plan.requests,
            "warmup": plan.warmup,
            "run_s": plan.run_s,
            "timeout_s": plan.timeout_s,
            "max_s": plan.max_s,
            "prompt_words": plan.sizes.prompt_words,
            "prefix_words": plan.sizes.prefix_words,
            "long_words": plan.sizes.long_words,
            "max_tokens": plan.sizes.max_tokens,
            "seed": plan.seed,
        },
        "points": [_point(point) for point in report.points],
        "errors": [
            {
                "target": each.target,
                "kind": each.label,
                "count": each.count,
                "first": each.text,
            }
            for each in report.errors
        ],
        "error_rates": [_rounded(each) for each in report.error_rates],
        "unmet": list(report.unmet),
    }


def _point(point: Point) -> Json:
    figures = point.figures
    return {
        "workload": str(point.workload),
        "concurrency": point.concurrency,
        "target": point.target,
        "requests": figures.requests,
        "failed": figures.failed,
        "unfinished": figures.unfinished,
        "errors": dict(figures.errors),
        "wall_s": round(figures.wall_s, 6),
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "completion_tokens": figures.completion_tokens,
        "requests_per_s": _rounded(figures.requests_per_s),
        "prompt_tokens_per_s": _rounded(figures.prompt_tokens_per_s),
        "tokens_per_s": _rounded(figures.tokens_per_s),
        "rounds_tokens_per_s": [_rounded(each) for each in point.rounds_tokens_per_s],
        "ttft_ms": _percentiles(figures.ttft),
        "itl_ms": _percentiles(figures.itl),
        "queue_ms": _percentiles(figures.queue),
        "total_ms": _percentiles(figures.total),
        "ttft_ms_by_kind": {kind: _percentiles(each) for kind, each in point.ttft_by_kind.items()},
        "client_cpu_share": _rounded(figures.client_share),
    }


def _percentiles(values: Percentiles | None) -> Json | None:
    if values is None:
        return None
    return {
        **{name: _rounded(getattr(values, name) * 1000) for name in ("p50", "p95", "p99")},
        "count": values.count,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
