"""Text completions and embeddings: every form of prompt, both dialects, every field."""

from __future__ import annotations

import base64
import itertools
import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_values import USAGE, chunks, done, logprob, text_answer

from paddler_trio.balancer.apis.answers.answer import MAX_REPEATED_CHARS, Step
from paddler_trio.balancer.apis.answers.timings import Stopwatch
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import Field, FieldSupport
from paddler_trio.balancer.apis.generation_fields import TIMEOUT
from paddler_trio.balancer.apis.generation_settings import generation_settings
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.llama_completion import CompletionEncoder
from paddler_trio.balancer.apis.openai.answer_heading import Heading
from paddler_trio.balancer.apis.openai.completion_request import (
    CompletionRequest,
    completion_record,
    llama_completion_record,
    read_completion,
    read_llama_completion,
)
from paddler_trio.balancer.apis.openai.completions import (
    CompletionStream,
    WholeCompletion,
)
from paddler_trio.balancer.apis.openai.embeddings import (
    VECTOR_BYTES,
    Embedded,
    embeddings_record,
    llama_pieces,
    openai_pieces,
    split,
)
from paddler_trio.balancer.apis.prompts import Prompts, read_prompts
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.work import TextInput, TextPrompt

LIMITS = ApiLimits()
HEADING = Heading(model="m", fingerprint="b1", created=5, id="cmpl-1")
TEXT = {"Text": {"text": "Once"}}


def read(**body: object) -> CompletionRequest:
    return read_completion({"prompt": "Once", **body}, LIMITS)


def told_off(**body: object) -> ApiError:
    with pytest.raises(ApiError) as told:
        read(**body)
    return told.value


def watch() -> Stopwatch:
    return Stopwatch(itertools.count(1.0).__next__)


