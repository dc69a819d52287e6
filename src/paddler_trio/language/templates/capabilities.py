"""A chat template can express some things; they are found by rendering, once per load.

A template does not declare which roles, contents and calls it supports. So small conversations with
unique words are rendered: what comes out, and in which quotes, is what it supports. The
conversations are as regular as they can be (a user first, turns alternating, call ids of nine
characters), since templates refuse what their model never saw.

The capabilities decide how messages are adapted (``message_adaptation``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.templates.thinking_switch import (
    THINKING_WORDS,
    ThinkingSwitch,
    has_default,
    possible_switches,
)

_Turns: TypeAlias = Sequence[Mapping[str, object]]
Form = Literal["either", "string", "other"]
"""Which form of a value comes out right: both, text only, or only the richer one."""
CallContent = Literal["empty", "missing", "null"]
"""The content of an assistant's message that only calls tools."""
AfterResults = Literal["taken", "bridged", "joined"]
"""A question behind a call or its result: taken as it is, behind an empty answer, or as a part of
the result."""
ToolPart = Literal["description", "parameters", "properties"]
"""What a tool's function need not have; ``properties`` are those of its parameters."""

_MAX_PROBE_S = 0.25
_MAX_PROBES_S = 1.0
_MAX_PROBE_CHARS = 256 * 1024
_USER, _SYSTEM, _DEVELOPER, _PART, _PART_2 = "qusrq", "qsysq", "qdevq", "qprtq", "qpr2q"
_RESULT, _KEY, _VALUE, _NAME, _CALL_ID = "qresq", "qkeyq", "qvalq", "qfunq", "qcallid01"
_ARGUMENTS: Mapping[Form, object] = {
    "other": {_KEY: _VALUE},
    "string": f'{{"{_KEY}": "{_VALUE}"}}',
}
_PARTS_OF_TOOL: Mapping[str, object] = {
    "description": "looks something up",
    "parameters": {
        "type": "object",
        "properties": {_KEY: {"type": "string", "description": "what to look up"}},
        "required": [_KEY],
    },
}


def _tool(*parts: str, **others: object) -> Mapping[str, object]:
    """A tool with these of its usual parts, and with others."""
    usual = {part: _PARTS_OF_TOOL[part] for part in parts}
    return {"type": "function", "function": {"name": _NAME, **usual, **others}}


_TOOL = _tool("description", "parameters")


@attrs.frozen(kw_only=True)
class TemplateCapabilities:
    """A template supports these; by default everything."""

    is_known: bool = True
    """False: it requires variables that only clients know, so that it cannot be probed."""
    string_content: frozenset[str] = frozenset({"system", "user", "assistant", "tool"})
    """Roles whose content may be a string."""
    parts_content: frozenset[str] = frozenset({"system", "user", "assistant", "tool"})
    """Roles whose content may be a list of parts."""
    system_role: bool = True
    developer_role: bool = True
    tools: bool = True
    tool_calls: bool = True
    tool_role: bool = True
    arguments: Form = "either"
    """Of tool calls: JSON text (``string``) or an object (``other``)."""
    call_contents: frozenset[CallContent] = frozenset({"empty", "missing"})
    """With which of these contents calls come out."""
    refused_contents: frozenset[CallContent] = frozenset({"null"})
    """With which of them the template fails, or prints ``None``."""
    silent_answers: bool = True
    """An assistant's turn may be without content and calls."""
    alternates: bool = False
    """Refuses two turns of the same role in succession."""
    tool_needs: frozenset[ToolPart] = frozenset()
    """Without which of these the template refuses a tool."""
    several_systems: bool = True
    """Prints every system text at the beginning, not one alone."""
    late_systems: bool = True
    """Prints a system text in its place behind other turns."""
    several_calls: bool = True
    """Prints all calls of one message."""
    text_beside_calls: bool = True
    """Prints the text of a message with calls, before their results."""
    foreign_ids: bool = True
    """Takes calls with any id."""
    missing_ids: bool = True
    """Takes calls without an id."""
    unnamed_results: bool = True
    orphaned_results: bool = True
    """Takes a result behind no call."""
    after_results: AfterResults = "taken"
    thinking: ThinkingSwitch | None = None
    """None: no variable switches the model's thinking on or off."""
    thinking_words: bool = False
    """Reads ``THINKING_WORDS`` in the system message and prints none of them."""

    @property
    def shows_messages(self) -> bool:
        """Prints at least what a user says; another template is a matter of who made it."""
        return self.is_known and "user" in self.string_content | self.parts_content


EVERYTHING = TemplateCapabilities(is_known=False)


