"""Our work in Paddler's words: all of it or none of it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.language.prompting import _generate_of
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.request_params import (
    L2,
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    EmbeddingInputDocument,
    GbnfGrammar,
    GenerateEmbeddingBatchParams,
    JsonSchemaGrammar,
    PaddlerWork,
)
from paddler_trio.wire.trio.adapters import AdapterChoice
from paddler_trio.wire.trio.paddler_translation import (
    UNLIMITED_TOKENS,
    UnsupportedByPaddler,
    paddler_work,
)
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    ConversationPrompt,
    Embed,
    Generate,
    InfillPrompt,
    LogitBias,
    Rank,
    RegexGrammar,
    SamplingOverrides,
    TextInput,
    TextPrompt,
    TokenInput,
    TokenPrompt,
)

HELLO = {"role": "user", "content": "Hello!"}
TOOL = {"type": "function", "function": {"name": "now", "description": "The time"}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
LOOK = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}

MESSAGES = st.sampled_from(
    [
        HELLO,
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, LOOK]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "assistant", "content": "Hi.", "reasoning_content": "a greeting"},
        {"role": "user", "name": "Ann", "content": "Hi."},
    ]
)
CONSTRAINTS = st.sampled_from(
    [
        None,
        GbnfGrammar('root ::= "a"', "root"),
        JsonSchemaGrammar("{}"),
        RegexGrammar("a+"),
        ChoiceGrammar(("a", "b")),
        AnyJsonGrammar(),
    ]
)
CONVERSATIONS = st.builds(
    ConversationPrompt,
    messages=st.lists(MESSAGES, min_size=1, max_size=3).map(tuple),
    tools=st.sampled_from([(), (TOOL,)]),
    tool_choice=st.sampled_from(["auto", "auto", "none", "required"]),
    parallel_tool_calls=st.sampled_from([True, True, False]),
    add_generation_prompt=st.booleans(),
    continue_final_message=st.sampled_from([False, False, True]),
    thinking=st.sampled_from([None, True, False]),
    max_reasoning_tokens=st.sampled_from([None, None, 5]),
    template_kwargs=st.sampled_from([{}, {}, {"a": 1}]),
    raw_tool_calls=st.booleans(),
)
PROMPTS = st.one_of(
    st.builds(TextPrompt, text=st.text(), parse_special=st.booleans()),
    st.just(TokenPrompt(tokens=(1, 2))),
    st.just(InfillPrompt(prefix="a", suffix="b")),
    CONVERSATIONS,
)
GENERATIONS = st.builds(
    Generate,
    prompt=PROMPTS,
    max_tokens=st.sampled_from([None, 1, 500]),
    sampling=st.sampled_from(
        [SamplingOverrides(), SamplingOverrides(), SamplingOverrides(top_k=1)]
    ),
    constraint=CONSTRAINTS,
    stop=st.sampled_from([(), (), ("END",)]),
    logprobs=st.sampled_from([None, None, 0]),
    reuse_prefix=st.sampled_from([True, True, False]),
    cache_salt=st.sampled_from(["", "", "salt"]),
    lora=st.sampled_from([(), (), (AdapterChoice(id=0, scale=0.5),)]),
    context=st.sampled_from([None, None, None, (), (5,)]),
)


def as_told(work: Generate) -> Generate:
    """What the documented words for "as the model likes it" make of it."""
    work = attrs.evolve(work, max_tokens=work.max_tokens or UNLIMITED_TOKENS)
    prompt = work.prompt
    if not isinstance(prompt, ConversationPrompt):
        return work
    tools = () if prompt.tool_choice == "none" else prompt.tools
    thinking = work.constraint is None if prompt.thinking is None else prompt.thinking
    told = attrs.evolve(
        prompt,
        thinking=thinking,
        tools=tools,
        tool_choice="auto",
        raw_tool_calls=prompt.raw_tool_calls or not tools,
        parallel_tool_calls=True if not tools else prompt.parallel_tool_calls,
    )
    return attrs.evolve(work, prompt=told)


@given(GENERATIONS)
def test_what_is_said_in_paddlers_words_is_the_same_request(work: Generate) -> None:
    translated = paddler_work(work)
    if isinstance(translated, UnsupportedByPaddler):
        return
    read = structure(unstructure(translated, PaddlerWork), PaddlerWork)
    assert read == translated
    assert isinstance(read, ContinueFromRawPromptParams | ContinueFromConversationHistoryParams)
    assert _generate_of(read) == as_told(work)


SAYABLE = Generate(prompt=ConversationPrompt(messages=(HELLO,), tools=(TOOL,)))


def test_an_ordinary_request_can_be_said() -> None:
    assert not isinstance(paddler_work(SAYABLE), UnsupportedByPaddler)
    assert not isinstance(paddler_work(Generate(prompt=TextPrompt(text="a"))), UnsupportedByPaddler)


def _said(**fields: Any) -> Generate:
    return attrs.evolve(SAYABLE, **fields)


def _asked(**fields: Any) -> Generate:
    return attrs.evolve(SAYABLE, prompt=attrs.evolve(SAYABLE.prompt, **fields))


@pytest.mark.parametrize(
    ("work", "field"),
    [
        (_said(stop=("END",)), "stop"),
        (_said(logprobs=0), "logprobs"),
        (_said(reuse_prefix=False), "reuse_prefix"),
        (_said(cache_salt="mine"), "cache_salt"),
        (_said(lora=(AdapterChoice(name="sql"),)), "lora"),
        (_said(context=()), "context"),
        (_said(constraint=ChoiceGrammar(("a",))), "constraint"),
        (_said(sampling=SamplingOverrides(seed=0)), "sampling.seed"),
        (_said(sampling=SamplingOverrides(ignore_eos=True)), "sampling.ignore_eos"),
        (
            _said(sampling=SamplingOverrides(logit_bias=(LogitBias(token=1),))),
            "sampling.logit_bias",
        ),
        (_said(prompt=TokenPrompt(tokens=(1,))), "prompt.Tokens"),
        (_said(prompt=TextPrompt(text="a", parse_special=False)), "prompt.parse_special"),
        (_said(prompt=InfillPrompt(prefix="a", suffix="b")), "prompt.Infill"),
        (_asked(tool_choice="required"), "prompt.tool_choice"),
        (_asked(parallel_tool_calls=False), "prompt.parallel_tool_calls"),
        (_asked(continue_final_message=True), "prompt.continue_final_message"),
        (_asked(max_reasoning_tokens=0), "prompt.max_reasoning_tokens"),
        (_asked(template_kwargs={"a": 1}), "prompt.template_kwargs"),
        (_asked(messages=(HELLO, {**HELLO, "name": "Ann"})), "prompt.messages[1]"),
        (_asked(tools=({"type": "function", "function": {"name": 5}},)), "prompt.tools[0]"),
        (Rank(query="a", documents=("b",)), "rank"),
        (Embed(inputs=(TextInput(text="a"), TokenInput(tokens=(1,)))), "inputs[1].Tokens"),
        (Embed(inputs=(), normalize="rms"), "normalize"),
        (Embed(inputs=(), oversize="chunk"), "oversize"),
    ],
)
def test_the_first_field_that_cannot_be_said_is_named(work: Any, field: str) -> None:
    assert paddler_work(work) == UnsupportedByPaddler(field)


def test_every_wish_about_sampling_is_noticed() -> None:
    for field in attrs.fields(SamplingOverrides):
        value: Any = {"samplers": ("top_k",), "dry_sequence_breakers": ("a",)}.get(field.name, 1)
        if field.name == "logit_bias":
            value = (LogitBias(token=1),)
        overrides = attrs.evolve(SamplingOverrides(), **{field.name: value})
        assert paddler_work(_said(sampling=overrides)) == UnsupportedByPaddler(
            f"sampling.{field.name}"
        )


def test_embeddings_keep_their_places() -> None:
    work = paddler_work(Embed(inputs=(TextInput(text="a"), TextInput(text="b"))))
    documents = (EmbeddingInputDocument("0", "a"), EmbeddingInputDocument("1", "b"))
    assert work == GenerateEmbeddingBatchParams(documents, L2())
