"""Families that address every message: a header says to whom, or through which channel."""

from __future__ import annotations

import re

import attrs

from paddler_trio.language.answers import call_syntax as known
from paddler_trio.language.answers.automaton import Goal, Marker
from paddler_trio.language.answers.call_syntax import JsonCalls, NamedJson
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.pieces import TokenClass

_CONTENT, _REASONING = TokenClass.CONTENT, TokenClass.REASONING
_CALL, _UNDETERMINABLE = TokenClass.TOOL_CALL, TokenClass.UNDETERMINABLE

_RECIPIENT = re.compile(r"\bto=([^\s<|]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."


def _harmony_goal(header: str) -> Goal | None:
    """Where ``<|start|>assistant to=... <|channel|>...`` leads."""
    recipient = _RECIPIENT.search(header)
    if recipient is not None and recipient[1] != "assistant":
        return Goal(_CALL, recipient[1].removeprefix(_FUNCTIONS))
    channels = _CHANNEL.findall(header)
    if channels:
        return Goal(_REASONING if channels[-1] == "analysis" else _CONTENT)
    return Goal(_CONTENT)


def _harmony_channel_goal(header: str) -> Goal | None:
    return _harmony_goal(f"<|channel|>{header}")


def harmony() -> ModelFormat:
    begins = Marker("<|start|>", _CONTENT, until="<|message|>", read_header=_harmony_goal)
    channel = Marker(
        "<|channel|>", _CONTENT, until="<|message|>", read_header=_harmony_channel_goal
    )
    # Between messages the model forgets <|start|>, or names the next channel once too often.
    stray_words = ("assistant", "analysis", "commentary")
    ends = [Marker(mark, _CONTENT) for mark in ("<|end|>", "<|return|>", "<|call|>")]
    return ModelFormat(
        name="gpt-oss",
        calls=CallFormat(
            opener="<|start|>assistant<|channel|>commentary to=functions.",
            after_header_name=" <|constrain|>json<|message|>",
            closer="<|call|>",
            syntax=NamedJson(header_names=True),
            in_header=True,
            one_a_section=True,
        ),
        reasoning_open="<|channel|>analysis<|message|>",
        reasoning_close="<|end|>",
        turn_open="<|start|>assistant",
        content_open="<|channel|>final<|message|>",
        more_markers=tuple(
            (kind, marker) for kind in TokenClass for marker in (begins, channel, *ends)
        )
        + tuple(
            (_CONTENT, attrs.evolve(channel, text=f"{word}{channel.text}")) for word in stray_words
        ),
    )


def _muse_goal(header: str) -> Goal | None:
    recipient = _RECIPIENT.search(header)
    if recipient is None or recipient[1] == "user":
        return Goal(_CONTENT)
    # The tool is named again inside the call.
    return Goal(_REASONING if recipient[1] == "self" else _CALL)


def muse() -> ModelFormat:
    begins = Marker("<|start|>", _CONTENT, until="<|message|>", read_header=_muse_goal)
    ends = [Marker(mark, _CONTENT) for mark in ("<|eom|>", "<|eot|>")]
    return ModelFormat(
        name="muse",
        reasoning_open="<|start|>assistant to=self<|message|>",
        reasoning_close="<|eom|>",
        turn_open="<|start|>assistant",
        content_open=" to=user<|message|>",
        more_markers=tuple((kind, marker) for kind in TokenClass for marker in (begins, *ends)),
        calls=CallFormat(
            opener="<|start|>assistant to=",
            after_header_name="<|message|><atem:function_calls>\n",
            closer="</atem:function_calls>",
            syntax=known.ATEM,
            in_header=True,
            one_a_section=True,
            between="<|eom|>",
        ),
    )


_HYPERCLOVA_HEADERS = {
    "": Goal(_CONTENT),
    "/think": Goal(_REASONING),
    "-> tool/function_call": Goal(_CALL),
}


def hyperclova() -> ModelFormat:
    begins = Marker(
        "<|im_start|>assistant",
        _CONTENT,
        until="\n",
        read_header=lambda header: _HYPERCLOVA_HEADERS.get(header.strip()),
    )
    ends = [Marker(mark, _CONTENT) for mark in ("<|im_end|>", "<|endofturn|>", "<|stop|>")]
    return ModelFormat(
        name="hyperclova",
        calls=CallFormat(
            opener="<|im_start|>assistant -> tool/function_call\n",
            closer="<|im_end|>",
            syntax=JsonCalls(in_list=True, before="[", after="]"),
            between=", ",
        ),
        reasoning_open="<|im_start|>assistant/think\n",
        reasoning_close="<|im_end|>",
        turn_open="\n<|im_start|>assistant",
        content_open="\n",
        more_markers=tuple((kind, marker) for kind in TokenClass for marker in (begins, *ends)),
    )


_RECIPIENT_NAME = re.compile(r"[\w.-]{1,64}")


def _functionary_goal(header: str) -> Goal | None:
    if _RECIPIENT_NAME.fullmatch(header) is None:
        return None
    return Goal(_CONTENT) if header == "all" else Goal(_CALL, header)


def functionary_3_2() -> ModelFormat:
    begins = Marker(">>>", _CONTENT, until="\n", read_header=_functionary_goal)
    return ModelFormat(
        name="functionary-v3.2",
        content_open="all\n",
        more_markers=tuple((kind, begins) for kind in (_UNDETERMINABLE, _CONTENT, _CALL)),
        calls=CallFormat(
            opener=">>>",
            after_header_name="\n",
            syntax=NamedJson(header_names=True),
            in_header=True,
            one_a_section=True,
        ),
    )
