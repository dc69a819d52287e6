"""Frames of engine passes: what the hot path writes is what the encoder writes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import step_entry, step_frame

texts = st.text(st.characters(exclude_categories=["Cs"]))
ids = st.one_of(texts, st.sampled_from(["1.1", 'a"b', "\\", "\u2028", "\x00"]))
results = st.one_of(
    st.dictionaries(
        st.sampled_from(["ContentToken", "ReasoningToken", 'odd "tag"']), texts, max_size=2
    ),
    st.fixed_dictionaries({"Done": st.dictionaries(texts, st.integers(), max_size=3)}),
    st.just("ToolCallsDone"),
)
stages = st.builds(
    PromptStages,
    tokens=st.integers(0, 99),
    cached=st.integers(0, 99),
    template_ms=st.integers(0, 99),
    wait_ms=st.integers(0, 99),
    prefill_ms=st.integers(0, 99),
)
entries = st.tuples(
    ids,
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
    st.lists(results, max_size=4),
    st.none() | stages,
    st.integers(0, 3),
)


@given(st.lists(entries, min_size=1, max_size=4))
def test_an_entry_is_written_as_the_encoder_writes_it(
    produced: list[tuple[str, list[int], list[object], PromptStages | None, int]],
) -> None:
    expected = []
    for wire_id, tokens, shown, prompt, preemptions in produced:
        fields: dict[str, object] = {"id": wire_id, "tokens": tokens, "results": shown}
        if prompt is not None:
            fields["prompt"] = prompt.fields()
        if preemptions:
            fields["preemptions"] = preemptions
        expected.append(fields)
    text = json.dumps({"Trio": {"Step": expected}}, separators=(",", ":"), ensure_ascii=False)
    assert step_frame(step_entry(*each) for each in produced) == text.encode()


def test_a_step_is_what_the_balancer_looks_for() -> None:
    frame = step_frame([step_entry("1", [5], [{"ContentToken": "ä"}])])
    assert frame.decode() == (
        '{"Trio":{"Step":[{"id":"1","tokens":[5],"results":[{"ContentToken":"ä"}]}]}}'
    )
