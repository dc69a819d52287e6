# ruff: noqa: RUF001 - markers as their families write them
"""The model families that are known: one table, one entry for each way of writing.

To add a family, add one entry to :data:`FAMILIES`:

1. its mentions: texts that all of its chat templates have in common and that no entry above asks
   for. The first entry that matches counts, so one that asks for more texts stands further up;
2. the fields of its :class:`~paddler_trio.language.answers.model_format.ModelFormat`, whose
   ``calls`` name a syntax of ``call_syntax``: the reader, the markers and the grammar of its calls
   follow from that. The first :data:`REASONING_MARKS` that the template mentions mark its
   reasoning, unless the entry has marks of its own. Where the format depends on more of the
   template, it is a function of the template's source.

Only a call in an unknown syntax needs more: a kind of syntax and its reader. A case in
``tests/unit/language/answers/answer_cases.py`` proves an entry; a template that no entry matches
is probed instead (``format_detection``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

from paddler_trio.language.answers.automaton import Goal, Marker, TokenClass
from paddler_trio.language.answers.call_syntax import (
    ATEM,
    DEEPSEEK_FENCED,
    DEEPSEEK_V3_1,
    DSML,
    FUNCTION_JSON,
    GCML,
    GLM,
    HERMES,
    INVOKE,
    KIMI_K2,
    KIMI_K3,
    MINIMAX_M3,
    MISTRAL_WITH_ID,
    PARAM,
    QWEN_CODER,
    SOLAR,
    STEP_ML,
    CallSyntax,
    JsonCalls,
    NamedJson,
    PythonCalls,
    QuotedObjects,
    TaggedCalls,
    argument_tags,
)
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat

_CONTENT, _REASONING = TokenClass.CONTENT, TokenClass.REASONING
_CALL, _UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE

REASONING_MARKS = (
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
"""What begins and ends reasoning, by what a template mentions."""


@attrs.frozen(kw_only=True)
class Family:
    """A template is of this family if it has all of ``mentions`` and nothing of ``lacks``."""

    mentions: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    format: ModelFormat | Callable[[str], ModelFormat]

    def matches(self, source: str) -> bool:
        """Return whether a template's source, without its comments, is of this family."""
        return all(text in source for text in self.mentions) and not any(
            text in source for text in self.lacks
        )

    def format_of(self, source: str) -> ModelFormat:
        """Return how the model behind a template that matches writes."""
        return self.format if isinstance(self.format, ModelFormat) else self.format(source)


def _family(mentions: tuple[str, ...], *, lacks: tuple[str, ...] = (), **format_: Any) -> Family:
    """An entry whose format is a :class:`ModelFormat` with these fields."""
    return Family(mentions=mentions, lacks=lacks, format=ModelFormat(**format_))


# ------------------------------------------------------------ what several entries have in common


def _in_every_class(*markers: Marker) -> tuple[tuple[TokenClass, Marker], ...]:
    return tuple((kind, marker) for kind in TokenClass for marker in markers)


def _begins_call(text: str) -> Marker:
    """``text``, which belongs to the call, begins a section of calls by itself."""
    return Marker(text, _CALL, kept=len(text))


def _between_tags(
    tag: str, syntax: CallSyntax, *, one_a_section: bool = False, between: str = ""
) -> CallFormat:
    """Calls between ``<tag>`` and ``</tag>``."""
    return CallFormat(f"<{tag}>", syntax, f"</{tag}>", one_a_section=one_a_section, between=between)


_LIST = JsonCalls(in_list=True, before="[", after="]")
_FUNCTIONS_LIST = Marker("functools[", _CALL, kept=1)
_END_OF_FUNCTION = (
    (_CALL, Marker("</function>", _CONTENT, closes_inside=True, spares_values=True)),
)
_RECIPIENT = re.compile(r"\bto=([^\s<|]+)")


# ----------------------------------------------------- headers: recipients and channels of messages


_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _harmony_goal(header: str) -> Goal | None:
    """Return where ``<|start|>assistant to=... <|channel|>...`` leads."""
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient[1] != "assistant":
        return Goal(_CALL, recipient[1].removeprefix("functions."))
    channels = _CHANNEL.findall(header)
    return Goal(_REASONING if channels and channels[-1] == "analysis" else _CONTENT)


_HARMONY_CHANNEL = Marker(
    "<|channel|>",
    _CONTENT,
    until="<|message|>",
    read_header=lambda header: _harmony_goal(f"<|channel|>{header}"),
)


