"""The ways of writing of the model families we know, and how to tell them by their templates.

The table is in the order of recognition: a template may mention several of these texts, so the
more telling ones come first. Where a family has reasoning of its own it is named here; everywhere
else the reasoning markers are those that the template mentions.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from paddler_trio.language.answers import header_families as headers
from paddler_trio.language.answers import marker_families as marked
from paddler_trio.language.answers.automaton import Marker
from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.pieces import TokenClass
from paddler_trio.language.answers.plain_families import PLAIN_CALLS

_CALL = TokenClass.TOOL_CALL
_REASONING_MARKS = (
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<thought>", "</thought>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("Here is my thought process:", "Here is my response:"),
)


def _of(
    name: str,
    *,
    calls_end_reasoning: bool = True,
    content_marks: tuple[str, ...] = (),
    other_openers: tuple[Marker, ...] = (),
) -> Callable[[str], ModelFormat]:
    form = ModelFormat(
        name=name,
        calls=PLAIN_CALLS[name],
        calls_end_reasoning=calls_end_reasoning,
        content_marks=content_marks,
        other_openers=other_openers,
    )
    return lambda _source: form


def _mentions(*texts: str) -> Callable[[str], bool]:
    return lambda source: all(text in source for text in texts)


_FAMILIES: tuple[tuple[Callable[[str], bool], Callable[[str], ModelFormat]], ...] = (
    (_mentions("<atem:function_calls>", "<|message|>"), lambda _: headers.muse()),
    (_mentions("<|channel|>", "<|message|>", "<|start|>"), lambda _: headers.harmony()),
    (_mentions("<|open|>", "<|close|>", "<|sep|>"), lambda _: marked.kimi_k3()),
    (_mentions("<|tool_call:begin|>", "<|tool_calls|>"), lambda _: marked.solar()),
    (
        _mentions("<|tool_call:start|>", "<|tool_arg:value|>"),
        # A close token behind a call that ended the thoughts is a token, never a text.
        _of("solar-open-2", content_marks=("<|think:end|>",)),
    ),
    (_mentions("<|plamo:begin_tool_requests:plamo|>"), _of("plamo-3")),
    (_mentions("assistant/think", "-> tool/function_call"), lambda _: headers.hyperclova()),
    (_mentions(">>>all", "<|start_header_id|>"), lambda _: headers.functionary_3_2()),
    (_mentions(">>>${recipient}"), lambda _: headers.functionary_3_2()),
    (_mentions("]<]minimax[>["), _of("minimax-m3")),
    (_mentions("<minimax:tool_call>"), _of("minimax-m2")),
    (
        lambda source: "｜DSML｜" in source and "function_calls" in source,  # noqa: RUF001
        lambda _: marked.dsml("function_calls"),
    ),
    (_mentions("｜DSML｜"), lambda _: marked.dsml("tool_calls")),  # noqa: RUF001
    (_mentions("｜GCML｜"), lambda _: marked.gigachat_3_5()),  # noqa: RUF001
    (_mentions("<dots_function_call>"), _of("dots")),
    (_mentions("<ifm|tool_call>"), lambda _: marked.k2_horizon()),
    (_mentions("<iquestcoder_tool_call>"), _of("iquest-coder-2")),
    (
        _mentions("<｜tool▁call▁begin｜>"),  # noqa: RUF001
        lambda source: marked.deepseek(fenced="```json" in source),
    ),
    (_mentions("<steptml:invoke"), _of("step-3")),
    (_mentions("<|tool_call_begin|>", "<|tool_call_argument_begin|>"), lambda _: marked.kimi_k2()),
    (_mentions("<tool_sep", "<arg_key"), marked.hunyuan),
    (_mentions("<tool_calls", "<arg_key"), marked.hunyuan),
    (_mentions("[TOOL_CALLS]"), marked.mistral),
    (_mentions("<|START_ACTION|>"), marked.cohere),
    (
        _mentions("Action:", "```json", "<|CHATBOT_TOKEN|>"),
        _of("command-r", content_marks=("<|CHATBOT_TOKEN|>",)),
    ),
    (_mentions("<|tool_call>", "<tool_call|>"), lambda _: marked.gemma_4()),
    (_mentions("<seed:"), lambda _: marked.seed()),
    (_mentions("<|tool_call_start|>"), _of("lfm2", calls_end_reasoning=False)),
    (_mentions("<|tool_list_start|>"), _of("lfm2", calls_end_reasoning=False)),
    (_mentions("List of tools: [", "keep_past_thinking"), _of("lfm2", calls_end_reasoning=False)),
    # Its calls stand inside the inner block, which may be closed behind them.
    (_mentions("<|tools_prefix|>"), _of("apertus", content_marks=("<|inner_suffix|>",))),
    (_mentions("<TOOLCALL>"), _of("nemotron")),
    (
        _mentions("<|tool|>", "<|/tool|>"),
        _of("phi-4-mini", other_openers=(Marker("functools[", _CALL, kept=1),)),
    ),
    (_mentions("<|tool_call|>"), lambda _: marked.granite_3()),
    (
        _mentions("functools["),
        _of("firefunction", other_openers=(Marker("functools[", _CALL, kept=1),)),
    ),
    (
        lambda source: (
            "<function=" in source and "<parameter=" not in source and "<|python_tag|>" in source
        ),
        lambda _: marked.functionary_3_1(),
    ),
    (_mentions("<|python_start|>"), _of("llama-4")),
    (_mentions("<start_function_call>"), _of("functiongemma")),
    (_mentions("<longcat_arg_key>"), _of("longcat")),
    (_mentions("<|start_header_id|>", '"parameters": '), lambda _: marked.llama_3()),
    (_mentions("<|function_call|>", "<|role_sep|>"), _of("gigachat-3.1")),
    (_mentions("function call", "<|role_sep|>", "<|message_sep|>"), _of("gigachat-3")),
    (_mentions('<function name="', '<param name="'), lambda _: marked.minicpm()),
    (_mentions("<arg_key>", "<tool_call>"), _of("glm")),
    (_mentions("<parameter=", "<tool_call>"), lambda _: marked.qwen_coder()),
    (_mentions("<|action_start|>", "<|plugin|>"), marked.internlm),
    (_mentions("<|function_call_library|>", "<function_call>"), _of("granite-20b-fc")),
    (_mentions("<function_calls>", "</function_calls>"), _of("olmo-3")),
    (_mentions("<tool_calls>"), marked.tool_calls_tag),
    (_mentions("<tool_call>"), marked.hermes),
)
_JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def known_format(template_source: str) -> ModelFormat | None:
    """The format of the family whose tool calls the template mentions; None if we know none.

    Comments do not count. The reasoning markers are the family's, or those the template mentions.
    """
    source = _JINJA_COMMENT.sub("", template_source)
    for is_family, make in _FAMILIES:
        if is_family(source):
            return with_reasoning(make(source), source)
    return None


def with_reasoning(form: ModelFormat, template_source: str) -> ModelFormat:
    """The format with the reasoning markers that the template mentions, if it has none yet."""
    if form.reasoning_close is not None:
        return form
    source = _JINJA_COMMENT.sub("", template_source)
    for opening, closing in _REASONING_MARKS:
        if opening in source or closing in source:
            return attrs.evolve(form, reasoning_open=opening, reasoning_close=closing)
    return form
