"""Families of which there is nothing to say but how their sections of calls look."""

from __future__ import annotations

import attrs

from paddler_trio.language.answers import call_syntax as known
from paddler_trio.language.answers.call_syntax import JsonCalls, PythonCalls, QuotedObjects
from paddler_trio.language.answers.model_format import CallFormat

_LIST = JsonCalls(in_list=True, before="[", after="]")

PLAIN_CALLS = {
    "apertus": CallFormat(
        opener="<|tools_prefix|>",
        closer="<|tools_suffix|>",
        syntax=JsonCalls(name_is_key=True, in_list=True, before="[", after="]"),
        between=", ",
    ),
    "nemotron": CallFormat(opener="<TOOLCALL>", closer="</TOOLCALL>", syntax=_LIST, between=", "),
    "phi-4-mini": CallFormat(
        opener="<|tool_call|>", closer="<|/tool_call|>", syntax=_LIST, between=", "
    ),
    "firefunction": CallFormat(opener=" functools[", kept=1, syntax=_LIST, between=", "),
    "command-r": CallFormat(
        opener="Action:\n```json\n",
        closer="```",
        syntax=attrs.evolve(known.COHERE, id_key=None),
        between=",\n",
    ),
    "gigachat-3": CallFormat(
        opener="<|message_sep|>\n\nfunction call<|role_sep|>\n", syntax=JsonCalls()
    ),
    "gigachat-3.1": CallFormat(opener="<|function_call|>", syntax=JsonCalls()),
    "minimax-m2": CallFormat(
        opener="<minimax:tool_call>", closer="</minimax:tool_call>", syntax=known.INVOKE
    ),
    "dots": CallFormat(
        opener="<dots_function_call>", closer="</dots_function_call>", syntax=known.INVOKE
    ),
    "minimax-m3": CallFormat(
        opener="]<]minimax[>[<tool_call>",
        closer="]<]minimax[>[</tool_call>",
        syntax=known.MINIMAX_M3,
        between="\n",
    ),
    "glm": CallFormat(
        opener="<tool_call>",
        closer="</tool_call>",
        syntax=known.GLM,
        one_a_section=True,
        between="\n",
    ),
    "iquest-coder-2": CallFormat(
        opener="<iquestcoder_tool_call>",
        closer="</iquestcoder_tool_call>",
        syntax=known.GLM,
        one_a_section=True,
        between="\n",
    ),
    "granite-20b-fc": CallFormat(
        opener="<function_call>",
        syntax=JsonCalls(before=" "),
        one_a_section=True,
        between="\n",
    ),
    "plamo-3": CallFormat(
        opener="<|plamo:begin_tool_requests:plamo|>",
        closer="<|plamo:end_tool_requests:plamo|>",
        syntax=known.PLAMO_3,
    ),
    "solar-open-2": CallFormat(
        opener="<|tool_call:start|>",
        kept=len("<|tool_call:start|>"),
        syntax=known.SOLAR_2,
        one_a_section=True,
        between="\n",
    ),
    "lfm2": CallFormat(
        opener="<|tool_call_start|>",
        closer="<|tool_call_end|>",
        syntax=PythonCalls(),
        between=", ",
    ),
    "llama-4": CallFormat(
        opener="<|python_start|>",
        closer="<|python_end|>",
        syntax=PythonCalls(),
        between=", ",
        may_be_bare=True,
    ),
    "functiongemma": CallFormat(
        opener="<start_function_call>",
        closer="<end_function_call>",
        syntax=QuotedObjects(quote="<escape>"),
        one_a_section=True,
        may_be_bare=True,
    ),
    "longcat": CallFormat(
        opener="<longcat_tool_call>",
        closer="</longcat_tool_call>",
        syntax=attrs.evolve(
            known.GLM,
            before_key="<longcat_arg_key>",
            key_end="</longcat_arg_key>",
            before_value="<longcat_arg_value>",
            value_end="</longcat_arg_value>",
        ),
        one_a_section=True,
        between="\n",
    ),
    "olmo-3": CallFormat(
        opener="<function_calls>",
        closer="</function_calls>",
        syntax=PythonCalls(in_list=False),
        between="\n",
    ),
    "step-3": CallFormat(
        opener="<｜tool_calls_begin｜>",  # noqa: RUF001 - as Step writes it
        closer="<｜tool_calls_end｜>",  # noqa: RUF001
        syntax=known.STEP_ML,
    ),
}
