"""Results become answers: whole and streamed ones say the same, and nothing is lost or doubled."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_values import USAGE, chunks, done, logprob, readers

from paddler_trio.balancer.apis.answers.answer import Answer, AnswerReader, ContentDelta, Step
from paddler_trio.balancer.apis.answers.timings import Stopwatch, usage_of
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.openai.answer_heading import Heading
from paddler_trio.balancer.apis.openai.chat import ChatStream, WholeChat
from paddler_trio.balancer.apis.openai.chat_request import Delivery
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.wire.codec import dumps

HEADING = Heading(model="m", fingerprint="b1", created=5, id="chatcmpl-1")


def delta(index: int, *, name: str | None = None, arguments: str = "") -> RawResult:
    call_id = None if name is None else f"call_{index}"
    return {"ToolCallDelta": {"index": index, "id": call_id, "name": name, "arguments": arguments}}


def parsed(*names: str) -> RawResult:
    return {
        "ToolCallParsed": [
            {"id": f"call_{i}", "name": name, "arguments": {"ValidJson": {"a": 1}}}
            for i, name in enumerate(names)
        ]
    }


def whole(*results: RawResult, delivery: Delivery | None = None) -> dict[str, Any]:
    """The body of an answer of one choice."""
    told = WholeChat(HEADING, delivery or Delivery(), [Answer(*readers(delivery))])
    told.take(Step(0, results))
    body: dict[str, Any] = json.loads(dumps(told.body()))
    return body


def streamed(*steps: Step, delivery: Delivery | None = None, n: int = 1) -> list[dict[str, Any]]:
    clock = iter(range(1000))
    watch = Stopwatch(lambda: float(next(clock)))
    told = ChatStream(HEADING, delivery or Delivery(), watch, readers(delivery, n))
    stream = told.opening() + b"".join(told.take(step) for step in steps) + told.closing()
    return chunks(stream)


def joined(events: list[dict[str, Any]], choice: int = 0) -> dict[str, Any]:
    """The message that a client puts together from the deltas of one choice."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for event in events:
        for part in event["choices"]:
            if part["index"] != choice:
                continue
            assert finish is None, "nothing follows the finish reason"
            finish = part["finish_reason"]
            delta = part["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({**call["function"], "id": call["id"]})
                else:
                    message["tool_calls"][call["index"]]["arguments"] += call["function"][
                        "arguments"
                    ]
    assert finish is not None
    return {**message, "finish_reason": finish}


# ------------------------------------------------------------------------------- whole answers


def test_a_whole_answer_has_openais_shape() -> None:
    body = whole({"ReasoningToken": "Hm."}, {"ContentToken": "Hi"}, {"ContentToken": "!"}, done())
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "Hi!",
            "refusal": None,
            "reasoning_content": "Hm.",
        },
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"]["prompt_tokens"] == 11
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == 19
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    assert (body["id"], body["object"], body["model"]) == ("chatcmpl-1", "chat.completion", "m")
    assert body["system_fingerprint"] == "b1"
    assert body["timings"] == {
        "cache_n": 4,
        "prompt_n": 7,
        "prompt_ms": 14.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 8,
        "predicted_ms": 4.0,
        "predicted_per_token_ms": 4.0 / 7,  # the first token came of the prompt
        "predicted_per_second": 1750.0,
    }


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop", "stop"), ("stop_text", "stop"), ("length", "length"), ("cells", "length")],
)
def test_finish_reasons(reason: str, told: str) -> None:
    assert whole(done(reason))["choices"][0]["finish_reason"] == told


@pytest.mark.parametrize(("max_tokens", "told"), [(8, "length"), (9, "stop"), (None, "stop")])
def test_an_agent_that_does_not_say_why_an_answer_ended(max_tokens: int | None, told: str) -> None:
    reader = AnswerReader(max_tokens=max_tokens)
    list(reader.take([{"Done": {"usage": USAGE}}]))
    assert reader.ended is not None
    assert reader.ended.finish_reason == told