def _muse_goal(header: str) -> Goal | None:
    recipient = _RECIPIENT.search(header)
    if recipient is None or recipient[1] == "user":
        return Goal(_CONTENT)
    # The tool is named again inside the call.
    return Goal(_REASONING if recipient[1] == "self" else _CALL)


_HYPERCLOVA_GOALS = {
    "": Goal(_CONTENT),
    "/think": Goal(_REASONING),
    "-> tool/function_call": Goal(_CALL),
}
_FUNCTIONARY_NAME = re.compile(r"[\w.-]{1,64}")


def _functionary_goal(header: str) -> Goal | None:
    if _FUNCTIONARY_NAME.fullmatch(header) is None:
        return None
    return Goal(_CONTENT) if header == "all" else Goal(_CALL, header)


_FUNCTIONARY_3_2 = ModelFormat(
    name="functionary-v3.2",
    content_open="all\n",
    more_markers=tuple(
        (kind, Marker(">>>", _CONTENT, until="\n", read_header=_functionary_goal))
        for kind in (_UNDETERMINABLE, _CONTENT, _CALL)
    ),
    calls=CallFormat(
        ">>>",
        NamedJson(header_names=True),
        after_header_name="\n",
        in_header=True,
        one_a_section=True,
    ),
)

# ------------------------------------------------------------------------ variants of one family


def _dsml(section: str) -> ModelFormat:
    return ModelFormat(
        name="deepseek-dsml",
        calls=_between_tags(f"｜DSML｜{section}", DSML),
        other_openers=(_begins_call(DSML.before_name),),
    )


def _deepseek(name: str, syntax: NamedJson, between: str) -> ModelFormat:
    return ModelFormat(
        name=name,
        calls=CallFormat("<｜tool▁calls▁begin｜>", syntax, "<｜tool▁calls▁end｜>", between=between),
        other_openers=(
            Marker("<｜tool_calls_begin｜>", _CALL),
            _begins_call("<｜tool▁call▁begin｜>"),
        ),
        more_markers=((_CALL, Marker("<｜tool_calls_end｜>", _CONTENT)),),
    )


def _hunyuan(source: str) -> ModelFormat:
    """Hunyuan 3 and 4: tags like GLM's that all end with a suffix, such as ``:opensource``."""
    separates = "<tool_sep" in source  # a tag stands behind the name
    suffix = re.search(r"HYTK\s*=\s*['\"]([^'\"]*)['\"]", source)
    end = suffix[1] if suffix is not None else ""
    return ModelFormat(
        name="hunyuan-3" if separates else "hunyuan-4",
        reasoning_open=f"<think{end}>",
        reasoning_close=f"</think{end}>",
        calls=_between_tags(
            f"tool_calls{end}",
            argument_tags(
                suffix=end,
                before_name=f"<tool_call{end}>",
                name_end=f"<tool_sep{end}>" if separates else "",
                call_end=f"</tool_call{end}>",
            ),
            between="\n",
        ),
        content_marks=(f"<｜hy_eos{end}｜>",),
    )


def _mistral(syntax: JsonCalls | NamedJson) -> ModelFormat:
    return ModelFormat(
        name="mistral",
        calls=CallFormat(
            "[TOOL_CALLS]", syntax, one_a_section=isinstance(syntax, NamedJson), id_chars=9
        ),
        calls_end_reasoning=False,
    )


_COHERE = JsonCalls(
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    id_comes_first=True,
    in_list=True,
    before="[\n    ",
    after="\n]",
)


def _command_r7b(content_open: str) -> ModelFormat:
    return ModelFormat(
        name="command-r7b",
        reasoning_open="<|START_THINKING|>",
        reasoning_close="<|END_THINKING|>",
        content_open=content_open,
        calls=CallFormat("<|START_ACTION|>", _COHERE, "<|END_ACTION|>", between=",\n"),
        content_marks=(
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
            "<|CHATBOT_TOKEN|>",
        ),
        more_markers=(
            (_REASONING, Marker("<|START_RESPONSE|>", _CONTENT)),
            (_REASONING, Marker("<|START_TEXT|>", _CONTENT)),
        ),
    )


_LFM2 = ModelFormat(
    name="lfm2",
    calls=CallFormat("<|tool_call_start|>", PythonCalls(), "<|tool_call_end|>", between=", "),
    calls_end_reasoning=False,
)


