"""Whatever a conversation is made of, no chat template loses or moves a text or a call of it.

Over every template of llama.cpp. Each text of a conversation has a word of its own, so the words in
the prompt tell what came out, and in which order.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from llama_source import template_names, template_text
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.wire.trio.work import ConversationPrompt

WORD = re.compile(r"w\d+q")
TOOL = "save_note"
PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What to keep."}},
    "required": ["text"],
}
TOOLS: list[dict[str, Any]] = [
    {"name": TOOL, "description": "Keeps a note.", "parameters": PARAMETERS},
    {"name": TOOL, "description": "Keeps a note.", "parameters": {"type": "object"}},
    {"name": TOOL},
]
IDS = ("call_9Qm2XyLr7TtB40", "toolu_018abcDEF9921", "3b1c77de-90aa-4f0e-8f11-1c2d3e4f5a6b", "z")


@attrs.define
class Words:
    """Texts with a word that no other has."""

    _made: int = 0

    def text(self, form: str) -> str:
        self._made += 1
        return form.replace("W", f"w{self._made}q")


FORMS = ("W", "W\nand more", '  "W" \\ {W}\n', "é W <b>&</b>\n\n\nlast line")
texts = st.sampled_from(FORMS)
or_empty = st.sampled_from(("", *FORMS))


@attrs.frozen
class Turn:
    """One step of a conversation; ``texts`` are filled with words later."""

    kind: str
    texts: tuple[str, ...]
    calls: tuple[str, ...] = ()
    ids: tuple[str | None, ...] = ()
    answered: tuple[int, ...] = ()


@st.composite
def called(draw: st.DrawFn) -> Turn:
    number = draw(st.integers(1, 3))
    ids = draw(st.permutations(IDS))[:number] if draw(st.booleans()) else [None] * number
    answered = draw(st.permutations(range(number)) | st.just(list(range(number))))
    if ids[0] is None:
        answered = sorted(answered)
    return Turn(
        "calls",
        (draw(or_empty), *draw(st.lists(texts, min_size=number, max_size=number))),
        tuple(draw(st.lists(texts, min_size=number, max_size=number))),
        tuple(ids),
        tuple(answered[: draw(st.integers(0, number))]),
    )


turns = (
    st.builds(Turn, st.sampled_from(("system", "developer")), st.tuples(or_empty))
    | st.builds(Turn, st.sampled_from(("user", "user", "assistant")), st.tuples(or_empty))
    | st.builds(Turn, st.sampled_from(("parts", "thought")), st.tuples(texts, texts))
    | called()
    | st.builds(Turn, st.just("result"), st.tuples(texts), ids=st.tuples(st.sampled_from(IDS)))
)


def messages_of(steps: list[Turn]) -> list[dict[str, Any]]:
    """The conversation as a client would send it."""
    words = Words()
    return [message for step in steps for message in _messages(step, words)]


def _messages(step: Turn, words: Words) -> Iterator[dict[str, Any]]:
    said = [words.text(each) for each in step.texts]
    match step.kind:
        case "parts":
            yield {"role": "user", "content": [{"type": "text", "text": each} for each in said]}
        case "thought":
            yield {"role": "assistant", "reasoning_content": "hm", "content": said[0]}
        case "result":
            yield {"role": "tool", "tool_call_id": step.ids[0], "content": said[0]}
        case "calls":
            calls = [
                {
                    **({} if id_ is None else {"id": id_}),
                    "type": "function",
                    "function": {"name": TOOL, "arguments": json.dumps({"text": words.text(each)})},
                }
                for each, id_ in zip(step.calls, step.ids, strict=True)
            ]
            yield {"role": "assistant", "content": said[0], "tool_calls": calls}
            for number in step.answered:
                id_ = step.ids[number]
                ids = {} if id_ is None else {"tool_call_id": id_}
                yield {"role": "tool", **ids, "content": said[1 + number]}
        case role:
            yield {"role": role, "content": said[0]}


@functools.lru_cache(maxsize=2)
def templates_of(name: str) -> ModelTemplates:
    return ModelTemplates(
        default=ModelTemplate.compile(template_text(name)), bos_token="<s>", eos_token="</s>"
    )


def prompt_of(name: str, messages: list[dict[str, Any]], tool: dict[str, Any] | None) -> str:
    tools = () if tool is None else ({"type": "function", "function": tool},)
    conversation = ConversationPrompt(messages=tuple(messages), tools=tools)
    return prepare_conversation(conversation, templates_of(name)).text(add_generation_prompt=True)


def words_in(value: object) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(WORD.findall(json.dumps(value))))


def expected_order(messages: list[dict[str, Any]]) -> Iterator[tuple[list[str], list[str]]]:
    """Pairs of words: the first ones come before the second ones in every prompt."""
    before: list[str] = []
    calls: dict[object, list[str]] = {}
    for message in messages:
        if message["role"] != "tool":
            calls = {}
        own = words_in(message.get("content"))
        asked = calls.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        # of several calls in one message each may be followed by its result at once
        yield (before if asked is None or not calls else asked), own
        if message["role"] == "tool" and len(calls) > 1:
            continue
        before = own or before
        for call in message.get("tool_calls") or []:
            called_with = words_in(call["function"]["arguments"])
            yield before, called_with
            calls.setdefault(call.get("id"), called_with)
            before = called_with


@pytest.mark.parametrize("name", template_names())
def test_every_text_and_call_is_in_the_prompt_in_order(name: str) -> None:
    @settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(turns, min_size=1, max_size=6), st.sampled_from([None, *TOOLS]))
    def holds(steps: list[Turn], tool: dict[str, Any] | None) -> None:
        messages = messages_of(steps)
        prompt = prompt_of(name, messages, tool)
        places = {word: place for place, word in reversed([*enumerate(WORD.findall(prompt))])}
        lost = [word for word in words_in(messages) if word not in places]
        assert not lost, f"{lost} of {messages}"
        for first, then in expected_order(messages):
            assert all(places[one] < places[other] for one in first for other in then), messages
        calls = sum(len(each.get("tool_calls") or []) for each in messages)
        assert prompt.count(TOOL) >= calls + (tool is not None)

    holds()