def test_tool_calls_finish_with_their_name_unless_they_were_cut() -> None:
    assert whole(delta(0, name="f"), done())["choices"][0]["finish_reason"] == "tool_calls"
    assert whole(delta(0, name="f"), done("length"))["choices"][0]["finish_reason"] == "length"


def test_calls_told_piece_by_piece_are_not_told_again() -> None:
    results = (
        {"ToolCallToken": "<call>"},
        delta(0, name="f"),
        delta(0, arguments='{"a"'),
        {"ToolCallToken": "..."},
        delta(0, arguments=":1}"),
        delta(1, name="g", arguments="{}"),
        parsed("f", "g"),
        done(),
    )
    message = whole(*results)["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert joined(streamed(Step(0, results)))["tool_calls"] == [
        {"name": "f", "arguments": '{"a":1}', "id": "call_0"},
        {"name": "g", "arguments": "{}", "id": "call_1"},
    ]


def test_whole_calls_of_several_blocks_are_numbered_on() -> None:
    results = (parsed("f"), parsed("g", "h"), done())
    calls = whole(*results)["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["f", "g", "h"]
    assert len(joined(streamed(Step(0, results)))["tool_calls"]) == 3


@pytest.mark.parametrize(
    "verdict",
    [
        {"ToolCallParseFailed": "no JSON"},
        {"ToolCallValidationFailed": ["a is missing"]},
        {"UnrecognizedToolCallFormat": {"text": "<call>", "ffi_error_message": ""}},
        None,
    ],
)
def test_what_turned_out_to_be_no_call_is_content(verdict: RawResult | None) -> None:
    results: list[RawResult] = [{"ToolCallToken": "<call>"}, {"ToolCallToken": "f("}]
    results += [done()] if verdict is None else [verdict, done()]
    (choice,) = whole(*results)["choices"]
    assert choice["message"]["content"] == "<call>f("
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("is_judged", [True, False])
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "paddlers"])
def test_a_call_that_was_cut_off_is_no_content(*, is_ours: bool, is_judged: bool) -> None:
    """An agent of ours judges only what is complete; Paddler's judges anything, and does not say
    that the limit of tokens ended the answer."""
    told: list[RawResult] = [{"ContentToken": "Well.\n"}, {"ToolCallToken": '{"na'}]
    if is_judged:
        told.append({"UnrecognizedToolCallFormat": {"text": '{"na', "ffi_error_message": ""}})
    told.append(done("length") if is_ours else {"Done": {"usage": USAGE}})
    answer = Answer(AnswerReader(max_tokens=8))
    answer.take(told)
    assert answer.ended.finish_reason == "length"
    is_complete = is_ours and is_judged
    assert answer.content == ('Well.\n{"na' if is_complete else "Well.")


CODE = ["Done:\n\n", "```\nfor x in y:\n", "    if x:\n", "        print(x)\n", "```\n"]


@pytest.mark.parametrize("section", ["\n", '{"name": "f"}'], ids=["blank", "judged at the end"])
def test_blanks_after_the_first_text_behind_a_call_are_content(section: str) -> None:
    """Paddler's agents say what a call is when the answer is over, and of a blank one nothing."""
    told: list[RawResult] = [{"ContentToken": "Well.\n"}, {"ToolCallToken": section}]
    told += [{"ContentToken": text} for text in CODE]
    told += [parsed("f")] if section.strip() else []
    answer = Answer(AnswerReader())
    for result in [*told, done()]:
        answer.take([result])
    assert answer.content == "Well.\n" + "".join(CODE)


def test_a_call_that_nobody_reads_stays_where_it_stands() -> None:
    told: list[RawResult] = [{"ContentToken": "Well.\n\n"}, {"ToolCallToken": '{"name": "f"}'}]
    told += [{"ContentToken": text} for text in CODE]
    answer = Answer(AnswerReader(raw_calls=True))
    for result in [*told, done()]:
        answer.take([result])
    assert answer.content == 'Well.\n\n{"name": "f"}' + "".join(CODE)


