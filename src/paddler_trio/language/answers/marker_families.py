"""Families with markers around sections, and something of their own beyond that."""

from __future__ import annotations

import re

import attrs

from paddler_trio.language.answers import call_syntax as known
from paddler_trio.language.answers.automaton import Marker
from paddler_trio.language.answers.call_syntax import (
    JsonCalls,
    NamedJson,
    QuotedObjects,
    TaggedCalls,
)
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.pieces import TokenClass

_CONTENT, _REASONING = TokenClass.CONTENT, TokenClass.REASONING
_CALL, _UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE
_LIST = JsonCalls(in_list=True, before="[", after="]")


def kimi_k3() -> ModelFormat:
    return ModelFormat(
        name="kimi-k3",
        reasoning_open="<|open|>think<|sep|>",
        reasoning_close="<|close|>think<|sep|>",
        content_open="<|open|>response<|sep|>",
        calls=CallFormat(
            opener="<|open|>tools<|sep|>", closer="<|close|>tools<|sep|>", syntax=known.KIMI_K3
        ),
        content_marks=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
        more_markers=((_REASONING, Marker("<|open|>response<|sep|>", _CONTENT)),),
    )


def solar() -> ModelFormat:
    to_content = Marker("<|content|>", _CONTENT)
    ends = tuple(
        (kind, Marker("<|end|>", _CONTENT)) for kind in (_UNDETERMINABLE, _REASONING, _CALL)
    )
    return ModelFormat(
        name="solar-open",
        reasoning_open="<|think|>",
        reasoning_close="<|end|>",
        turn_open="<|begin|>assistant",
        content_open="<|content|>",
        calls=CallFormat(opener="<|tool_calls|>", closer="<|calls|>", syntax=known.SOLAR),
        content_marks=("<|begin|>assistant", "<|content|>", "<|end|>"),
        more_markers=((_REASONING, to_content), *ends),
    )


def dsml(section: str) -> ModelFormat:
    return _marked_invokes("deepseek-dsml", f"｜DSML｜{section}", known.DSML)  # noqa: RUF001


def gigachat_3_5() -> ModelFormat:
    return _marked_invokes("gigachat-3.5", "｜GCML｜tool_calls", known.GCML)  # noqa: RUF001


def _marked_invokes(name: str, section: str, syntax: TaggedCalls) -> ModelFormat:
    call = syntax.before_name
    return ModelFormat(
        name=name,
        calls=CallFormat(opener=f"<{section}>", closer=f"</{section}>", syntax=syntax),
        other_openers=(Marker(call, _CALL, kept=len(call)),),
    )


def k2_horizon() -> ModelFormat:
    call, efforts = known.K2_HORIZON.before_name, ("think_fast", "think_faster")
    return ModelFormat(
        name="k2-horizon",
        reasoning_open="<ifm|think>",
        reasoning_close="</ifm|think>",
        calls=CallFormat(
            opener="<ifm|tool_calls>",
            closer="</ifm|tool_calls>",
            syntax=known.K2_HORIZON,
            between="\n",
        ),
        other_openers=(Marker(call, _CALL, kept=len(call)),),
        more_markers=tuple(
            (kind, marker)
            for effort in efforts
            for kind, marker in (
                (_UNDETERMINABLE, Marker(f"<ifm|{effort}>", _REASONING)),
                (_UNDETERMINABLE, Marker(f"</ifm|{effort}>", _CONTENT, tells=_REASONING)),
                (_CONTENT, Marker(f"<ifm|{effort}>", _REASONING)),
                (_REASONING, Marker(f"</ifm|{effort}>", _CONTENT)),
            )
        ),
    )


def deepseek(*, fenced: bool) -> ModelFormat:
    syntax = known.DEEPSEEK_FENCED if fenced else known.DEEPSEEK_V3_1
    call = "<｜tool▁call▁begin｜>"  # noqa: RUF001
    return ModelFormat(
        name="deepseek-r1" if fenced else "deepseek-v3.1",
        calls=CallFormat(
            opener="<｜tool▁calls▁begin｜>",  # noqa: RUF001
            closer="<｜tool▁calls▁end｜>",  # noqa: RUF001
            syntax=syntax,
            between="\n" if fenced else "",
        ),
        other_openers=(
            Marker("<｜tool_calls_begin｜>", _CALL),  # noqa: RUF001
            Marker(call, _CALL, kept=len(call)),
        ),
        more_markers=tuple(
            (_CALL, Marker(mark, _CONTENT))
            for mark in ("<｜tool_calls_end｜>",)  # noqa: RUF001
        ),
    )


def kimi_k2() -> ModelFormat:
    call = "<|tool_call_begin|>"
    return ModelFormat(
        name="kimi-k2",
        calls=CallFormat(
            opener="<|tool_calls_section_begin|>",
            closer="<|tool_calls_section_end|>",
            syntax=known.KIMI_K2,
        ),
        other_openers=(Marker(call, _CALL, kept=len(call)),),
    )


def hunyuan(source: str) -> ModelFormat:
    separates = "<tool_sep" in source
    suffix = re.search(r"HYTK\s*=\s*['\"]([^'\"]*)['\"]", source)
    mark = suffix[1] if suffix is not None else ""
    return ModelFormat(
        name="hunyuan-3" if separates else "hunyuan-4",
        reasoning_open=f"<think{mark}>",
        reasoning_close=f"</think{mark}>",
        calls=CallFormat(
            opener=f"<tool_calls{mark}>",
            closer=f"</tool_calls{mark}>",
            syntax=known.hunyuan(mark, separates=separates),
            between="\n",
        ),
        content_marks=(f"<｜hy_eos{mark}｜>",),  # noqa: RUF001 - as Hunyuan writes it
    )


