"""The head of a frame says what the whole frame says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.paddler.request_params import (
    L2,
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
)
from paddler_trio.wire.trio.model_questions import Tokenize
from paddler_trio.wire.trio.prompt_stages import RequestTrace
from paddler_trio.wire.trio.request_frame import RequestFrame, encode_work, read_head
from paddler_trio.wire.trio.trio_link import TAG, Ask, Start, parse_extension, render_extension
from paddler_trio.wire.trio.work import (
    ConversationPrompt,
    Embed,
    Generate,
    InfillPrompt,
    Prompt,
    Rank,
    TextPrompt,
    TokenPrompt,
)

ids = st.text(
    st.characters(codec="ascii", exclude_characters='"\\', categories=["L", "N", "P"]),
    min_size=1,
    max_size=40,
)
clients = st.sampled_from(["", "0123456789abcdef"])
KINDS = {
    "Generate": "generation",
    "ContinueFromRawPrompt": "generation",
    "ContinueFromConversationHistory": "generation",
    "Embed": "embedding",
    "Rank": "embedding",
    "GenerateEmbeddingBatch": "embedding",
}
WORK = {
    "Generate": Generate(prompt=TextPrompt(text="x")),
    "ContinueFromRawPrompt": ContinueFromRawPromptParams("x", 1),
    "ContinueFromConversationHistory": ContinueFromConversationHistoryParams(
        add_generation_prompt=True, conversation_history=(), enable_thinking=False, max_tokens=1
    ),
    "Embed": Embed(inputs=()),
    "Rank": Rank(query="x", documents=()),
    "GenerateEmbeddingBatch": GenerateEmbeddingBatchParams((), L2()),
}


@given(
    ids,
    clients,
    st.sampled_from([*KINDS]),
    st.sampled_from([None, "engine", "agent"]),
    st.none() | ids,
    st.none()
    | st.builds(RequestTrace, st.text(max_size=60), st.text(max_size=40), st.text(max_size=40)),
    st.booleans(),
)
def test_work_is_told_by_its_head_however_it_is_spaced(
    wire_id: str,
    client: str,
    tag: str,
    isolated: str | None,
    bound: str | None,
    trace: RequestTrace | None,
    is_spaced: bool,
) -> None:
    start = Start(
        wire_id, WORK[tag], 7, (1, 2), client=client, isolated=isolated, bound=bound, trace=trace
    )
    text = render_extension(start).decode()
    frame = encode_work(WORK[tag]).start_frame(
        wire_id, client=client, isolated=isolated, seed=7, tokens=[1, 2], bound=bound, trace=trace
    )
    assert parse_extension(json.loads(frame)[TAG]) == start
    if is_spaced:
        text = json.dumps(json.loads(text), indent=1)
    assert read_head(text, speaks_trio=True) == RequestFrame(
        wire_id,
        KINDS[tag],  # type: ignore[arg-type]
        tag,
        text,
        False,
        client,
        isolated or "",
        bound or "",
        trace,
    )
    assert read_head(text, speaks_trio=False) is None


@pytest.mark.parametrize(
    ("prompt", "is_raw"),
    [
        (TextPrompt(text="x"), True),
        (TokenPrompt(tokens=(1,)), True),
        (InfillPrompt(prefix="x", suffix="y"), True),
        (ConversationPrompt(messages=({"role": "user", "content": "x"},)), False),
    ],
)
def test_a_prompt_without_a_template_is_told_by_its_head(prompt: Prompt, *, is_raw: bool) -> None:
    work = encode_work(Generate(prompt=prompt))
    text = work.start_frame("1", client="", isolated=None, seed=7, tokens=[]).decode()
    for written in (text, json.dumps(json.loads(text), indent=1)):
        frame = read_head(written, speaks_trio=True)
        assert frame is not None
        assert frame.is_raw is is_raw


@given(ids, clients)
def test_questions_are_told_by_their_head(wire_id: str, client: str) -> None:
    text = render_extension(Ask(wire_id, Tokenize(text="x"), client=client)).decode()
    assert read_head(text, speaks_trio=True) == RequestFrame(
        wire_id, "question", "Tokenize", text, False, client
    )


@given(ids, st.sampled_from([*KINDS]))
def test_paddlers_requests_are_told_by_their_head(wire_id: str, tag: str) -> None:
    text = json.dumps({"Request": {"id": wire_id, "request": {tag: {}}}})
    for speaks_trio in (True, False):
        frame = read_head(text, speaks_trio=speaks_trio)
        assert frame is not None
        assert (frame.id, frame.kind, frame.is_paddlers) == (wire_id, KINDS[tag], True)


@pytest.mark.parametrize(
    "text",
    [
        '{"Request":{"id":"1","request":"GetModelMetadata"}}',
        '{"Request":{"request":{"Generate":{}},"id":"1"}}',
        '{"Notification":{"SetState":{}}}',
        '{"Trio":{"Want":{"id":"1"}}}',
        "",
    ],
)
def test_other_frames_have_no_such_head(text: str) -> None:
    assert read_head(text, speaks_trio=True) is None


def test_a_frame_names_its_request_in_logs() -> None:
    trace = RequestTrace(f"00-{'1' * 32}-{'2' * 16}-01", 'a "quoted" {id}')
    work = encode_work(WORK["Generate"])
    frame = work.start_frame("7.1", client="", isolated=None, seed=1, tokens=[], trace=trace)
    head = read_head(frame.decode(), speaks_trio=True)
    assert head is not None
    assert head.trace == trace
    assert head.log_fields == {"request": 'a "quoted" {id}', "trace": "1" * 32}
    assert parse_extension(json.loads(frame)[TAG]) == Start(
        "7.1", WORK["Generate"], 1, (), trace=trace
    )
    without = work.start_frame("7.1", client="", isolated=None, seed=1, tokens=[])
    head = read_head(without.decode(), speaks_trio=True)
    assert head is not None
    assert head.log_fields == {"request": "7.1"}


def test_a_frame_with_a_malformed_trace_is_not_taken_for_work() -> None:
    text = '{"Trio":{"Start":{"id":"1","trace":{"parent":7},"request":{"Generate":{}}}}}'
    assert read_head(text, speaks_trio=True) is None
    text = text.replace("7", '"\\x","request":"r"')
    head = read_head(text, speaks_trio=True)
    assert head is not None
    assert head.trace == RequestTrace("", "r"), "who prepares it refuses the whole frame"
    assert head.log_fields == {"request": "r"}