def test_blanks_keep_the_log_probabilities_of_what_they_belong_to() -> None:
    results = [
        *(logprob("a"), {"ContentToken": "a"}, logprob("\n"), {"ContentToken": "\n"}),
        *(logprob("b"), {"ContentToken": "b"}, logprob(" "), {"ContentToken": " "}),
        *(logprob("<call>"), {"ToolCallToken": "<call>"}, parsed("f"), done()),
    ]
    answer = Answer(AnswerReader())
    for result in results:
        answer.take([result])
    assert answer.content == "a\nb"
    assert [entry["token"] for entry in answer.logprobs] == ["a", "\n", "b"]


def test_images_are_a_part_of_the_prompt() -> None:
    usage = {**USAGE, "prompt_tokens": 3, "input_image_tokens": 36, "cached_prompt_tokens": 38}
    body = whole({"Done": {"usage": usage}})
    assert body["usage"]["prompt_tokens"] == 39
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 38
    assert (body["timings"]["prompt_n"], body["timings"]["cache_n"]) == (1, 38)


def test_the_stop_text_is_told_only_if_asked_for() -> None:
    results = ({"ContentToken": "a"}, done("stop_text", "END"))
    wanted = Delivery(with_stop_text=True)
    assert whole(*results)["choices"][0]["message"]["content"] == "a"
    assert whole(*results, delivery=wanted)["choices"][0]["message"]["content"] == "aEND"
    assert joined(streamed(Step(0, results), delivery=wanted))["content"] == "aEND"


def test_reasoning_may_be_left_out_or_be_content() -> None:
    results = ({"ReasoningToken": "Hm."}, {"ContentToken": "Hi"}, done())
    hidden = whole(*results, delivery=Delivery(with_reasoning=False))["choices"][0]["message"]
    assert (hidden["content"], hidden.get("reasoning_content")) == ("Hi", None)
    inline = whole(*results, delivery=Delivery(reasoning_is_content=True))["choices"][0]["message"]
    assert (inline["content"], inline.get("reasoning_content")) == ("Hm.Hi", None)
    for delivery, content in (
        (Delivery(with_reasoning=False), "Hi"),
        (Delivery(reasoning_is_content=True), "Hm.Hi"),
    ):
        told = joined(streamed(Step(0, results), delivery=delivery))
        assert (told["content"], told["reasoning_content"]) == (content, "")


def test_log_probabilities_are_those_of_content() -> None:
    results = (
        logprob("<think>"),
        {"ReasoningToken": "Hm"},
        logprob("H"),
        logprob("i"),
        {"ContentToken": "Hi"},
        logprob("<end>"),
        done(),
    )
    exact = Delivery(with_logprobs=True, is_exact=True)
    (choice,) = whole(*results, delivery=exact)["choices"]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"] == "Hi"
    assert entries[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [{"token": "H", "logprob": -0.5, "bytes": [72]}],
    }
    (choice,) = whole(*results, delivery=Delivery(with_logprobs=True))["choices"]
    with_ids = choice["logprobs"]["content"][0]
    assert with_ids["id"] == with_ids["top_logprobs"][0]["id"] == 1, "llama-server's"
    events = streamed(Step(0, results), delivery=Delivery(with_logprobs=True))
    told = [
        entry["token"]
        for event in events
        for part in event["choices"]
        if part["logprobs"] is not None
        for entry in part["logprobs"]["content"]
    ]
    assert told == ["H", "i"]


