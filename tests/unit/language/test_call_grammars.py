"""Calls sampled under a grammar are read by the readers and allowed by the schemas, in any format.

Nothing here is a mock: the engine's matcher masks the demo vocabulary, dice choose a token,
and what comes out goes through the classifier and the reader of the same format.
"""

from __future__ import annotations

import random

import attrs
import pytest
from grammar_engine import engine_of

from effort import examples
from paddler_trio.language.answer_grammar import grammar_of_answer
from paddler_trio.language.answers.automaton import Automaton, TokenClass
from paddler_trio.language.answers.call_syntax import NamedJson, TaggedCalls
from paddler_trio.language.answers.format_detection import GENERIC_CALLS, known_format
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.answers.whole_answer import AnswerReader, WholeAnswer
from paddler_trio.language.grammars.conversion import AnswerGrammar, SchemaNotConvertibleError
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import Thoughts
from paddler_trio.wire.paddler.request_params import JsonSchemaGrammar
from paddler_trio.wire.trio.work import ConversationPrompt

pytestmark = pytest.mark.thorough

# Enough of each family's template to know it by.
SOURCES = {
    "hermes": "<think></think><tool_call>",
    "qwen-coder": "<tool_call><parameter=",
    "glm": "<think></think><tool_call><arg_key>",
    "glm that quotes texts": "<think></think><tool_call><arg_key>",
    "mistral": "[TOOL_CALLS][ARGS]",
    "mistral with ids": "[TOOL_CALLS][ARGS][CALL_ID]",
    "mistral list": "[TOOL_CALLS]",
    "deepseek-v3.1": "<think></think><｜tool▁call▁begin｜>",  # noqa: RUF001 - as DeepSeek writes it
    "deepseek-r1": "<think></think><｜tool▁call▁begin｜>```json",  # noqa: RUF001
    "deepseek-dsml": "｜DSML｜ function_calls",  # noqa: RUF001
    "kimi-k2": "<|tool_call_begin|><|tool_call_argument_begin|>",
    "kimi-k3": "<|open|><|close|><|sep|>",
    "command-r7b": "<|START_ACTION|><|START_RESPONSE|><|CHATBOT_TOKEN|>",
    "command-r": "Action:```json<|CHATBOT_TOKEN|>",
    "granite-3": "<|tool_call|>",
    "functionary-v3.1": "<function=<|python_tag|>",
    "functionary-v3.2": ">>>all<|start_header_id|>",
    "gemma-4": "<|tool_call><tool_call|>",
    "minimax-m2": "<think></think><minimax:tool_call>",
    "minimax-m3": "]<]minimax[>[",
    "muse": "<atem:function_calls><|message|>",
    "hyperclova": "assistant/think -> tool/function_call",
    "gpt-oss": "<|channel|><|message|><|start|>",
    "lfm2": "<|tool_call_start|>",
    "olmo-3": "<function_calls></function_calls>",
    "nemotron": "<TOOLCALL>",
    "apertus": "<|tools_prefix|>",
    "seed-oss": "<seed:",
    "llama-3": '<|start_header_id|>"parameters": ',
    "llama-4": "<|python_start|>",
    "solar-open": "<|tool_call:begin|><|tool_calls|>",
    "solar-open-2": "<|tool_call:start|><|tool_arg:value|>",
    "plamo-3": "<|plamo:begin_tool_requests:plamo|>",
    "hunyuan-3": "HYTK = ':mark' <tool_sep<arg_key",
    "step-3": "<steptml:invoke",
    "minicpm": '<function name="<param name="',
    "gigachat-3.1": "<|function_call|><|role_sep|>",
    "phi-4-mini": "<|tool|><|/tool|>",
    "internlm": "<|action_start|><|plugin|>",
    "internlm with a blank": "<|action_start|> <|plugin|>",
    "gigachat-3.5": "<think></think>｜GCML｜",  # noqa: RUF001 - as GigaChat writes it
    "dots": "<dots_function_call>",
    "k2-horizon": "<ifm|tool_call>",
    "iquest-coder-2": "<think></think><iquestcoder_tool_call>",
    "granite-20b-fc": "<|function_call_library|><function_call>",
    "hunyuan-4": "HYTK = ':mark' <tool_calls<arg_key",
}
TOOLS: tuple[dict[str, object], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather somewhere",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                    "unit": {"enum": ["c", "f"]},
                    "note": {"type": ["string", "null"]},
                    "where": {
                        "type": "object",
                        "properties": {"lat": {"type": "number"}, "tag": {"type": "string"}},
                        "required": ["lat"],
                    },
                    "code": {"type": "string", "minLength": 2, "maxLength": 5},
                },
                "required": ["city", "days"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    },
    {
        "type": "function",
        "function": {
            "name": "set_flag",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^[a-z]+$"}]}
                },
                "required": ["x"],
            },
        },
    },
)


