"""An agent's spans of one request, from the few moments that are noted of it."""

from __future__ import annotations

import attrs
import pytest

from paddler_trio.agent.requests.request_spans import RequestTimes
from paddler_trio.telemetry.span_data import MakeSpans, SpanData
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.wire.trio.prompt_stages import PromptStages, RequestTrace

TRACE, PARENT = "a" * 32, "b" * 16


@attrs.define(eq=False)
class Kept(SpanExport):
    made: list[MakeSpans] = attrs.field(factory=list, kw_only=True)

    def put(self, make: MakeSpans) -> None:
        self.made.append(make)


def spans(times: RequestTimes) -> list[SpanData]:
    export = Kept(exporter=None)  # type: ignore[arg-type]  # never run
    times.export(export)
    return [span for make in export.made for span in make()]


def times(flags: str = "01", **fields: object) -> RequestTimes:
    trace = RequestTrace(f"00-{TRACE}-{PARENT}-{flags}", "req_1", "v=1")
    made = RequestTimes("7.1", "generation", "Generate", trace, "a1", began_s=10.0)
    for name, value in ({"ended_s": 20.0} | fields).items():
        setattr(made, name, value)
    return made


def test_a_generation_is_cut_where_its_work_changes_hands() -> None:
    stages = PromptStages(tokens=9, cached=4, template_ms=1000, wait_ms=500, prefill_ms=2500)
    whole, *parts = spans(times(prepared_s=11.0, first_s=14.0, stages=stages, num_tokens=30))
    assert (whole.name, whole.kind, whole.is_entry) == ("generation", "server", True)
    assert (whole.trace.trace_id, whole.parent_id, whole.trace.state) == (TRACE, PARENT, "v=1")
    assert (whole.start_s, whole.end_s, whole.error) == (10.0, 20.0, None)
    assert whole.attributes == {
        "paddler.request.id": "req_1",
        "paddler.agent.name": "a1",
        "paddler.work": "Generate",
        "paddler.placement.ending": "done",
        "paddler.prompt.tokens": 9,
        "paddler.prompt.cached_tokens": 4,
        "paddler.results": 30,
    }
    assert [(part.name, part.start_s, part.end_s) for part in parts] == [
        ("prepare", 10.0, 11.0),
        ("engine queue", 11.0, 11.5),
        ("prefill", 11.5, 14.0),
        ("decode", 14.0, 20.0),
    ]
    assert {part.parent_id for part in parts} == {whole.span_id}
    assert len({span.span_id for span in (whole, *parts)} - {PARENT}) == 5


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["prepare"]),
        ({"prepared_s": 11.0}, ["prepare"]),
        ({"prepared_s": 11.0, "first_s": 12.0, "kind": "embedding"}, ["prepare"]),
        (
            {"prepared_s": 11.0, "first_s": 12.0},
            ["prepare", "engine queue", "prefill", "decode"],
        ),
    ],
)
def test_what_was_not_reached_has_no_span(fields: dict[str, object], names: list[str]) -> None:
    _, *parts = spans(times(**fields))
    assert [part.name for part in parts] == names


def test_what_was_handed_back_is_an_error() -> None:
    whole, *_ = spans(times(ending="handed back"))
    assert (whole.error, whole.attributes["error.type"]) == ("handed back", "handed back")


def test_nothing_is_made_of_an_unsampled_malformed_or_unnamed_trace() -> None:
    assert spans(times("00")) == []
    assert spans(times(trace=None)) == []
    assert spans(times(trace=RequestTrace("00-nonsense", "r"))) == []
    times().export(None)