# ------------------------------------------------------------------------------------- streams


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    first, *_, last = streamed(Step(0, [{"ContentToken": "Hi"}]), Step(0, [done("length")]))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert last["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert last["timings"]["predicted_n"] == 8
    assert {first["object"], last["object"]} == {"chat.completion.chunk"}


def test_usage_comes_last_and_alone_when_asked_for() -> None:
    events = streamed(Step(0, [{"ContentToken": "Hi"}, done()]), delivery=Delivery(with_usage=True))
    assert [event["usage"] is not None for event in events] == [False, False, False, True]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["total_tokens"] == 19
    assert "timings" in events[-1]
    assert "timings" not in events[-2]


def test_chunks_may_carry_timings() -> None:
    progress = {"Progress": {"total": 9, "cached": 3, "computed": 5}}
    delivery = Delivery(with_timings=True)
    steps = [Step(0, [progress]), Step(0, [{"ContentToken": "Hi"}], [7, 8]), Step(0, [done()])]
    first, content, _ = streamed(*steps, delivery=delivery)
    assert "timings" not in first
    assert content["timings"]["predicted_n"] == 2
    assert streamed(*steps)[1]["choices"][0]["delta"] == {"content": "Hi"}


def test_a_failure_is_an_event_and_no_done() -> None:
    told = ChatStream(HEADING, Delivery(), Stopwatch(lambda: 0.0), readers(None))
    last = told.failed(ApiError(504, "too late"))
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "too late"
    assert b"[DONE]" not in last


def test_raw_calls_are_content() -> None:
    answer = Answer(AnswerReader(raw_calls=True))
    answer.take([{"ToolCallToken": "<call>"}, {"ContentToken": "x"}, done()])
    assert (answer.content, answer.calls) == ("<call>x", [])


def test_usage_counts_each_prompt_once() -> None:
    reader = AnswerReader()
    list(reader.take([done()]))
    assert reader.ended is not None
    other = attrs.evolve(reader.ended, usage=USAGE | {"prompt_tokens": 20})
    both = usage_of([reader.ended, reader.ended, other, other], prompts=2)
    assert (both["prompt_tokens"], both["completion_tokens"]) == (31, 32)


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
RESULTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"ContentToken": text}, TEXT),
        st.builds(lambda text: {"UndeterminableToken": text}, TEXT),
        st.builds(lambda text: {"ReasoningToken": text}, TEXT),
        st.builds(lambda text: {"ToolCallToken": text}, TEXT),
        st.builds(logprob, TEXT),
        st.just({"ToolCallParseFailed": "x"}),
        st.just(parsed("f", "g")),
    ),
    max_size=12,
)


@given(
    st.lists(RESULTS, min_size=1, max_size=3),
    st.builds(
        Delivery,
        with_usage=st.booleans(),
        with_logprobs=st.booleans(),
        with_reasoning=st.booleans(),
        with_timings=st.booleans(),
    ),
    st.randoms(use_true_random=False),
)
def test_a_stream_says_what_the_whole_answer_says(
    choices: list[list[RawResult]], delivery: Delivery, random: Any
) -> None:
    n = len(choices)
    told = WholeChat(HEADING, delivery, [Answer(reader) for reader in readers(delivery, n)])
    steps = []
    queues = [[*results, done()] for results in choices]
    while any(queues):
        choice = random.choice([index for index, queue in enumerate(queues) if queue])
        steps.append(Step(choice, [queues[choice].pop(0)]))
    for step in steps:
        told.take(step)
    events = streamed(*steps, delivery=delivery, n=n)
    for choice, part in enumerate(told.body()["choices"]):  # type: ignore[var-annotated, arg-type]
        message = joined(events, choice)
        assert message["content"] == (part["message"]["content"] or "")
        assert message["reasoning_content"] == part["message"].get("reasoning_content", "")
        assert len(message["tool_calls"]) == len(part["message"].get("tool_calls", ()))
        assert message["finish_reason"] == part["finish_reason"]


@given(RESULTS)
def test_no_content_is_lost(results: list[RawResult]) -> None:
    reader = AnswerReader()
    said = "".join(
        piece.text for piece in reader.take([*results, done()]) if isinstance(piece, ContentDelta)
    )
    sure = "".join(
        str(next(iter(result.values())))
        for result in results
        if isinstance(result, dict) and {"ContentToken", "UndeterminableToken"} & set(result)
    )
    rest = iter(said)
    characters = [character for character in sure if not character.isspace()]
    assert all(character in rest for character in characters), "in order, whatever stands between"