def _internlm(opener: str, other: str) -> ModelFormat:
    return ModelFormat(
        name="internlm",
        calls=CallFormat(
            opener,
            JsonCalls(arguments_key="parameters", before="\n"),
            "<|action_end|>",
            one_a_section=True,
        ),
        other_openers=(Marker(other, _CALL),),
    )


def _tool_calls_tag(source: str) -> ModelFormat:
    is_lines = "<tool_calls>[" not in source and "<tool_calls>\\n" in source
    form = ModelFormat(
        name="tool-calls-tag",
        calls=_between_tags(
            "tool_calls",
            JsonCalls(before="\n", after="\n") if is_lines else _LIST,
            between="" if is_lines else ", ",
        ),
        content_marks=("<answer>", "</answer>") if "<answer>" in source else (),
    )
    if "[BEGIN FINAL RESPONSE]" in source:
        return attrs.evolve(
            form,
            name="apriel",
            reasoning_open="Here are my reasoning steps:\n",
            reasoning_close="[BEGIN FINAL RESPONSE]",
            content_marks=("[END FINAL RESPONSE]",),
            calls_end_reasoning=False,
        )
    if "<beginning_of_sentence>" in source:  # MiniMax M1, whose template mentions no reasoning
        return attrs.evolve(
            form, reasoning_open="<think>", reasoning_close="</think>", calls_end_reasoning=False
        )
    return form


_HERMES = ModelFormat(
    name="hermes",
    calls=_between_tags("tool_call", HERMES, one_a_section=True, between="\n"),
    calls_end_reasoning=False,
)

# --------------------------------------------------------------------------------- the table


