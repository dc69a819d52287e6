"""What an agent reports of a prompt is bounded when it is read, and none if it is no report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.front.status_limits import MAX_DETAIL_CHARS, bounded_reason
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.prompt_stages import MAX_MS, MAX_TOKENS, PromptStages

NAMES = ("tokens", "cached", "template_ms", "wait_ms", "prefill_ms")
REPORT = dict.fromkeys(NAMES, 1)


@given(st.fixed_dictionaries({name: st.integers() for name in NAMES}))
def test_every_number_is_held_within_its_limits(report: dict[str, int]) -> None:
    stages = PromptStages.read(report)
    assert stages is not None
    for name, number in stages.fields().items():
        most = MAX_MS if name.endswith("_ms") else MAX_TOKENS
        assert number == sorted((0, report[name], most))[1]
    assert PromptStages.read(stages.fields()) == stages


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, "1", 1.0, True, [1], {}])
def test_a_report_with_anything_but_numbers_is_none(name: str, value: object) -> None:
    assert PromptStages.read({**REPORT, name: value}) is None


@pytest.mark.parametrize("report", [None, [], "", 1, {}, {"tokens": 1}])
def test_what_is_no_report_is_none(report: object) -> None:
    assert PromptStages.read(report) is None


def test_a_reason_that_no_document_could_hold_is_mended_when_it_is_read() -> None:
    """Half a surrogate pair comes through JSON and cannot be written as UTF-8 again: in a record it
    would break every list that has it."""
    reason = bounded_reason("\ud800 broke " + "x" * 2 * MAX_DETAIL_CHARS)
    assert reason.startswith("? broke ")
    assert len(reason) == MAX_DETAIL_CHARS
    assert dumps(reason)