def format_named(name: str) -> ModelFormat:
    form = known_format(SOURCES[name])
    assert form is not None, name
    if name.endswith("quotes texts"):
        assert form.calls is not None
        assert isinstance(form.calls.syntax, TaggedCalls)
        syntax = attrs.evolve(form.calls.syntax, quoted=True)
        form = attrs.evolve(form, calls=attrs.evolve(form.calls, syntax=syntax))
    return form


def grammar_for(
    form: ModelFormat,
    vocabulary: Vocabulary,
    *,
    constraint: JsonSchemaGrammar | None = None,
    opening: TokenClass = TokenClass.CONTENT,
    prompt: str = "",
    **changes: object,
) -> AnswerGrammar | None:
    conversation = ConversationPrompt(messages=(), tools=TOOLS)
    conversation = attrs.evolve(conversation, **changes)  # type: ignore[arg-type]
    start = AnswerStart(form, prompt, opening)
    return grammar_of_answer(constraint, conversation, start, vocabulary)


def closers_of(form: ModelFormat) -> list[str]:
    """What ends parts of calls in this format: chance alone would hardly write it."""
    calls: CallFormat = form.calls or GENERIC_CALLS
    ends = [calls.closer, '"', "}", f"}}{calls.closer}", form.reasoning_close or ""]
    match calls.syntax:
        case NamedJson(after_arguments=end):
            ends += [end, end + calls.closer]
        case TaggedCalls() as tags:
            value_end = tags.value_blank + tags.value_end
            ends += [value_end, tags.call_end, tags.call_end + calls.closer]
        case _:
            ends += ['<|"|>', "]<]minimax[>[</city>", "]<]minimax[>[</x>", "]<]minimax[>[</invoke>"]
    return [end for end in ends if end]


def read(form: ModelFormat, text: str, prompt: str = "") -> WholeAnswer:
    reader = AnswerReader(form, TOOLS, prompt_end=prompt)
    reader.feed(text)
    return reader.end()


ATTEMPTS = 30
"""A text that is sampled at random may be too long."""


def sampled(
    vocabulary: Vocabulary, grammar: AnswerGrammar, form: ModelFormat, *, times: int, seed: int = 1
) -> list[str]:
    dice = random.Random(seed)
    texts: list[str] = []
    engine = engine_of(vocabulary, grammar)
    for _ in range(ATTEMPTS):
        text = engine.random_text(dice, 160, closers=closers_of(form))
        texts += [text] if text is not None else []
        if len(texts) == times:
            break
    return texts


@pytest.mark.parametrize("name", SOURCES)
def test_a_required_call_is_always_one_that_can_be_read_and_run(
    vocabulary: Vocabulary, name: str
) -> None:
    form = format_named(name)
    grammar = grammar_for(form, vocabulary, tool_choice="required")
    assert grammar is not None
    texts = sampled(vocabulary, grammar, form, times=examples(7))
    assert texts, "no call came to its end"
    for text in texts:
        answer = read(form, text)
        assert not answer.problems, text
        assert answer.tool_calls, text
        assert not answer.content, text


@pytest.mark.parametrize("name", SOURCES)
def test_a_named_tool_is_the_only_one_and_called_once_without_parallel_calls(
    vocabulary: Vocabulary, name: str
) -> None:
    form = format_named(name)
    grammar = grammar_for(
        form, vocabulary, tool_choice="function", tool_name="now", parallel_tool_calls=False
    )
    assert grammar is not None
    for text in sampled(vocabulary, grammar, form, times=1):
        assert [call.name for call in read(form, text).tool_calls] == ["now"]