@attrs.frozen
class Probe:
    """Small renderings of one template, which together may not take long."""

    template: ChatTemplate
    deadline_s: float = attrs.field(factory=lambda: time.thread_time() + _MAX_PROBES_S)
    """Of this thread's processor time: a template that loops supports nothing."""

    def text(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str | None:
        """The prompt, or None if the template refuses it or time is up."""
        variables = {**own_variables(self.template, tools or ()), **(extra or {})}
        enable_thinking = variables.pop("enable_thinking", None)
        left_s = self.deadline_s - time.thread_time()
        if left_s <= 0:
            return None
        try:
            return self.template.render(
                messages,
                tools=tools,
                add_generation_prompt=messages[-1].get("role") != "assistant",
                bos_token="",
                eos_token="",
                enable_thinking=None if enable_thinking is None else bool(enable_thinking),
                extra=variables,
                max_output_chars=_MAX_PROBE_CHARS,
                max_render_s=min(left_s, _MAX_PROBE_S),
            )
        except ChatTemplateError:
            return None

    def shows(self, needle: str, *messages: Mapping[str, object]) -> bool:
        text = self.text(messages)
        return text is not None and _is_plain(needle, text)

    def capabilities(self) -> TemplateCapabilities:
        """Return which messages come out, in the order in which one finding helps with the next;
        some forty renderings, milliseconds."""
        strings: set[str] = set()
        parts: set[str] = set()

        def try_contents(role: str, *, before: _Turns = (), after: _Turns = ()) -> None:
            two = [_part(_PART), _part(_PART_2)]
            if self.shows(_PART, *before, {**turn, "role": role, "content": _PART}, *after):
                strings.add(role)
            listed = (*before, {**turn, "role": role, "content": two}, *after)
            if self.shows(_PART, *listed) and self.shows(_PART_2, *listed):
                parts.add(role)

        turn: Mapping[str, object] = {}
        try_contents("user")
        if all(self.text([_message("user", _USER, parts=form)]) is None for form in (False, True)):
            # It requires something unknown: messages are the client's responsibility.
            return EVERYTHING
        wraps = "user" not in strings and "user" in parts
        user = _message("user", _USER, parts=wraps)
        try_contents("system", after=[user])
        try_contents("assistant", before=[user], after=[user])
        calls = _Calls(self, user, parts=wraps)
        turn = {"tool_call_id": _CALL_ID, "name": _NAME}
        try_contents("tool", before=[user, calls.turn()])
        return TemplateCapabilities(
            string_content=frozenset(strings),
            parts_content=frozenset(parts),
            system_role="system" in strings | parts,
            developer_role=self.shows(
                _DEVELOPER, _message("developer", _DEVELOPER, parts=wraps), user
            ),
            tools=_NAME in (self.text([user], tools=[_TOOL]) or ""),
            tool_calls=bool(calls.contents),
            tool_role="tool" in strings | parts,
            arguments=calls.arguments,
            call_contents=calls.contents,
            refused_contents=calls.refused,
            silent_answers=self._takes_silence(user),
            alternates=self.text([user]) is not None and self.text([user, user]) is None,
            tool_needs=self._tool_needs(user),
            thinking=self._thinking(user),
            thinking_words=self._reads_words(user, parts=wraps),
        )

    def _takes_silence(self, user: Mapping[str, object]) -> bool:
        turn = {"role": "assistant"}
        silent, empty = (
            self.text([user, {**turn, **content}, user]) for content in ({}, {"content": ""})
        )
        if silent is None:
            return empty is None
        return empty is None or silent.count("None") <= empty.count("None")

    def _tool_needs(self, user: Mapping[str, object]) -> frozenset[ToolPart]:
        if self.text([user], tools=[_TOOL]) is None:
            return frozenset()
        less: Mapping[ToolPart, Mapping[str, object]] = {
            "description": _tool("parameters"),
            "parameters": _tool("description"),
            "properties": _tool("description", parameters={"type": "object"}),
        }
        return frozenset(
            part for part, tool in less.items() if self.text([user], tools=[tool]) is None
        )

    def _reads_words(self, user: Mapping[str, object], *, parts: bool) -> bool:
        if any(word not in self.template.source for word in THINKING_WORDS.values()):
            return False
        prompts: list[str] = []
        for word in THINKING_WORDS.values():
            text = f"{_SYSTEM} {word}"
            prompt = self.text([_message("system", text, parts=parts), user])
            if prompt is None or text in prompt:
                return False
            prompts.append(prompt)
        return len(set(prompts)) > 1

    def _thinking(self, user: Mapping[str, object]) -> ThinkingSwitch | None:
        """The first of the usual variables that makes a difference."""
        for switch in possible_switches(self.template):
            on, off = (self.text([user], extra=values) for values in (switch.on, switch.off))
            if on is not None and off is not None and on != off:
                is_closed = self.text([user]) == off and off.startswith(on)
                names = switch.on.keys() | switch.off.keys()
                asks = any(has_default(self.template.source, name) for name in names)
                return attrs.evolve(switch, needs_default=is_closed and not asks)
        return None


def own_variables(
    template: ChatTemplate, tools: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """The names a few templates have for tools and time; empty for all others."""
    wanted = template.variables
    if "functions" not in wanted or "tools" in wanted:
        return {}
    variables: dict[str, object] = {
        "functions": json.dumps(tools, indent=2, ensure_ascii=False) if tools else ""
    }
    if "datetime" in wanted:
        variables["datetime"] = f"{datetime.now(UTC):%b %d %Y %H:%M:%S} GMT"
    return variables


class _Calls:
    """A template prints a call in this way."""

    def __init__(self, probe: Probe, user: Mapping[str, object], *, parts: bool) -> None:
        self._probe = probe
        self._user = user
        self._parts = parts
        # How a template lists its tools does not show how it prints a call.
        self._announced = probe.text([user], tools=[_TOOL]) or ""
        self._fields: dict[CallContent, Mapping[str, object]] = {
            "empty": _contents("", parts=parts),
            "missing": {},
            "null": {"content": None},
        }
        texts = {
            form: {
                content: self._text(_ARGUMENTS[form], fields)
                for content, fields in self._fields.items()
            }
            for form in _ARGUMENTS
        }
        best = {form: self._best(texts[form]) for form in _ARGUMENTS}
        right = {
            form
            for form, text in best.items()
            if text is not None and _is_unquoted(text, beyond=self._announced)
        }
        self.arguments: Form = "either"
        if right == {"other"}:
            self.arguments = "other"
        elif best["string"] is not None and "other" not in right:
            self.arguments = "string"
        self._form: Form = "string" if self.arguments == "string" else "other"
        # A template that prints a missing content prints None.
        nones = [text.count("None") for text in texts[self._form].values() if text is not None]
        fine = {
            content: text
            for content, text in texts[self._form].items()
            if text is not None and text.count("None") == min(nones)
        }
        self.contents = frozenset(c for c, text in fine.items() if self._shows_call(text))
        self.refused = frozenset(content for content in self._fields if content not in fine)

    def turn(self) -> Mapping[str, object]:
        """The assistant's turn with a call, in the form that comes out right."""
        fields = next((f for c, f in self._fields.items() if c in self.contents), {"content": ""})
        return self._assistant(_ARGUMENTS[self._form], fields)

    def _best(self, texts: Mapping[CallContent, str | None]) -> str | None:
        """The first that shows the call, else the first that is a prompt at all."""
        rendered = [text for text in texts.values() if text is not None]
        shown = [text for text in rendered if self._shows_call(text)]
        return next(iter([*shown, *rendered]), None)

    def _shows_call(self, text: str) -> bool:
        return text.count(_NAME) > self._announced.count(_NAME) and _VALUE in text

    def _assistant(self, arguments: object, fields: Mapping[str, object]) -> Mapping[str, object]:
        call = {
            "id": _CALL_ID,
            "type": "function",
            "function": {"name": _NAME, "arguments": arguments},
        }
        return {"role": "assistant", **fields, "tool_calls": [call]}

    def _text(self, arguments: object, fields: Mapping[str, object]) -> str | None:
        """Render a call with its result where a template takes it: some print calls only then."""
        turns = [self._user, self._assistant(arguments, fields)]
        result = {
            "role": "tool",
            "tool_call_id": _CALL_ID,
            "name": _NAME,
            **_contents(_RESULT, parts=self._parts),
        }
        for conversation in ([*turns, result], turns):
            text = self._probe.text(conversation, tools=[_TOOL])
            if text is not None:
                return text
        return None


def _contents(text: str, *, parts: bool) -> Mapping[str, object]:
    return {"content": [_part(text)] if parts else text}


def _message(role: str, text: str, *, parts: bool) -> Mapping[str, object]:
    return {"role": role, "content": [_part(text)] if parts else text}


def _part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _is_plain(needle: str, text: str) -> bool:
    """Return whether ``needle`` came out as text, not as a piece of a printed list of parts."""
    dumped = (f"'text': '{needle}", f'"text": "{needle}', f'\\"text\\": \\"{needle}')
    return needle in text and not any(each in text for each in dumped)


def _is_unquoted(text: str, *, beyond: str) -> bool:
    """Return whether the arguments came out neither as a Python dictionary nor as JSON inside JSON.

    What ``beyond`` has already is not the call's.
    """
    wrong = (f"'{_KEY}'", f'\\"{_KEY}', '{\\"', f'"{{"{_KEY}"')
    printed = _KEY in text and _VALUE in text
    return printed and not any(text.count(each) > beyond.count(each) for each in wrong)
