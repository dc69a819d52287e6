"""Records that are packed are the same records, and cost the collector nothing."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.balancer.activity.captures import MAX_BYTES, Captures
from paddler_trio.balancer.activity.finished_requests import (
    MAX_FINISHED,
    SHELF_BYTES,
    FinishedRequests,
    pack,
    unpack,
)
from paddler_trio.balancer.activity.placement_words import MAX_TEXT_CHARS, Reason, reason_of
from paddler_trio.balancer.activity.request_record import (
    Marks,
    PlacementRecord,
    RequestRecord,
    Stay,
)
from paddler_trio.balancer.activity.request_words import explanation
from paddler_trio.nursery_tree.request_endings import Completed, Failure, Stopped
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.scheduler.dispatch.agent_index import ANY, Constraint
from paddler_trio.scheduler.dispatch.slot_decisions import Choice, Option, Prediction
from paddler_trio.wire.trio.adapters import ADAPTER
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import EncodedWork

MOMENTS = st.floats(0, 1e9)
COUNTS = st.integers(0, 2**31 - 1)
TEXTS = st.text(max_size=20)
STAGES = st.builds(
    PromptStages,
    tokens=COUNTS,
    cached=COUNTS,
    template_ms=COUNTS,
    wait_ms=COUNTS,
    prefill_ms=COUNTS,
)


def marked(pairs: list[tuple[float, int]]) -> Marks:
    marks = Marks(pause_s=0.0)
    for moment_s, number in sorted(pairs):
        marks.add(moment_s, number)
    return marks


CHOICES = st.builds(
    Choice,
    candidates=COUNTS,
    busy=COUNTS,
    slots=COUNTS,
    wanted=st.builds(Constraint, needs=st.frozensets(TEXTS.map(ADAPTER.__add__), max_size=2)),
    prediction=st.none()
    | st.builds(
        Prediction,
        COUNTS,
        st.lists(st.builds(Option, TEXTS, COUNTS, MOMENTS, MOMENTS), max_size=2).map(tuple),
    ),
    held=st.booleans(),
)
BECAUSE: Reason | None = reason_of(
    Choice(2, 1, 4, ANY, Prediction(2000, (Option("a1", 1900, 0.1), Option("a2", 0, 1.9, 0.5))))
)
MARKS = st.builds(marked, st.lists(st.tuples(MOMENTS, COUNTS), max_size=40))
PLACEMENTS = st.builds(
    PlacementRecord,
    agent=TEXTS,
    agent_key=COUNTS,
    lane=COUNTS,
    at_s=MOMENTS,
    reason=st.none() | CHOICES.map(reason_of),
    prepared_s=st.none() | MOMENTS,
    first_s=st.none() | MOMENTS,
    prompt=st.none() | STAGES,
    prompt_tokens=st.none() | COUNTS,
    cached_tokens=st.none() | COUNTS,
    ended_s=MOMENTS,
    ending=st.sampled_from(["done", "stopped", "failed: x", "lost: y", "handed back: z"]),
)
RECORDS = st.builds(
    RequestRecord,
    key=COUNTS,
    id=TEXTS,
    client=TEXTS,
    deployment=TEXTS,
    kind=st.sampled_from(["generation", "embedding", "rank"]),
    route=st.none() | TEXTS,
    arrived_s=MOMENTS,
    phase=st.just("ended"),
    stays=st.lists(st.builds(Stay, MOMENTS, MOMENTS, MARKS, TEXTS), min_size=1, max_size=3),
    placements=st.lists(PLACEMENTS, max_size=3),
    first_s=st.none() | MOMENTS,
    tokens=COUNTS,
    progress=MARKS,
    continuations=COUNTS,
    ended_s=MOMENTS,
    ending=st.just(Completed())
    | st.just(Stopped())
    | st.builds(Failure, st.integers(400, 599), TEXTS),
)


@settings(max_examples=50)
@given(RECORDS)
def test_a_packed_record_shows_and_explains_the_same(record: RequestRecord) -> None:
    again = unpack(pack(record))
    assert again.view(0.0) == record.view(0.0)
    assert explanation(again, 0.0) == explanation(record, 0.0)


def a_record(key: int, name: str = "r") -> RequestRecord:
    return RequestRecord(key, name, "", "default", "generation", None, 0.0, stays=[Stay(0.0)])


def test_a_full_collection_does_not_walk_a_packed_record() -> None:
    record = a_record(1)
    record.stays[0].positions.add(0.5, 3)
    stages = PromptStages(tokens=9, cached=1, template_ms=2, wait_ms=3, prefill_ms=4)
    for ending in ("lost: it broke", "done"):
        record.placements.append(
            PlacementRecord("a1", 3, 0, 1.0, BECAUSE, 1.5, 2.0, stages, 9, 1, 4.0, ending)
        )
    record.ending = Failure(502, "x")
    packed = pack(record)
    assert gc.is_tracked(packed)
    gc.collect()
    assert not gc.is_tracked(packed)


def test_the_newest_ten_thousand_are_kept_and_found_by_key_and_id() -> None:
    finished = FinishedRequests()
    for key in range(1, MAX_FINISHED + 3):
        finished.add(a_record(key, f"name {key % 3}"))
    assert len(finished) == MAX_FINISHED
    assert finished.find("2", 2) is None
    oldest, newest = finished.find("3", 3), finished.find("name 1", None)
    assert oldest is not None
    assert oldest.key == 3
    assert newest is not None
    assert newest.key == MAX_FINISHED
    assert finished.last is not None
    assert finished.last.key == MAX_FINISHED + 2


def test_records_share_shelves_and_a_shelf_goes_with_its_last_record() -> None:
    finished = FinishedRequests()
    for key in range(1, 2 * MAX_FINISHED):
        record = a_record(key)
        record.placements.append(
            PlacementRecord("a1", key, 0, 1.0, BECAUSE, 1.5, 2.0, None, 9, 1, 4.0, "done")
        )
        finished.add(record)
    assert [record.key for record in finished] == list(range(MAX_FINISHED, 2 * MAX_FINISHED))
    shelves = {id(packed[2]): len(packed[2]) for packed in finished.packed()}
    used_bytes = sum(stop - start for *_, start, stop in finished.packed())
    assert set(shelves.values()) == {SHELF_BYTES}
    assert len(shelves) <= 2 + used_bytes // (SHELF_BYTES - 1000)


def test_a_record_longer_than_a_shelf_has_one_of_its_own() -> None:
    finished = FinishedRequests()
    for key, name in ((1, "a"), (2, "b"), (3, "c")):
        record = a_record(key, name)
        record.client = "c" * (2 * SHELF_BYTES if key == 2 else 1)
        finished.add(record)
    assert [len(record.client) for record in finished] == [1, 2 * SHELF_BYTES, 1]


def test_the_text_of_a_failure_is_cut_off() -> None:
    record = a_record(1)
    record.ending = Failure(502, "x" * 10_000)
    assert unpack(pack(record)).ending == Failure(502, "x" * MAX_TEXT_CHARS)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=3000), max_size=6), st.text(max_size=3000))
def test_what_is_captured_is_the_beginning_and_counts_in_bytes(
    pieces: list[str], prompt: str
) -> None:
    captures = Captures()
    record = a_record(1)
    body = b"{" + prompt.encode(errors="replace")
    captures.begin(record, EncodedWork(body, None, None, False))
    for piece in pieces:
        captures.take(record, Results("a", "GeneratedToken", [{"ContentToken": piece}]))
    finished = FinishedRequests(captures)
    finished.add(record)
    (again,) = finished
    assert again.capture is not None
    view = again.capture.view()
    assert view is not None
    whole = "".join(pieces)
    assert body.decode().startswith(view["request"])
    assert len(view["request"].encode()) <= MAX_BYTES
    assert len(again.capture.answer) == min(MAX_BYTES, len(whole.encode(errors="replace"))), (
        "cut off at the limit, and only there"
    )
    if len(whole.encode(errors="replace")) <= MAX_BYTES:
        assert view["answer"] == whole.encode(errors="replace").decode()