def test_a_model_may_think_before_a_required_call_and_need_not(vocabulary: Vocabulary) -> None:
    form = format_named("hermes")
    grammar = grammar_for(
        form, vocabulary, tool_choice="required", opening=TokenClass.UNDETERMINABLE
    )
    assert grammar is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(call)
    assert engine.accepts(f"<think>\nLet me see: a < b, </thin\n</think>\n\n{call}")
    assert engine.accepts(f"<think></think>{call}\n{call}")
    assert not engine.accepts(f"<think>{call}")
    assert not engine.accepts("<think>a</think>It is late.")
    assert not engine.accepts("It is late.")
    assert not engine.accepts(call.replace("now", "later"))


def test_reasoning_that_the_prompt_left_open_has_to_end_before_the_call(
    vocabulary: Vocabulary,
) -> None:
    form = format_named("hermes")
    opening = TokenClass.REASONING
    grammar = grammar_for(form, vocabulary, tool_choice="required", opening=opening)
    assert grammar is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(f"Hm.</think>{call}")
    assert not engine.accepts(call)
    assert not engine.accepts("Hm.")


def test_a_form_for_the_answer_begins_after_the_reasoning(vocabulary: Vocabulary) -> None:
    form = format_named("hermes")
    schema = JsonSchemaGrammar('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = grammar_for(
        form,
        vocabulary,
        constraint=schema,
        tools=(),
        thinking=True,
        opening=TokenClass.UNDETERMINABLE,
    )
    assert grammar is not None
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts('<think>{"b"</think>\n\n{"a": 1}')
    assert engine.accepts('{"a": 1}')
    assert not engine.accepts("<think>what</think>ever")
    assert not engine.accepts('<think>{"a": 1}')
    without = grammar_for(
        form,
        vocabulary,
        constraint=schema,
        tools=(),
        thinking=False,
        opening=TokenClass.UNDETERMINABLE,
    )
    assert without is not None
    engine = engine_of(vocabulary, without)
    assert engine.accepts('{"a": 1}')
    assert not engine.accepts('<think></think>{"a": 1}')


