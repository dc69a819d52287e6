"""The format of a template: a known family's, what probing shows, or what an operator sets.

A template of no known family is probed. An assistant's turn is rendered without and with reasoning,
and with a call whose name, keys and values occur nowhere else. What stands before, between and
after them in the output are the format's texts. A template that cannot render a probe, or that
writes none of it, has no such section as far as probing shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.answers.automaton import Marker, TokenClass
from paddler_trio.language.answers.call_syntax import (
    HERMES,
    CallSyntax,
    JsonCalls,
    NamedJson,
    PythonCalls,
    TaggedCalls,
)
from paddler_trio.language.answers.families import FAMILIES, REASONING_MARKS, Family
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import Markers

_JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
GENERIC_CALLS = CallFormat("", JsonCalls(), between="\n")
"""What models do that were never trained on a way to call tools, if their prompt offers some."""
_BORROWED_OPENERS = tuple(
    Marker(mark, TokenClass.TOOL_CALL) for mark in ("<tool_call>", "[TOOL_CALLS]")
)
_BORROWED_CLOSER = Marker("</tool_call>", TokenClass.CONTENT, spares_values=True)
"""Marks of other families, which models write whose own way has none."""


def known_format(template_source: str, families: Iterable[Family] = FAMILIES) -> ModelFormat | None:
    """The format of the family whose tool calls the template mentions; None if none is known.

    Comments do not count. The reasoning markers are the family's, or those the template mentions.
    """
    source = _JINJA_COMMENT.sub("", template_source)
    for family in families:
        if family.matches(source):
            return _with_reasoning(family.format_of(source), source)
    return None


@lru_cache(maxsize=16)  # the templates in force
def format_of(template: ChatTemplate, explicit: Markers | None = None) -> ModelFormat:
    """Return how the model behind ``template`` writes; once per load, milliseconds.

    Args:
      explicit: what an operator sets over the template's own. An empty ``reasoning_close`` or
        ``tool_open`` means that there is no such section.
    """
    form = known_format(template.source) or probed_format(template) or ModelFormat(name="json")
    form = _with_reasoning(form, _JINJA_COMMENT.sub("", template.source))
    calls = form.calls
    if calls is None or (form.name == "probed" and calls.is_bare):
        form = attrs.evolve(
            form,
            calls=GENERIC_CALLS if calls is None else calls,
            other_openers=_BORROWED_OPENERS,
            more_markers=((TokenClass.TOOL_CALL, _BORROWED_CLOSER),),
        )
    elif isinstance(calls.syntax, TaggedCalls):
        syntax = _as_rendered(calls.syntax, template)
        form = attrs.evolve(form, calls=attrs.evolve(calls, syntax=syntax))
    return form if explicit is None else _overridden(form, explicit)


def _with_reasoning(form: ModelFormat, source: str) -> ModelFormat:
    """The format with the reasoning markers that the template mentions, if it has none yet."""
    if form.reasoning_close is not None:
        return form
    for opening, closing in REASONING_MARKS:
        if opening in source or closing in source:
            return attrs.evolve(form, reasoning_open=opening, reasoning_close=closing)
    return form


def _overridden(form: ModelFormat, explicit: Markers) -> ModelFormat:
    if explicit.reasoning_open is not None:
        form = attrs.evolve(form, reasoning_open=explicit.reasoning_open or None)
    if explicit.reasoning_close is not None:
        form = attrs.evolve(form, reasoning_close=explicit.reasoning_close or None)
    if form.reasoning_close is None:  # what cannot end is no section
        form = attrs.evolve(form, reasoning_open=None)
    calls = form.calls
    if explicit.tool_open == "":
        return attrs.evolve(form, calls=None, other_openers=())
    if explicit.tool_open is not None:
        syntax = HERMES if calls is None else calls.syntax
        calls = CallFormat(explicit.tool_open, syntax, one_a_section=True)
    if explicit.tool_close is not None and calls is not None:
        calls = attrs.evolve(calls, closer=explicit.tool_close)
    return attrs.evolve(form, calls=calls)


# -------------------------------------------------------------------------------- probing

_USER = "zqxuser"
_TEXT = "zqxtext"
_REASON = "zqxreason"
_NAME = "zqxtool"
_KEYS = ("zqxkeya", "zqxkeyb")
_VALUES = ("zqxvala", "zqxvalb")
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,40}\]|〈[^〈〉\s]{1,40}〉")
_BRACKETS = (("<", ">"), ("[", "]"), ("〈", "〉"))
_ARGUMENTS = re.compile(
    rf'\{{\s*"{_KEYS[0]}"\s*:\s*"{_VALUES[0]}"\s*,\s*"{_KEYS[1]}"\s*:\s*"{_VALUES[1]}"\s*\}}'
)
_QUOTED_ARGUMENTS = re.compile(rf'"\{{[^{{}}]*{_KEYS[0]}[^{{}}]*{_VALUES[1]}[^{{}}]*\}}"')
_BESIDE_VALUE = re.compile(rf'>(\s*)("?){_VALUES[0]}\2(\s*)<')
_KEY_BEFORE = re.compile(r'"(\w+)"\s*:\s*$')
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string", "description": "d"} for key in _KEYS},
            "required": list(_KEYS),
        },
    },
}


def probed_format(template: ChatTemplate) -> ModelFormat | None:
    """Return what probes show of ``template``; None if they show nothing."""
    turn = _rendered_turn(template, {"content": _TEXT})
    if turn is None or _TEXT not in turn:
        return None
    before, _, after = turn.partition(_TEXT)
    reasoning = _reasoning(template, before)
    calls = _calls(template, before, after)
    if reasoning is None and calls is None:
        return None
    opening, closing = reasoning if reasoning is not None else (None, None)
    return ModelFormat(name="probed", reasoning_open=opening, reasoning_close=closing, calls=calls)


def _as_rendered(syntax: TaggedCalls, template: ChatTemplate) -> TaggedCalls:
    """The syntax with what the template writes between its tags and a text among the arguments.

    A line break on both sides is layout; where there is none every line break is the text's own.
    """
    turn = _rendered_turn(template, {"content": "", "tool_calls": [_call(1)]})
    found = None if turn is None else _BESIDE_VALUE.search(turn)
    if found is None:
        return syntax
    before, quote, after = found.groups()
    quoted = syntax.quoted or bool(quote)
    blank = before if before == after and before in ("", "\n") else syntax.value_blank
    return attrs.evolve(syntax, quoted=quoted, value_blank=blank)


def _rendered_turn(template: ChatTemplate, message: Mapping[str, object]) -> str | None:
    """The conversation with that turn of the assistant, or None if it cannot be rendered."""
    conversation: list[Mapping[str, object]] = [
        {"role": "user", "content": _USER},
        {"role": "assistant", **message},
    ]
    tools: Sequence[Mapping[str, object]] = [_TOOL] if "tool_calls" in message else []
    try:
        rendered = template.render(
            conversation,
            tools=tools,
            add_generation_prompt=False,
            enable_thinking=True,
            bos_token="",
            eos_token="",
        )
    except ChatTemplateError:
        return None
    return rendered.rpartition(_USER)[2]


def _reasoning(template: ChatTemplate, before: str) -> tuple[str, str] | None:
    fields = dict.fromkeys(("reasoning_content", "reasoning", "thinking", "thought"), _REASON)
    turn = _rendered_turn(template, {"content": _TEXT, **fields})
    if turn is None or turn.count(_REASON) != 1 or _TEXT not in turn.partition(_REASON)[2]:
        return None
    start = _after_common(turn, before)
    opening = _TAG.findall(turn[start : turn.index(_REASON)])
    closing = _first_tag(turn.partition(_REASON)[2].partition(_TEXT)[0])
    if closing is None:
        return None
    if not opening:
        # The turn without reasoning may open and close the section too, so nothing differs before.
        opening = [tag for tag in _TAG.findall(turn.partition(_REASON)[0]) if _closes(closing, tag)]
    return (opening[-1], closing) if opening else None


def _closes(closing: str, opening: str) -> bool:
    return closing == f"{opening[:1]}/{opening[1:]}"


def _after_common(turn: str, before: str) -> int:
    """Return where ``turn`` begins to differ from ``before``, not in the middle of a tag."""
    start = len(common_start(turn, before))
    for mark, end in _BRACKETS:
        begin = turn.rfind(mark, 0, start)
        if begin >= 0 and end not in turn[begin:start]:
            start = begin
    return start


def _call(index: int) -> dict[str, object]:
    arguments = dict(zip(_KEYS, _VALUES, strict=True))
    return {
        "id": f"zqxcall0{index}",
        "type": "function",
        "function": {"name": _NAME, "arguments": arguments},
    }


def _calls(template: ChatTemplate, before: str, after: str) -> CallFormat | None:
    body = _body(template, before, after, [_call(1)])
    if body is None or _NAME not in body:
        return None
    two = _body(template, before, after, [_call(1), _call(2)])
    call = _json_call(body) or _python_call(body) or _tagged_call(body)
    if call is None:
        return None
    is_repeated = bool(call.opener) and two is not None and two.count(call.opener) > 1
    return attrs.evolve(call, one_a_section=is_repeated)


def _body(
    template: ChatTemplate, before: str, after: str, calls: list[dict[str, object]]
) -> str | None:
    for content in ("", None):
        turn = _rendered_turn(template, {"content": content, "tool_calls": calls})
        if turn is not None and _NAME in turn:
            start = _after_common(turn, before)
            end = len(turn) - len(after) if after and turn.endswith(after) else len(turn)
            return turn[start:end]
    return None


def _json_call(body: str) -> CallFormat | None:
    arguments = _ARGUMENTS.search(body) or _QUOTED_ARGUMENTS.search(body)
    if arguments is None or body.find(_NAME) > arguments.start():
        return None
    head, tail = body[: arguments.start()], body[arguments.end() :]
    before_name, _, after_name = head.partition(_NAME)
    opening = before_name.rfind("{")
    key = _KEY_BEFORE.search(after_name)
    syntax: CallSyntax
    if opening >= 0 and before_name.endswith('"') and after_name.startswith('"'):
        name_key = _KEY_BEFORE.search(before_name[:-1])
        closing = tail.find("}")
        if closing < 0:
            return None
        outer = before_name[:opening]
        in_list = outer.rstrip().endswith("[")
        after = tail[closing + 1 :]
        if name_key is None:
            syntax = JsonCalls(name_is_key=True, in_list=in_list)
        elif key is None:
            return None
        else:
            syntax = JsonCalls(name_key=name_key[1], arguments_key=key[1], in_list=in_list)
        if in_list:
            outer, after = outer.rstrip()[:-1], after.lstrip().removeprefix("]")
        return _section(outer, after, syntax)
    opener = _first_tag(before_name)
    if opener is None or not after_name.strip():
        return None
    inside = before_name.partition(opener)[2].strip()
    closer = _last_tag(tail)
    after_arguments = tail.rpartition(closer)[0].strip() if closer else ""
    syntax = NamedJson(before_name=inside, after_name=after_name, after_arguments=after_arguments)
    return CallFormat(opener, syntax, closer or "")


def _section(before: str, after: str, syntax: CallSyntax) -> CallFormat:
    opener = _first_tag(before)
    if opener is None:
        return CallFormat(before.strip(), syntax)
    return CallFormat(opener, syntax, _closer(after, opener))


def _python_call(body: str) -> CallFormat | None:
    if re.search(rf"{_NAME}\(\s*{_KEYS[0]}\s*=", body) is None:
        return None
    before, after = body.partition(_NAME)[0], body.rpartition(")")[2]
    in_list = before.rstrip().endswith("[")
    if in_list:
        before, after = before.rstrip()[:-1], after.lstrip().removeprefix("]")
    return _section(before, after, PythonCalls(in_list=in_list))


def _tagged_call(body: str) -> CallFormat | None:
    parts = re.split("|".join((_NAME, *_KEYS, *_VALUES)), body)
    if len(parts) != 6:  # something is missing, or stands there twice
        return None
    before_name, to_key, to_value, between, _, end = parts
    before_key = common_start(to_key[::-1], between[::-1])[::-1].strip()
    before_key = before_key[max(before_key.rfind("<"), 0) :]
    value_end = between.strip().removesuffix(before_key).strip()
    name_end = to_key.strip().removesuffix(before_key).strip()
    opener = _first_tag(before_name)
    if not before_key or not value_end or not to_value.strip():
        return None
    closer = _last_tag(end)
    call_end = end.strip().removeprefix(value_end).strip()
    if opener is None:
        return None
    inside = before_name.partition(opener)[2].strip()
    if inside and closer is not None:
        call_end = call_end.removesuffix(closer).strip()
    elif not inside:
        call_end = ""
    syntax = TaggedCalls(
        before_name=inside,
        name_end=name_end,
        before_key=before_key,
        key_end=to_value.strip(),
        value_end=value_end,
        call_end=call_end,
    )
    if inside or not name_end:
        return CallFormat(opener, syntax, closer or "")
    syntax = attrs.evolve(syntax, before_name=opener, call_end=closer or "")
    return CallFormat(opener, syntax, kept=len(opener))


def common_start(one: str, other: str) -> str:
    """The characters that both texts begin with."""
    shared = zip(one, other, strict=False)
    return one[: next((i for i, (a, b) in enumerate(shared) if a != b), min(len(one), len(other)))]


def _closer(tail: str, opener: str) -> str:
    """The tag after the calls that belongs to their opener; the first one if none does."""
    tags: list[str] = _TAG.findall(tail)
    return next((tag for tag in tags if _closes(tag, opener)), tags[0] if tags else "")


def _first_tag(text: str) -> str | None:
    found = _TAG.search(text)
    return found.group() if found is not None else None


def _last_tag(text: str) -> str | None:
    found = _TAG.findall(text)
    return str(found[-1]) if found else None
