"""Questions and answers about fits, and the memory that agents report: read as written, bounded."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.front.status_limits import MAX_CHOSEN, MAX_DEVICES, bounded_report
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, applicable_state
from paddler_trio.wire.trio.desired_state_extras import Automatic, Extras
from paddler_trio.wire.trio.fit_messages import (
    AskFit,
    DeviceFit,
    DeviceMemory,
    FitOption,
    FitQuestion,
    FitReport,
    MemoryInForce,
)
from paddler_trio.wire.trio.trio_link import Report, parse_extension, render_extension

STATE = BalancerDesiredState.default()
sizes = st.integers(0, 2**64 - 1)
perhaps = st.none() | sizes
counts = st.integers(0, 2**32 - 1)
names = st.text(max_size=10)
devices = st.builds(
    DeviceFit,
    device=names,
    **dict.fromkeys(("weights", "kv", "compute", "projection", "draft", "other"), sizes),
    needed=sizes,
    reserve=sizes,
    **dict.fromkeys(("total", "free_now", "free_after", "limit", "available"), perhaps),
)
reports = st.builds(
    FitReport,
    fits=st.none() | st.booleans(),
    problem=st.none() | names,
    architecture=names,
    file_bytes=sizes,
    context_size=counts,
    n_ctx_train=counts,
    slots=counts,
    n_gpu_layers=st.integers(-1, 99),
    n_layers=counts,
    k_cache_dtype=names,
    v_cache_dtype=names,
    chosen=st.lists(names, max_size=2).map(tuple),
    devices=st.lists(devices, max_size=3).map(tuple),
    options=st.lists(
        st.builds(
            FitOption,
            changes=st.lists(names, max_size=2).map(tuple),
            context_size=counts,
            slots=counts,
            n_gpu_layers=st.integers(-1, 99),
            k_cache_dtype=names,
            v_cache_dtype=names,
        ),
        max_size=2,
    ).map(tuple),
    beside=st.none() | st.booleans(),
)


@given(reports)
def test_an_answer_is_read_as_it_was_written(report: FitReport) -> None:
    assert structure(loads(dumps(unstructure(report))), FitReport) == report


def test_a_question_is_a_frame_of_ours_and_leaves_out_what_is_usual() -> None:
    asked = AskFit("q", applicable_state(STATE), Extras(auto=Automatic(context_size=True)), None)
    frame = loads(render_extension(asked))
    assert isinstance(frame, dict)
    assert frame["Trio"]["AskFit"]["extras"] == {"engine": {}, "auto": {"context_size": True}}
    assert "beside" not in frame["Trio"]["AskFit"], "only agents that offer it are asked"
    assert parse_extension(frame["Trio"]) == asked
    beside = attrs.evolve(asked, beside=True)
    assert parse_extension(loads(render_extension(beside))["Trio"]) == beside  # type: ignore[index]  # a frame
    plain = {"state": unstructure(STATE)}
    assert structure(plain, FitQuestion) == FitQuestion(state=STATE)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"slots": -1}, "$.slots"), ({"slot": 1}, "slot"), ({"state": {}}, "$.state")],
)
def test_what_is_wrong_with_a_question_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(WireError) as refused:
        structure({"state": unstructure(STATE), **change}, FitQuestion)
    assert words in str(refused.value)


def test_what_an_agent_reports_about_its_memory_is_bounded() -> None:
    memory = MemoryInForce(
        context_size=1,
        n_gpu_layers=0,
        chosen=("c" * 1000,) * 100,
        devices=(DeviceMemory(device="d" * 1000, predicted=1, actual=None),) * 1000,
    )
    report = Report("serving", None, None, None, None, None, memory=memory)
    bounded = bounded_report(report).memory
    assert bounded is not None
    assert len(bounded.chosen) == MAX_CHOSEN
    assert len(bounded.devices) == MAX_DEVICES
    assert {len(device.device) for device in bounded.devices} == {256}
    small = attrs.evolve(report, memory=attrs.evolve(memory, chosen=(), devices=()))
    assert bounded_report(small) is small