# ------------------------------------------------------------------------------------ prompts


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("a", Prompts(("a",), is_several=False)),
        ("", Prompts(("",), is_several=False)),
        ([12, 34], Prompts(([12, 34],), is_several=False)),
        ([12, "s", 34], Prompts(([12, "s", 34],), is_several=False)),
        (["a", "b"], Prompts(("a", "b"), is_several=True)),
        (["a", [1, 2]], Prompts(("a", [1, 2]), is_several=True)),
        ([[1], [2, "s"]], Prompts(([1], [2, "s"]), is_several=True)),
        ({"prompt_string": "a"}, Prompts(("a",), is_several=False)),
        ([[1], {"prompt_string": "a"}], Prompts(([1], "a"), is_several=True)),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            Prompts(("ab",), is_several=False),
        ),
    ],
)
def test_prompts_have_many_forms(value: object, prompts: Prompts) -> None:
    assert read_prompts(value, LIMITS) == prompts


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "prompt"),
        (5, "prompt"),
        (None, "prompt"),
        ([1, None], "prompt[1]"),
        ([-1], "prompt[0]"),
        ([2**31], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([[]], "prompt[0]"),
        ([True], "prompt[0]"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "prompt.multimodal_data"),
        ({"content": "string"}, "prompt"),
        ({"content": [{"type": "unknown"}]}, "prompt.content[0]"),
        ([*["a"] * 3000], "prompt"),
        ([1, *["a"] * 1025], "prompt"),
        ([[1, *["a"] * 513]] * 2, "prompt"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_path(value: object, param: str) -> None:
    with pytest.raises(ApiError) as told:
        read_prompts(value, LIMITS)
    assert (told.value.status, told.value.param) == (400, param)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text(max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
)


@given(JSON)
def test_no_json_breaks_the_reader_of_prompts(value: object) -> None:
    try:
        read = read_prompts(value, LIMITS)
    except ApiError as error:
        read = None
        status = error.status
    assert (read is not None and read.prompts) or status == 400


# ------------------------------------------------------------------------------------- fields

EXAMPLES: dict[str, tuple[dict[str, Any], object]] = {
    "model": ({}, "m"),
    "prompt": ({}, "Twice"),
    "n": ({}, 2),
    "suffix": ({}, " end"),
    "echo": ({}, True),
    "best_of": ({}, 3),
    "logprobs": ({}, 2),
    "response_format": ({}, {"type": "json_object"}),
    "max_tokens": ({}, 7),
    "stop": ({}, "x"),
    "include_stop_str_in_output": ({}, True),
    "dry_sequence_breakers": ({}, ["\n"]),
    "samplers": ({}, "kt"),
    "penalize_prompt": ({}, True),
    "seed": ({}, 1),
    "ignore_eos": ({}, True),
    "adaptive_decay": ({}, 0.5),
    "post_sampling_probs": ({}, True),
    "logit_bias": ({}, [[1, 2]]),
    "grammar": ({}, 'root ::= "a"'),
    "json_schema": ({}, {}),
    "guided_json": ({}, {}),
    "guided_regex": ({}, "a"),
    "guided_choice": ({}, ["a"]),
    "guided_grammar": ({}, 'root ::= "a"'),
    "regex": ({}, "a"),
    "ebnf": ({}, 'root ::= "a"'),
    "structured_outputs": ({}, {"json_object": True}),
    "stream": ({}, True),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "timings_per_token": ({"stream": True}, True),
    "return_progress": ({"stream": True}, True),
    "sse_ping_interval": ({"stream": True}, 3),
    "verbose": ({}, True),
    "cache_prompt": ({}, False),
    "cache_salt": ({}, "s"),
    "lora": ({}, [{"name": "sql"}]),
    "n_probs": ({}, 3),
    "return_tokens": ({}, True),
    "response_fields": ({}, ["content"]),
}


@pytest.mark.parametrize("field", completion_record(LIMITS).fields, ids=lambda field: field.name)
def test_every_field_of_a_completion_is_honoured_or_refused(field: Field) -> None:
    if field.support is FieldSupport.REFUSED:
        error = told_off(**{field.name: {"any": "thing"}})
        assert (error.param, error.code) == (field.name, "unsupported_parameter")
    elif field.support is FieldSupport.HONOURED and field is not TIMEOUT:
        others, value = EXAMPLES.get(field.name, ({}, 1))
        assert read(**others, **{field.name: value}) != read(**others)


@pytest.mark.parametrize(
    "field", llama_completion_record(LIMITS).fields, ids=lambda field: field.name
)
def test_every_field_of_llama_servers_dialect_is_honoured_or_refused(field: Field) -> None:
    body = {"prompt": "Once"}
    if field.support is FieldSupport.REFUSED:
        with pytest.raises(ApiError) as told:
            read_llama_completion({**body, field.name: {"any": "thing"}}, LIMITS)
        assert told.value.param == field.name
    elif field.support is FieldSupport.HONOURED and field is not TIMEOUT:
        others, value = EXAMPLES.get(field.name, ({}, 1))
        base = read_llama_completion({**body, **others}, LIMITS)
        assert read_llama_completion({**body, **others, field.name: value}, LIMITS) != base


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": [1, 2], "suffix": " end"}, "prompt"),
        ({"suffix": 1}, "suffix"),
        ({"prompt": ["a"] * 2048, "suffix": "x" * 513}, "suffix"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_completions_are_refused_with_their_path(body: dict[str, object], param: str) -> None:
    assert told_off(**body).param == param


def test_one_prompt_may_have_a_longer_suffix_than_several_together() -> None:
    long = "x" * 1024 * 1024
    assert read(prompt="a", suffix=2 * long).suffix == 2 * long
    assert read(prompt=["a", "b"], suffix=long[::2]).suffix == long[::2]
    told = told_off(prompt=["a", "b"], suffix=long)
    assert "1048576 characters behind each of 2 prompts, 2097152 together" in told.message


def test_works_are_those_of_the_first_prompt_then_of_the_second() -> None:
    request = read(prompt=["a", "b"], n=2, seed=5)
    first, second = TextPrompt(text="a"), TextPrompt(text="b")
    works = request.works([first, second])
    assert [(work.prompt, work.sampling.seed) for work in works] == [
        (first, 5),
        (first, 6),
        (second, 5),
        (second, 6),
    ]


# ------------------------------------------------------------------------------------ answers


def test_log_probabilities_have_the_legacy_shape_with_offsets_into_the_text() -> None:
    request = read(logprobs=1)
    told = WholeCompletion(HEADING, request.delivery, [text_answer()], 1, 1)
    told.take(Step(0, [logprob("On"), {"ContentToken": "On"}, logprob("ce"), logprob("!")]))
    told.take(Step(0, [{"ContentToken": "ce!"}, done()]))
    body: Any = json.loads(dumps(told.body()))
    (choice,) = body["choices"]
    legacy = choice["logprobs"]
    assert choice["text"] == "Once!"
    assert legacy["tokens"] == ["On", "ce", "!"]
    assert legacy["text_offset"] == [0, 2, 4]
    assert legacy["token_logprobs"] == [-0.5] * 3
    assert legacy["top_logprobs"][0] == {"On": -0.5}


def test_the_best_of_several_is_the_one_the_model_found_likeliest() -> None:
    request = read(best_of=2, n=1)
    assert request.generate.logprobs == 0
    told = WholeCompletion(HEADING, request.delivery, [text_answer(), text_answer()], 1, 2)
    for choice, (text, value) in enumerate((("bad", -3.0), ("good", -0.1))):
        entry = {"id": 1, "token": text, "bytes": [], "logprob": value, "top": []}
        told.take(Step(choice, [{"Logprobs": entry}, {"ContentToken": text}, done()]))
    body: Any = told.body()
    assert [choice["text"] for choice in body["choices"]] == ["good"]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 16, "both were written"
    assert body["usage"]["prompt_tokens"] == USAGE["prompt_tokens"]


def test_a_stream_of_a_completion_echoes_first_and_ends_once() -> None:
    request = read(stream=True, echo=True, stream_options={"include_usage": True})
    told = CompletionStream(HEADING, request.delivery, watch(), [text_answer("Once")], 1)
    stream = told.opening()
    stream += told.take(Step(0, [{"ContentToken": " upon"}], [3]))
    stream += told.take(Step(0, [{"ReasoningToken": "!"}, done("length")]))
    *texts, last = chunks(stream + told.closing())
    assert [event["choices"][0]["text"] for event in texts] == ["Once", " upon", "!", ""]
    assert [event["choices"][0]["finish_reason"] for event in texts] == [None, None, None, "length"]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 11


def test_nothing_is_echoed_before_an_agent_has_taken_the_prompt() -> None:
    """It may wait, or be too long for every agent, and each choice repeats it."""
    request = read(stream=True, echo=True, n=2)
    answers = [text_answer("Once"), text_answer("Once")]
    told = CompletionStream(HEADING, request.delivery, watch(), answers, 1)
    assert told.opening() == b""
    progress = {"Progress": {"total": 9, "cached": 0, "computed": 9}}
    (event,) = chunks(told.take(Step(1, [progress])) + streaming.DONE)
    assert (event["choices"][0]["index"], event["choices"][0]["text"]) == (1, "Once")
    assert told.take(Step(1, [])) == b""


@pytest.mark.parametrize(("chars", "is_repeated"), [(1000, True), (MAX_REPEATED_CHARS, False)])
def test_what_the_model_was_given_is_told_at_every_end_while_it_is_short(
    chars: int, is_repeated: bool
) -> None:
    answers = [text_answer() for _ in range(3)]
    verbose: Json = {"prompt": "a" * chars}
    delivery = read(stream=True, n=3).delivery
    told = CompletionStream(HEADING, delivery, watch(), answers, 1, verbose=verbose)
    stream = b"".join(told.take(Step(choice, [done()])) for choice in (2, 0, 1))
    events = chunks(stream + told.closing())
    assert [event.get("__verbose") == verbose for event in events] == [True, *[is_repeated] * 2]


def test_llama_servers_dialect_tells_an_object_or_a_list() -> None:
    one = read_llama_completion({"prompt": "a", "return_tokens": True, "n_predict": 3}, LIMITS)
    settings = generation_settings({}, one.generate)
    told = CompletionEncoder(one, "m", ["a"], [text_answer()], watch(), settings)
    told.read(Step(0, [logprob("x"), {"ContentToken": "x\n"}, done("length")], [7, 8]))
    body: Any = json.loads(dumps(told.body()))
    assert body["content"] == "x\n"
    assert body["tokens"] == [7, 8]
    assert (body["stop"], body["stop_type"], body["has_new_line"]) == (True, "limit", True)
    assert body["generation_settings"]["n_predict"] == 3
    assert body["completion_probabilities"][0]["top_logprobs"][0]["id"] == 1
    for prompts in (["a"], ["a", "b"]):
        several = read_llama_completion({"prompt": prompts}, LIMITS)
        answers = [text_answer() for _ in prompts]
        encoder = CompletionEncoder(several, "m", prompts, answers, watch())
        for choice in range(len(prompts)):
            encoder.read(Step(choice, [done()]))
        assert isinstance(encoder.body(), list) is (len(prompts) > 1)


@pytest.mark.parametrize(("chars", "is_repeated"), [(1000, True), (MAX_REPEATED_CHARS, False)])
def test_what_a_request_says_once_is_not_answered_any_number_of_times(
    chars: int, is_repeated: bool
) -> None:
    prompts = ["a" * chars, "b" * chars]
    request = read_llama_completion({"prompt": prompts, "n": 2}, LIMITS)
    settings = generation_settings({}, request.generate)
    texts = [prompt for prompt in prompts for _ in range(2)]
    answers = [text_answer() for _ in texts]
    told = CompletionEncoder(request, "m", texts, answers, watch(), settings)
    for choice in range(4):
        told.read(Step(choice, [done()]))
    bodies: Any = told.body()
    later = prompts if is_repeated else ["", ""]
    assert [body["prompt"] for body in bodies] == [prompts[0], later[0], prompts[1], later[1]]
    given = [body["generation_settings"] == settings for body in bodies]
    assert given == [True, is_repeated, is_repeated, is_repeated]


def test_an_answer_is_truncated_where_the_context_is_full() -> None:
    request = read_llama_completion({"prompt": "a"}, LIMITS)
    for reason, is_truncated in (("cells", True), ("length", False), ("stop", False)):
        told = CompletionEncoder(request, "m", ["a"], [text_answer()], watch())
        told.read(Step(0, [{"ContentToken": "x"}, done(reason)]))
        body: Any = told.body()
        assert body["truncated"] is is_truncated


def test_response_fields_choose_members() -> None:
    fields = ["content", "generation_settings/n_predict", "nix", "prompt/deep"]
    request = read_llama_completion(
        {"prompt": "a", "n_predict": 4, "response_fields": fields}, LIMITS
    )
    settings = generation_settings({}, request.generate)
    told = CompletionEncoder(request, "m", ["a"], [text_answer()], watch(), settings)
    told.read(Step(0, [{"ContentToken": "x"}, done()]))
    assert told.body() == {"content": "x", "generation_settings/n_predict": 4}


def test_llama_servers_stream_ends_with_stop_and_no_done() -> None:
    request = read_llama_completion({"prompt": "a", "stream": True, "n_probs": 1}, LIMITS)
    told = CompletionEncoder(request, "m", ["a"], [text_answer()], watch())
    stream = told.opening() + told.take(Step(0, [logprob("x"), {"ContentToken": "x"}], [7]))
    stream += told.take(Step(0, [done()])) + told.closing()
    events = [json.loads(block[6:]) for block in stream.decode().split("\n\n")[:-1]]
    assert [event["stop"] for event in events] == [False, True]
    assert events[0]["tokens"] == [7]
    assert len(events[0]["completion_probabilities"]) == 1
    assert events[1]["content"] == ""


def streamed(*steps: Step, with_probabilities: bool = False) -> list[dict[str, Any]]:
    """llama-server's events."""
    body = {"prompt": "a", "stream": True} | ({"n_probs": 1} if with_probabilities else {})
    told = CompletionEncoder(
        read_llama_completion(body, LIMITS), "m", ["a"], [text_answer()], watch()
    )
    stream = b"".join(told.take(step) for step in steps)
    return [json.loads(block[6:]) for block in stream.decode().split("\n\n")[:-1]]


def texts(*words: str) -> list[Any]:
    return [{"ContentToken": word} for word in words]


def shown(events: list[dict[str, Any]]) -> list[tuple[str, list[int], int]]:
    return [(each["content"], each["tokens"], each["tokens_predicted"]) for each in events]


def test_llama_servers_stream_has_an_event_for_each_text_of_a_step() -> None:
    """Also where tokens of several passes came together, or a token of before had no text yet."""
    events = streamed(Step(0, [], [6]), Step(0, texts("x", "y", "z"), [7, 8, 9]))
    assert shown(events) == [("x", [6, 7], 2), ("y", [8], 3), ("z", [9], 4)]


def test_the_end_of_the_turn_is_the_token_of_no_text() -> None:
    events = streamed(Step(0, [*texts("x", "y"), done()], [7, 8, 2]))
    assert shown(events[:2]) == [("x", [7], 1), ("y", [8], 2)]
    assert events[2]["stop"]


def test_texts_whose_tokens_are_not_known_are_one_event() -> None:
    """A character of two tokens somewhere among them."""
    events = streamed(Step(0, texts("x", "é"), [7, 8, 9]), Step(0, texts("y"), [10]))
    assert shown(events) == [("xé", [7, 8, 9], 3), ("y", [10], 4)]


def test_probabilities_say_which_tokens_are_whose() -> None:
    two = [logprob("x"), *texts("x"), logprob("1"), logprob("2"), *texts("é")]
    events = streamed(Step(0, two, [7, 8, 9]), with_probabilities=True)
    assert shown(events) == [("x", [7], 1), ("é", [8, 9], 3)]
    assert [len(event["completion_probabilities"]) for event in events] == [1, 2]
    events = streamed(Step(0, [*two, done()], [7, 8, 9, 2]), with_probabilities=True)
    assert shown(events[:2]) == [("x", [7], 1), ("é", [8, 9], 3)]


def test_timings_come_with_every_chunk_that_asks_for_them() -> None:
    step = Step(0, [{"ContentToken": "x"}], [7])
    wishes = {"stream": True, "timings_per_token": True}
    openai = CompletionStream(HEADING, read(**wishes).delivery, watch(), [text_answer()], 1)
    request = read_llama_completion({"prompt": "a", **wishes}, LIMITS)
    llama = CompletionEncoder(request, "m", ["a"], [text_answer()], watch())
    for told in (openai.take(step), llama.take(step)):
        event = json.loads(told.removeprefix(b"data: "))
        assert event["timings"]["predicted_n"] == 1
        assert event["timings"]["prompt_ms"] == 1000


def test_llama_servers_dialect_tells_the_stop_text_if_asked_to() -> None:
    wishes = {"prompt": "a", "stop": ["END"], "include_stop_str_in_output": True}
    last = Step(0, [{"ContentToken": "x"}, done("stop_text", "END")], [7])
    told = CompletionEncoder(
        read_llama_completion(wishes, LIMITS), "m", ["a"], [text_answer()], watch()
    )
    told.read(last)
    body: Any = told.body()
    assert (body["content"], body["stopping_word"]) == ("xEND", "END")
    request = read_llama_completion({**wishes, "stream": True}, LIMITS)
    streamed = CompletionEncoder(request, "m", ["a"], [text_answer()], watch())
    first = streamed.take(last).split(b"\n\n")[0]
    assert json.loads(first.removeprefix(b"data: "))["content"] == "xEND"


# --------------------------------------------------------------------------------- embeddings


def embedding(name: int, *vector: float) -> dict[str, object]:
    return {"Embedding": {"embedding": list(vector), "source_document_id": str(name)}}


def embedded(*, count: int = 3) -> Embedded:
    told = Embedded(count, [0, 2])
    told.take(Step(1, [embedding(0, 0.0, 1.0), {"Usage": {"prompt_tokens": 4}}, "Done"]))
    told.take(Step(0, [embedding(1, 1.0, 0.0), embedding(0, 0.6, 0.8)]))
    told.take(Step(0, [{"Usage": {"prompt_tokens": 3}}, "Done"]))
    return told


def openai_body(told: Embedded, values: dict[str, object] | None = None) -> Any:
    return json.loads(b"".join(openai_pieces(told, model="m", values=values or {})))


def llama_body(told: Embedded) -> Any:
    return json.loads(b"".join(llama_pieces(told)))


def test_inputs_keep_their_places_whoever_embeds_them() -> None:
    body = openai_body(embedded())
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    assert body["data"][2]["embedding"] == [0.0, 1.0]
    assert body["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert llama_body(embedded())[1] == {"index": 1, "embedding": [[1.0, 0.0]]}


def test_base64_is_little_endian_floats() -> None:
    body = openai_body(embedded(), {"encoding_format": "base64"})
    data = base64.b64decode(body["data"][0]["embedding"])
    assert struct.unpack("<2f", data) == pytest.approx((0.6, 0.8))


def test_dimensions_cut_and_make_the_length_one_again() -> None:
    body = openai_body(embedded(), {"dimensions": 1})
    assert [entry["embedding"] for entry in body["data"]] == [[1.0], [1.0], [0.0]]
    with pytest.raises(ApiError, match=r"dimensions is 3, the model's vectors have 2"):
        openai_pieces(embedded(), model="m", values={"dimensions": 3})


@pytest.mark.parametrize("is_openai", [True, False])
def test_vectors_are_written_one_by_one(*, is_openai: bool) -> None:
    """The text of all is several times what they are, and their numbers as objects of Python more
    than the text."""
    told, width = Embedded(100, [0]), 1024
    told.vectors = {place: np.full(width, 1 / 3, np.float32) for place in range(100)}
    tracemalloc.start()
    try:
        pieces = openai_pieces(told, model="m", values={}) if is_openai else llama_pieces(told)
        sizes = list(map(len, pieces))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 100 * width * 18
    assert most_bytes < 8 * max(sizes) < sum(sizes) / 10


def test_parts_of_embeddings_cover_every_input_once() -> None:
    inputs = [TextInput(text=str(number)) for number in range(7)]
    parts, starts = split(inputs, agents=2, batch_size=3)
    assert [each for part in parts for each in part] == inputs
    assert starts == [0, 3, 5]


def test_what_was_not_embedded_is_an_error() -> None:
    with pytest.raises(ApiError, match=r"input\[3\] was not embedded"):
        openai_pieces(embedded(count=4), model="m", values={})
    with pytest.raises(ApiError, match=r"input\[3\] was not embedded"):
        llama_pieces(embedded(count=4))
    excess = {"document_tokens": 600, "n_batch": 512, "source_document_id": "1"}
    with pytest.raises(ApiError, match=r"input\[3\] is too large: it has 600 tokens") as told:
        embedded().take(Step(1, [{"DocumentExceedsBatchSize": excess}]))
    assert told.value.status == 400


def test_a_document_that_cannot_be_embedded_is_its_senders_fault() -> None:
    for why, told in (
        ("document '1' is empty: nothing", "input[3] is empty: nothing"),
        ("document '1': token 99 is none", "input[3]: token 99 is none"),
        ("nothing is there", "input[3]: nothing is there"),
    ):
        refused = {"DocumentRefused": {"problem": why, "source_document_id": "1"}}
        with pytest.raises(ApiError) as error:
            embedded().take(Step(1, [refused]))
        assert (error.value.status, error.value.param) == (400, "input[3]")
        assert error.value.message == told


def test_vectors_for_each_token_are_for_those_who_want_them() -> None:
    result = {"TokenEmbeddings": {"embeddings": [[1.0, 2.0]], "source_document_id": "0"}}
    with pytest.raises(ApiError, match="pooling_type None"):
        Embedded(1, [0]).take(Step(0, [result]))
    told = Embedded(1, [0], per_token=True)
    told.take(Step(0, [result]))
    assert np.array_equal(next(told.in_order()), [[1.0, 2.0]])
    assert llama_body(told) == [{"index": 0, "embedding": [[1.0, 2.0]]}]


def test_vectors_are_counted_once() -> None:
    """A token's vector is thousands of times larger than the token."""
    told = Embedded(4, [0], per_token=True)
    vector = {"embedding": [1.0, 2.0], "source_document_id": "0"}
    assert told.take(Step(0, [{"Embedding": vector}])) == 2 * 4 + VECTOR_BYTES
    vectors = {"embeddings": [[1.0, 2.0]] * 3, "source_document_id": "1"}
    assert told.take(Step(0, [{"TokenEmbeddings": vectors}])) == 6 * 4 + VECTOR_BYTES
    assert told.take(Step(0, [{"TokenEmbeddings": vectors}])) == 0, "of another agent"
    assert sorted(told.vectors) == [0, 1]


def test_embeddings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ApiError) as told:
        embeddings_record(LIMITS).read({"input": "a", "nix": 1}, "")
    assert told.value.param == "nix"
