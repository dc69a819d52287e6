"""A template takes some turns, found by trying: conversations are adapted, rendered and read.

Where some lose a word as they are and none with one capability less, the template does not have
that capability. So each is found by the very rule that every request is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.templates.capabilities import Probe, TemplateCapabilities
from paddler_trio.language.templates.chat_messages import Message
from paddler_trio.language.templates.kept_words import first_loss
from paddler_trio.language.templates.message_adaptation import adapt, adapt_tools

_FUNCTION = "qlookupq"
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "looks something up",
        "parameters": {
            "type": "object",
            "properties": {"qkeyq": {"type": "string", "description": "what to look up"}},
            "required": ["qkeyq"],
        },
    },
}


def _call(word: str, id_: str | None) -> Message:
    function = {"name": _FUNCTION, "arguments": {"qkeyq": word}}
    return {"type": "function", "function": function, **({"id": id_} if id_ else {})}


def _calls(*calls: Message, **fields: object) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [*calls], **fields}


def _result(word: str, id_: str | None, **fields: object) -> Message:
    ids = {"tool_call_id": id_} if id_ else {}
    return {"role": "tool", **ids, **fields, "content": word}


_NAME: Mapping[str, object] = {"name": _FUNCTION}
_ID, _ID_2, _LONG_ID = "qcallid01", "qcallid02", "toolu_01qcallid-q"


def _said(role: str, word: str) -> Message:
    return {"role": role, "content": word}


_SYSTEM, _SYSTEM_2 = _said("system", "qsys1q"), _said("system", "qsys2q")
_USER, _USER_2, _USER_3 = (_said("user", f"quser{number}q") for number in range(3))
_ANSWER, _ANSWER_2 = _said("assistant", "qans1q"), _said("assistant", "qans2q")
_CALLS, _RESULT = _calls(_call("qfirstq", _ID)), _result("qres1q", _ID, **_NAME)
_TWO = _calls(_call("qfirstq", _ID), _call("qsecondq", _ID_2))
_BOTH = (_RESULT, _result("qres2q", _ID_2, **_NAME))
_CALLED = (_USER, _CALLS, _RESULT)
_SAID: Message = {**_CALLS, "content": "qsaidq"}


def _called_with(id_: str | None) -> Sequence[Message]:
    return _USER, _calls(_call("qfirstq", id_)), _result("qres1q", id_, **_NAME)


_Restriction: TypeAlias = Callable[[TemplateCapabilities], TemplateCapabilities]


def _without(**fields: object) -> _Restriction:
    return lambda capabilities: attrs.evolve(capabilities, **fields)  # type: ignore[arg-type]


_TRIES: Sequence[tuple[Sequence[_Restriction], Sequence[Sequence[Message]]]] = (
    (
        [_without(alternates=True)],
        [(_USER, _USER_2, _ANSWER, _USER_3), (_USER, _ANSWER, _ANSWER_2, _USER_2)],
    ),
    ([_without(system_role=False)], [(_SYSTEM, _USER, _ANSWER, _USER_2)]),
    ([_without(several_systems=False)], [(_SYSTEM, _SYSTEM_2, _USER)]),
    ([_without(tool_calls=False)], [_CALLED, (*_CALLED, _ANSWER)]),
    ([_without(unnamed_results=False)], [(_USER, _CALLS, _result("qres1q", _ID))]),
    ([_without(foreign_ids=False)], [_called_with(_LONG_ID)]),
    ([_without(missing_ids=False)], [_called_with(None)]),
    (
        [_without(after_results="bridged"), _without(after_results="joined")],
        [(*_CALLED, _USER_2), (*_CALLED, _USER_2, _ANSWER, _USER_3)],
    ),
    (
        [_without(several_calls=False)],
        [(_USER, _TWO, *_BOTH), (_USER, _TWO, *_BOTH, _ANSWER)],
    ),
    (
        [_without(text_beside_calls=False)],
        [(_USER, _SAID, _RESULT), (_USER, _SAID, _RESULT, _ANSWER)],
    ),
    (
        [_without(late_systems=False)],
        [
            (_SYSTEM, _USER, _ANSWER, _SYSTEM_2, _USER_2),
            (_SYSTEM, _USER, _SYSTEM_2, _ANSWER, _USER_2),
            (_USER, _SYSTEM_2),
            (_SYSTEM, *_CALLED, _SYSTEM_2, _USER_2),
        ],
    ),
    (
        [_without(orphaned_results=False)],
        [(_USER, _RESULT, _ANSWER), (_USER, _ANSWER, _RESULT)],
    ),
)


def with_turns(
    probe: Probe, capabilities: TemplateCapabilities, calls: CallFormat | None
) -> TemplateCapabilities:
    """``capabilities`` less those about turns that the template does not have."""
    tools = adapt_tools([_TOOL], capabilities)

    def keeps(turns: Sequence[Message], given: TemplateCapabilities) -> bool:
        offered = tools if any("tool_calls" in each for each in turns) else []
        prompt = probe.text(adapt(turns, given, calls=calls), tools=offered or None)
        return prompt is not None and first_loss(turns, (), prompt) is None

    for restrictions, witnesses in _TRIES:
        forms = (capabilities, *(restrict(capabilities) for restrict in restrictions))
        kept = (form for form in forms if all(keeps(each, form) for each in witnesses))
        capabilities = next(kept, capabilities)
    return capabilities


def in_words(capabilities: TemplateCapabilities) -> Sequence[TemplateCapabilities]:
    """Return what nearly every template has: a user and an assistant who take turns, perhaps
    behind a system text."""
    plain = attrs.evolve(
        capabilities,
        several_systems=False,
        late_systems=False,
        tool_calls=False,
        tool_role=False,
        alternates=True,
    )
    return plain, attrs.evolve(plain, system_role=False, tools=False)