FAMILIES: tuple[Family, ...] = (
    _family(
        ("<atem:function_calls>", "<|message|>"),
        name="muse",
        reasoning_open="<|start|>assistant to=self<|message|>",
        reasoning_close="<|eom|>",
        turn_open="<|start|>assistant",
        content_open=" to=user<|message|>",
        more_markers=_in_every_class(
            Marker("<|start|>", _CONTENT, until="<|message|>", read_header=_muse_goal),
            Marker("<|eom|>", _CONTENT),
            Marker("<|eot|>", _CONTENT),
        ),
        calls=CallFormat(
            "<|start|>assistant to=",
            ATEM,
            "</atem:function_calls>",
            after_header_name="<|message|><atem:function_calls>\n",
            in_header=True,
            one_a_section=True,
            between="<|eom|>",
        ),
    ),
    _family(
        ("<|channel|>", "<|message|>", "<|start|>"),
        name="gpt-oss",
        calls=CallFormat(
            "<|start|>assistant<|channel|>commentary to=functions.",
            NamedJson(header_names=True),
            "<|call|>",
            after_header_name=" <|constrain|>json<|message|>",
            in_header=True,
            one_a_section=True,
        ),
        reasoning_open="<|channel|>analysis<|message|>",
        reasoning_close="<|end|>",
        turn_open="<|start|>assistant",
        content_open="<|channel|>final<|message|>",
        more_markers=(
            *_in_every_class(
                Marker("<|start|>", _CONTENT, until="<|message|>", read_header=_harmony_goal),
                _HARMONY_CHANNEL,
                Marker("<|end|>", _CONTENT),
                Marker("<|return|>", _CONTENT),
                Marker("<|call|>", _CONTENT),
            ),
            # Between messages the model forgets <|start|>, or repeats the next channel's name.
            *(
                (_CONTENT, attrs.evolve(_HARMONY_CHANNEL, text=f"{stray}<|channel|>"))
                for stray in ("assistant", "analysis", "commentary")
            ),
        ),
    ),
    _family(
        ("<|open|>", "<|close|>", "<|sep|>"),
        name="kimi-k3",
        reasoning_open="<|open|>think<|sep|>",
        reasoning_close="<|close|>think<|sep|>",
        content_open="<|open|>response<|sep|>",
        calls=CallFormat("<|open|>tools<|sep|>", KIMI_K3, "<|close|>tools<|sep|>"),
        content_marks=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        more_markers=((_REASONING, Marker("<|open|>response<|sep|>", _CONTENT)),),
    ),
    _family(
        ("<|tool_call:begin|>", "<|tool_calls|>"),
        name="solar-open",
        reasoning_open="<|think|>",
        reasoning_close="<|end|>",
        turn_open="<|begin|>assistant",
        content_open="<|content|>",
        calls=CallFormat("<|tool_calls|>", SOLAR, "<|calls|>"),
        content_marks=("<|begin|>assistant", "<|content|>", "<|end|>"),
        more_markers=(
            (_REASONING, Marker("<|content|>", _CONTENT)),
            (_UNDETERMINABLE, Marker("<|end|>", _CONTENT)),
            (_REASONING, Marker("<|end|>", _CONTENT)),
            (_CALL, Marker("<|end|>", _CONTENT)),
        ),
    ),
    _family(
        ("<|tool_call:start|>", "<|tool_arg:value|>"),
        name="solar-open-2",
        calls=CallFormat(
            "<|tool_call:start|>",
            TaggedCalls(
                before_name="<|tool_call:start|>",
                name_end="\n",
                before_key="<|tool_arg:start|>",
                key_end="<|tool_arg:value|>",
                value_end="<|tool_arg:end|>",
                call_end="<|tool_call:end|>",
            ),
            kept=len("<|tool_call:start|>"),
            one_a_section=True,
            between="\n",
        ),
        # A close token behind a call that ended the reasoning is a token, never a text.
        content_marks=("<|think:end|>",),
    ),
    _family(
        ("<|plamo:begin_tool_requests:plamo|>",),
        name="plamo-3",
        calls=CallFormat(
            "<|plamo:begin_tool_requests:plamo|>",
            NamedJson(
                before_name="<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
                after_name="<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
                "<|plamo:constrain|>json<|plamo:msg|>",
                after_arguments="<|plamo:end_tool_arguments:plamo|>"
                "<|plamo:end_tool_request:plamo|>",
            ),
            "<|plamo:end_tool_requests:plamo|>",
        ),
    ),
    _family(
        ("assistant/think", "-> tool/function_call"),
        name="hyperclova",
        calls=CallFormat(
            "<|im_start|>assistant -> tool/function_call\n", _LIST, "<|im_end|>", between=", "
        ),
        reasoning_open="<|im_start|>assistant/think\n",
        reasoning_close="<|im_end|>",
        turn_open="\n<|im_start|>assistant",
        content_open="\n",
        more_markers=_in_every_class(
            Marker(
                "<|im_start|>assistant",
                _CONTENT,
                until="\n",
                read_header=lambda header: _HYPERCLOVA_GOALS.get(header.strip()),
            ),
            Marker("<|im_end|>", _CONTENT),
            Marker("<|endofturn|>", _CONTENT),
            Marker("<|stop|>", _CONTENT),
        ),
    ),
    Family(mentions=(">>>all", "<|start_header_id|>"), format=_FUNCTIONARY_3_2),
    Family(mentions=(">>>${recipient}",), format=_FUNCTIONARY_3_2),
    _family(
        ("]<]minimax[>[",),
        name="minimax-m3",
        calls=CallFormat(
            "]<]minimax[>[<tool_call>", MINIMAX_M3, "]<]minimax[>[</tool_call>", between="\n"
        ),
    ),
    _family(
        ("<minimax:tool_call>",),
        name="minimax-m2",
        calls=_between_tags("minimax:tool_call", INVOKE),
    ),
    Family(mentions=("｜DSML｜", "function_calls"), format=_dsml("function_calls")),
    Family(mentions=("｜DSML｜",), format=_dsml("tool_calls")),
    _family(
        ("｜GCML｜",),
        name="gigachat-3.5",
        calls=_between_tags("｜GCML｜tool_calls", GCML),
        other_openers=(_begins_call(GCML.before_name),),
    ),
    _family(
        ("<dots_function_call>",), name="dots", calls=_between_tags("dots_function_call", INVOKE)
    ),
    _family(
        ("<ifm|tool_call>",),
        name="k2-horizon",
        reasoning_open="<ifm|think>",
        reasoning_close="</ifm|think>",
        calls=_between_tags(
            "ifm|tool_calls",
            argument_tags("ifm|", before_name="<ifm|tool_call>", call_end="</ifm|tool_call>"),
            between="\n",
        ),
        other_openers=(_begins_call("<ifm|tool_call>"),),
        more_markers=tuple(
            (kind, marker)
            for effort in ("think_fast", "think_faster")
            for kind, marker in (
                (_UNDETERMINABLE, Marker(f"<ifm|{effort}>", _REASONING)),
                (_UNDETERMINABLE, Marker(f"</ifm|{effort}>", _CONTENT, text_was=_REASONING)),
                (_CONTENT, Marker(f"<ifm|{effort}>", _REASONING)),
                (_REASONING, Marker(f"</ifm|{effort}>", _CONTENT)),
            )
        ),
    ),
    _family(
        ("<iquestcoder_tool_call>",),
        name="iquest-coder-2",
        calls=_between_tags("iquestcoder_tool_call", GLM, one_a_section=True, between="\n"),
    ),
    Family(
        mentions=("<｜tool▁call▁begin｜>", "```json"),
        format=_deepseek("deepseek-r1", DEEPSEEK_FENCED, "\n"),
    ),
    Family(
        mentions=("<｜tool▁call▁begin｜>",), format=_deepseek("deepseek-v3.1", DEEPSEEK_V3_1, "")
    ),
    _family(
        ("<steptml:invoke",),
        name="step-3",
        calls=CallFormat("<｜tool_calls_begin｜>", STEP_ML, "<｜tool_calls_end｜>"),
    ),
    _family(
        ("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
        name="kimi-k2",
        calls=CallFormat("<|tool_calls_section_begin|>", KIMI_K2, "<|tool_calls_section_end|>"),
        other_openers=(_begins_call("<|tool_call_begin|>"),),
    ),
    Family(mentions=("<tool_sep", "<arg_key"), format=_hunyuan),
    Family(mentions=("<tool_calls", "<arg_key"), format=_hunyuan),
    Family(mentions=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), format=_mistral(MISTRAL_WITH_ID)),
    Family(mentions=("[TOOL_CALLS]", "[ARGS]"), format=_mistral(NamedJson(after_name="[ARGS]"))),
    Family(mentions=("[TOOL_CALLS]",), format=_mistral(attrs.evolve(_LIST, id_key="id"))),
    Family(
        mentions=("<|START_ACTION|>", "<|START_RESPONSE|>"),
        format=_command_r7b("<|START_RESPONSE|>"),
    ),
    Family(mentions=("<|START_ACTION|>", "<|START_TEXT|>"), format=_command_r7b("<|START_TEXT|>")),
    Family(mentions=("<|START_ACTION|>",), format=_command_r7b("")),
    _family(
        ("Action:", "```json", "<|CHATBOT_TOKEN|>"),
        name="command-r",
        calls=CallFormat(
            "Action:\n```json\n", attrs.evolve(_COHERE, id_key=None), "```", between=",\n"
        ),
        content_marks=("<|CHATBOT_TOKEN|>",),
    ),
    _family(
        ("<|tool_call>", "<tool_call|>"),
        name="gemma-4",
        reasoning_open="<|channel>thought",
        reasoning_close="<channel|>",
        calls=CallFormat(
            "<|tool_call>", QuotedObjects(), "<tool_call|>", one_a_section=True, may_be_bare=True
        ),
        # A stray close token is a token, never a character that the model meant to write.
        content_marks=("<channel|>", "<|channel>final", "<|tool_response>"),
        more_markers=tuple(
            (kind, Marker("<|channel><|channel>thought", _REASONING))
            for kind in (_UNDETERMINABLE, _CONTENT)
        ),
    ),
    _family(
        ("<seed:",),
        name="seed-oss",
        reasoning_open="<seed:think>",
        reasoning_close="</seed:think>",
        calls_end_reasoning=False,
        calls=_between_tags(
            "seed:tool_call",
            attrs.evolve(QWEN_CODER, value_blank=""),
            one_a_section=True,
            between="\n",
        ),
    ),
    Family(mentions=("<|tool_call_start|>",), format=_LFM2),
    Family(mentions=("<|tool_list_start|>",), format=_LFM2),
    Family(mentions=("List of tools: [", "keep_past_thinking"), format=_LFM2),
    _family(
        ("<|tools_prefix|>",),
        name="apertus",
        calls=CallFormat(
            "<|tools_prefix|>",
            attrs.evolve(_LIST, name_is_key=True),
            "<|tools_suffix|>",
            between=", ",
        ),
        # Its calls stand inside the inner block, which may be closed behind them.
        content_marks=("<|inner_suffix|>",),
    ),
    _family(("<TOOLCALL>",), name="nemotron", calls=_between_tags("TOOLCALL", _LIST, between=", ")),
    _family(
        ("<|tool|>", "<|/tool|>"),
        name="phi-4-mini",
        calls=CallFormat("<|tool_call|>", _LIST, "<|/tool_call|>", between=", "),
        other_openers=(_FUNCTIONS_LIST,),
    ),
    _family(
        ("<|tool_call|>",),
        name="granite-3",
        calls=CallFormat("<|tool_call|>", _LIST, between=", "),
        other_openers=(Marker("<tool_call>", _CALL),),
        content_marks=("<response>", "</response>"),
    ),
    _family(
        ("functools[",),
        name="firefunction",
        calls=CallFormat(" functools[", _LIST, kept=1, between=", "),
        other_openers=(_FUNCTIONS_LIST,),
    ),
    _family(
        ("<function=", "<|python_tag|>"),
        lacks=("<parameter=",),
        name="functionary-v3.1",
        calls=CallFormat(
            "<function=",
            attrs.evolve(FUNCTION_JSON, code_tool="python"),
            kept=len("<function="),
            one_a_section=True,
        ),
        other_openers=(Marker("<|python_tag|>", _CALL),),
        more_markers=_END_OF_FUNCTION,
    ),
    _family(
        ("<|python_start|>",),
        name="llama-4",
        calls=CallFormat(
            "<|python_start|>", PythonCalls(), "<|python_end|>", between=", ", may_be_bare=True
        ),
    ),
    _family(
        ("<start_function_call>",),
        name="functiongemma",
        calls=CallFormat(
            "<start_function_call>",
            QuotedObjects(quote="<escape>"),
            "<end_function_call>",
            one_a_section=True,
            may_be_bare=True,
        ),
    ),
    _family(
        ("<longcat_arg_key>",),
        name="longcat",
        calls=_between_tags(
            "longcat_tool_call",
            argument_tags("longcat_"),
            one_a_section=True,
            between="\n",
        ),
    ),
    _family(
        ("<|start_header_id|>", '"parameters": '),
        name="llama-3",
        calls=CallFormat(
            "", JsonCalls(arguments_key="parameters", code_tool="ipython"), between="; "
        ),
        other_openers=(Marker("<|python_tag|>", _CALL),),
        content_marks=("<|eom_id|>",),
        more_markers=((_CALL, Marker("<|eom_id|>", _CONTENT)),),
    ),
    _family(
        ("<|function_call|>", "<|role_sep|>"),
        name="gigachat-3.1",
        calls=CallFormat("<|function_call|>", JsonCalls()),
    ),
    _family(
        ("function call", "<|role_sep|>", "<|message_sep|>"),
        name="gigachat-3",
        calls=CallFormat("<|message_sep|>\n\nfunction call<|role_sep|>\n", JsonCalls()),
    ),
    _family(
        ('<function name="', '<param name="'),
        name="minicpm",
        calls=CallFormat(
            '<function name="',
            PARAM,
            kept=len('<function name="'),
            one_a_section=True,
            between="\n",
        ),
        more_markers=_END_OF_FUNCTION,
    ),
    _family(
        ("<arg_key>", "<tool_call>"),
        name="glm",
        calls=_between_tags("tool_call", GLM, one_a_section=True, between="\n"),
    ),
    _family(
        ("<parameter=", "<tool_call>"),
        name="qwen-coder",
        calls=_between_tags("tool_call", QWEN_CODER, one_a_section=True, between="\n"),
        other_openers=(_begins_call("<function="),),
    ),
    Family(
        mentions=("<|action_start|> <|plugin|>",),
        format=_internlm("<|action_start|> <|plugin|>", "<|action_start|><|plugin|>"),
    ),
    Family(
        mentions=("<|action_start|>", "<|plugin|>"),
        format=_internlm("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
    ),
    _family(
        ("<|function_call_library|>", "<function_call>"),
        name="granite-20b-fc",
        calls=CallFormat(
            "<function_call>", JsonCalls(before=" "), one_a_section=True, between="\n"
        ),
    ),
    _family(
        ("<function_calls>", "</function_calls>"),
        name="olmo-3",
        calls=_between_tags("function_calls", PythonCalls(in_list=False), between="\n"),
    ),
    Family(mentions=("<tool_calls>",), format=_tool_calls_tag),
    Family(
        mentions=("<tool_call>", "</response>"),
        format=attrs.evolve(_HERMES, content_marks=("<response>", "</response>")),
    ),
    Family(mentions=("<tool_call>",), format=_HERMES),
)