def mistral(source: str) -> ModelFormat:
    if "[ARGS]" not in source:
        syntax: JsonCalls | NamedJson = JsonCalls(in_list=True, id_key="id", before="[", after="]")
    else:
        syntax = known.MISTRAL_WITH_ID if "[CALL_ID]" in source else known.MISTRAL
    return ModelFormat(
        name="mistral",
        calls=CallFormat(
            opener="[TOOL_CALLS]",
            syntax=syntax,
            one_a_section=isinstance(syntax, NamedJson),
            id_chars=9,
        ),
        calls_end_reasoning=False,
    )


def cohere(source: str) -> ModelFormat:
    openers = ("<|START_RESPONSE|>", "<|START_TEXT|>")
    return ModelFormat(
        name="command-r7b",
        reasoning_open="<|START_THINKING|>",
        reasoning_close="<|END_THINKING|>",
        content_open=next((mark for mark in openers if mark in source), ""),
        calls=CallFormat(
            opener="<|START_ACTION|>", closer="<|END_ACTION|>", syntax=known.COHERE, between=",\n"
        ),
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


def gemma_4() -> ModelFormat:
    thought = "<|channel>thought"
    return ModelFormat(
        name="gemma-4",
        reasoning_open=thought,
        reasoning_close="<channel|>",
        calls=CallFormat(
            opener="<|tool_call>",
            closer="<tool_call|>",
            syntax=QuotedObjects(),
            one_a_section=True,
            may_be_bare=True,
        ),
        # A stray close token is a token, never a letter that the model meant to write.
        content_marks=("<channel|>", "<|channel>final", "<|tool_response>"),
        more_markers=tuple(
            (kind, Marker(f"<|channel>{thought}", _REASONING))
            for kind in (_UNDETERMINABLE, _CONTENT)
        ),
    )


def seed() -> ModelFormat:
    return ModelFormat(
        name="seed-oss",
        reasoning_open="<seed:think>",
        reasoning_close="</seed:think>",
        calls_end_reasoning=False,
        calls=CallFormat(
            opener="<seed:tool_call>",
            closer="</seed:tool_call>",
            syntax=known.SEED,
            one_a_section=True,
            between="\n",
        ),
    )


def llama_3() -> ModelFormat:
    python = Marker("<|python_tag|>", _CALL)
    end_of_message = "<|eom_id|>"
    return ModelFormat(
        name="llama-3",
        calls=CallFormat(
            opener="",
            syntax=JsonCalls(arguments_key="parameters", code_tool="ipython"),
            between="; ",
        ),
        other_openers=(python,),
        content_marks=(end_of_message,),
        more_markers=((_CALL, Marker(end_of_message, _CONTENT)),),
    )


def functionary_3_1() -> ModelFormat:
    opener = "<function="
    return ModelFormat(
        name="functionary-v3.1",
        calls=CallFormat(
            opener=opener,
            kept=len(opener),
            syntax=attrs.evolve(known.FUNCTION_JSON, code_tool="python"),
            one_a_section=True,
        ),
        other_openers=(Marker("<|python_tag|>", _CALL),),
        more_markers=(
            (_CALL, Marker("</function>", _CONTENT, closes_inside=True, spares_values=True)),
        ),
    )


def minicpm() -> ModelFormat:
    opener = '<function name="'
    return ModelFormat(
        name="minicpm",
        calls=CallFormat(
            opener=opener,
            kept=len(opener),
            syntax=known.PARAM,
            one_a_section=True,
            between="\n",
        ),
        more_markers=(
            (_CALL, Marker("</function>", _CONTENT, closes_inside=True, spares_values=True)),
        ),
    )


def qwen_coder() -> ModelFormat:
    call = "<function="
    return ModelFormat(
        name="qwen-coder",
        calls=CallFormat(
            opener="<tool_call>",
            closer="</tool_call>",
            syntax=known.QWEN_CODER,
            one_a_section=True,
            between="\n",
        ),
        other_openers=(Marker(call, _CALL, kept=len(call)),),
    )


def granite_3() -> ModelFormat:
    return ModelFormat(
        name="granite-3",
        calls=CallFormat(opener="<|tool_call|>", syntax=_LIST, between=", "),
        other_openers=(Marker("<tool_call>", _CALL),),
        content_marks=("<response>", "</response>"),
    )


def internlm(source: str) -> ModelFormat:
    plain, spaced = "<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"
    opener, other = (spaced, plain) if spaced in source else (plain, spaced)
    return ModelFormat(
        name="internlm",
        calls=CallFormat(
            opener=opener,
            closer="<|action_end|>",
            syntax=JsonCalls(arguments_key="parameters", before="\n"),
            one_a_section=True,
        ),
        other_openers=(Marker(other, _CALL),),
    )


def tool_calls_tag(source: str) -> ModelFormat:
    is_lines = "<tool_calls>[" not in source and "<tool_calls>\\n" in source
    form = ModelFormat(
        name="tool-calls-tag",
        calls=CallFormat(
            opener="<tool_calls>",
            closer="</tool_calls>",
            syntax=JsonCalls(before="\n", after="\n") if is_lines else _LIST,
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
    if "<beginning_of_sentence>" in source:  # MiniMax M1, whose template tells nothing of thoughts
        return attrs.evolve(
            form,
            reasoning_open="<think>",
            reasoning_close="</think>",
            calls_end_reasoning=False,
        )
    return form


def hermes(source: str) -> ModelFormat:
    return ModelFormat(
        name="hermes",
        calls=CallFormat(
            opener="<tool_call>",
            closer="</tool_call>",
            syntax=known.HERMES,
            one_a_section=True,
            between="\n",
        ),
        content_marks=("<response>", "</response>") if "</response>" in source else (),
        calls_end_reasoning=False,
    )