def test_a_form_and_tools_leave_the_choice_between_an_answer_and_a_call(
    vocabulary: Vocabulary,
) -> None:
    form = format_named("hermes")
    schema = JsonSchemaGrammar('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    grammar = grammar_for(form, vocabulary, constraint=schema)
    assert grammar is not None
    assert not grammar.trigger_tokens
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts('{"a": 1}')
    assert engine.accepts('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not engine.accepts("Well, ")


def test_calls_that_need_not_be_made_wait_for_their_opener(vocabulary: Vocabulary) -> None:
    form = format_named("hermes")
    grammar = grammar_for(form, vocabulary)
    assert grammar is not None
    opener = vocabulary.tokenize("<tool_call>", add_special=False, parse_special=True)
    assert grammar.trigger_tokens == opener
    assert grammar.thoughts == Thoughts("<think>", "</think>", is_open=False)
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    coder = grammar_for(format_named("minimax-m2"), vocabulary)
    assert coder is not None
    assert coder.trigger_patterns == ["(<minimax:tool_call>)"]
    assert coder.thoughts is None, "a call ends its reasoning"
    assert grammar_for(format_named("llama-3"), vocabulary) is None
    assert grammar_for(form, vocabulary, tool_choice="none") is None


def test_a_strict_schema_that_no_grammar_says_is_refused_where_a_call_has_to_be_made(
    vocabulary: Vocabulary,
) -> None:
    form = format_named("hermes")
    parameters = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    pick = {"name": "pick", "parameters": parameters}
    strict = ({"type": "function", "function": {**pick, "strict": True}},)
    with pytest.raises(SchemaNotConvertibleError, match=r"'pick': \$\.a: uniqueItems"):
        grammar_for(form, vocabulary, tools=strict, tool_choice="required")
    tools = ({"type": "function", "function": pick},)
    required = grammar_for(form, vocabulary, tools=tools, tool_choice="required")
    for lenient in (grammar_for(form, vocabulary, tools=strict), required):
        assert lenient is not None
        engine = engine_of(vocabulary, lenient)
        call = '<tool_call>\n{"name": "pick", "arguments": {"a": [1, 1]}}\n</tool_call>'
        assert engine.accepts(call)
        assert not engine.accepts(call.replace("pick", "poke"))
        assert not engine.accepts(call.replace("[1, 1]", "1"))


def test_no_text_in_a_call_contains_what_ends_the_call(vocabulary: Vocabulary) -> None:
    form = format_named("hermes")
    grammar = grammar_for(form, vocabulary, tool_choice="required")
    assert grammar is not None
    call = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s", "days": 1}}\n</tool_call>'
    )
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(call % "a </tool_cal b")
    assert not engine.accepts(call % r"\u003c/tool_call>")
    assert not engine.accepts(call % "a </tool_call> b")


@pytest.mark.parametrize(
    ("family", "prompt", "before", "thought"),
    [
        (
            "gpt-oss",
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
        ),
        (
            "muse",
            "<|start|>assistant",
            " to=user<|message|>",
            " to=self<|message|>hm<|eom|><|start|>assistant",
        ),
        (
            "solar-open",
            "<|begin|>assistant",
            "<|content|>",
            "<|think|>hm<|end|><|begin|>assistant",
        ),
        ("functionary-v3.2", ">>>", "all\n", ""),
        (
            "command-r7b",
            "<|CHATBOT_TOKEN|>",
            "<|START_RESPONSE|>",
            "<|START_THINKING|>hm<|END_THINKING|>",
        ),
        ("kimi-k3", "<|open|>response<|sep|>", "", ""),
        ("hyperclova", "<|im_start|>assistant", "\n", ""),  # its thought ends as our turns do
    ],
)
def test_an_answer_of_a_given_form_begins_as_its_family_begins_one(
    vocabulary: Vocabulary, family: str, prompt: str, before: str, thought: str
) -> None:
    form = format_named(family)
    automaton = Automaton(form.rules)
    automaton.begin_with(prompt)
    constraint = JsonSchemaGrammar('{"const": 7}')
    grammar = grammar_for(
        form,
        vocabulary,
        constraint=constraint,
        opening=automaton.current,
        prompt=prompt,
        tools=(),
        thinking=True,
    )
    assert grammar is not None
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(f"{before}7")
    assert not before or not engine.accepts("7")
    assert engine.accepts(f"{thought}{before}7")
    reader = AnswerReader(form, prompt_end=prompt)
    reader.feed(f"{thought}{before}7")
    answer = reader.end()
    assert (answer.content, answer.reasoning) == ("7", "hm" if thought else "")


def test_gpt_oss_goes_on_where_its_prompt_ends(vocabulary: Vocabulary) -> None:
    form = format_named("gpt-oss")
    grammar = grammar_for(
        form,
        vocabulary,
        tool_choice="required",
        opening=TokenClass.UNDETERMINABLE,
        prompt="<|start|>assistant",
    )
    assert grammar is not None
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(call)
    assert engine.accepts(f"<|channel|>analysis<|message|>Time?<|end|><|start|>assistant{call}")


@pytest.mark.parametrize("name", ["hermes", "gpt-oss", "qwen-coder"])
def test_a_hundred_tools_that_ask_for_the_same_texts_fit_one_grammar(
    vocabulary: Vocabulary, name: str
) -> None:
    formats = ("date-time", "email", "uri", "uuid")
    properties = {
        **{kind: {"type": "string", "format": kind} for kind in formats},
        "slug": {"type": "string", "maxLength": 20},
    }
    parameters = {"type": "object", "properties": properties, "required": ["email"]}
    tools = tuple(
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}
        for number in range(100)
    )
    grammar = grammar_for(format_named(name), vocabulary, tools=tools, tool_choice="required")
    assert grammar is not None


@pytest.mark.parametrize(
    "texts",
    [{"maxLength": 160}, {"pattern": r"^[a-z0-9]+(?:-[a-z0-9]+)*$", "maxLength": 64}],
    ids=["length", "pattern and length"],
)
def test_a_text_of_an_ordinary_length_fits_a_call(
    vocabulary: Vocabulary, texts: dict[str, object]
) -> None:
    form = format_named("hermes")
    parameters = {
        "type": "object",
        "properties": {"q": {"type": "string", **texts}, "s": {"type": "string", "minLength": 2}},
    }
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    grammar = grammar_for(form, vocabulary, tools=(tool,), tool_choice="required")
    assert grammar is not None
    call = '<tool_call>\n{"name": "find", "arguments": {"q": "%s"}}\n</tool_call>'
    engine = engine_of(vocabulary, grammar)
    assert engine.accepts(call % "a-b")
    assert not engine.accepts(call % ("a" * 161))
