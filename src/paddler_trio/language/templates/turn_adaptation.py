"""The messages of a conversation get an order that a template can express.

Each step changes only what a template lacks. Turns are moved, joined, split or told in words; none
is left out, and what comes later in a conversation changes nothing of what came before but the last
turn, so that prompts keep their beginnings.
"""

from __future__ import annotations

import hashlib
import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.templates.calls_in_words import result_in_words, written_call
from paddler_trio.language.templates.capabilities import TemplateCapabilities
from paddler_trio.language.templates.chat_messages import Message, text_of

_JOINT = "\n\n"
_ID_CHARS = 9
_LETTERS = string.digits + string.ascii_letters
_NOTHING_ASKED: Message = {"role": "user", "content": ""}
_JOINABLE = ("user", "assistant")
_ROLES = ("system", "developer", "tool", *_JOINABLE)


def adapt_turns(
    messages: Sequence[Message], capabilities: TemplateCapabilities, calls: CallFormat | None
) -> list[Message]:
    """``messages`` in the order and the roles that a template takes.

    Args:
      calls: how the model writes calls; None if that is not known.
    """
    turns = [*messages]
    if not capabilities.several_systems:
        turns = _with_one_system(turns)
    turns = _systems_as_user(turns, capabilities)
    if not capabilities.unnamed_results or not capabilities.tool_role:
        turns = _named_results(turns)
    if not (capabilities.foreign_ids and capabilities.missing_ids):
        turns = _with_ids(turns, keeps_given=capabilities.foreign_ids)
    if not capabilities.tool_role:
        turns = [_told_result(each) if each["role"] == "tool" else each for each in turns]
    elif not capabilities.orphaned_results:
        turns = _told_orphans(turns)
    if not capabilities.tool_calls:
        turns = [_told_calls(each, calls) for each in turns]
    if capabilities.alternates:
        turns = _alternating(turns)
    if not capabilities.text_beside_calls:
        turns = [part for each in turns for part in _text_before_calls(each)]
    if not capabilities.several_calls:
        turns = _single_calls(turns)
    if capabilities.after_results != "taken":
        turns = _apart_from_results(turns, joins=capabilities.after_results == "joined")
    return turns


# ---------------------------------------------------------------------------------------- system


def _num_leading_systems(messages: Sequence[Message]) -> int:
    others = (index for index, each in enumerate(messages) if not _is_system(each))
    return next(others, len(messages))


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _with_one_system(messages: Sequence[Message]) -> list[Message]:
    end = _num_leading_systems(messages)
    if end < 2:
        return [*messages]
    return [_joined(messages[:end]), *messages[end:]]


def _systems_as_user(
    messages: Sequence[Message], capabilities: TemplateCapabilities
) -> list[Message]:
    """Those that the template loses or moves, in the turn of the user beside them, or in one of
    their own at their place."""
    end = _num_leading_systems(messages) if capabilities.system_role else 0
    if capabilities.system_role and capabilities.late_systems:
        return [*messages]
    runs: list[list[Message]] = []
    were_systems = False
    for message in messages[end:]:
        is_system = _is_system(message)
        said = {**message, "role": "user"} if is_system else message
        last = runs[-1][-1] if runs else None
        is_beside = is_system or were_systems
        if is_beside and last is not None and last["role"] == said["role"] == "user":
            runs[-1].append(said)
        else:
            runs.append([said])
        were_systems = is_system
    return [*messages[:end], *map(_joined, runs)]


# ------------------------------------------------------------------------------ calls and results


def calls_in(message: Message) -> list[Message]:
    """The calls of a message; none if it is not the assistant's."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) and message["role"] == "assistant" else []


def function_of(call: Message) -> Mapping[str, object]:
    """Return a call's name and arguments, wherever the client put them."""
    function = call.get("function", call)
    assert isinstance(function, Mapping)  # read_messages checked it
    return function


def _named_results(messages: Sequence[Message]) -> list[Message]:
    names: dict[object, object] = {}
    turns: list[Message] = []
    for message in messages:
        names |= {call.get("id"): function_of(call)["name"] for call in calls_in(message)}
        known = names.get(message.get("tool_call_id"))
        if message["role"] == "tool" and "name" not in message and known is not None:
            message = {**message, "name": known}
        turns.append(message)
    return turns


def _with_ids(messages: Sequence[Message], *, keeps_given: bool) -> list[Message]:
    """An id for every call and result: nine letters and digits, the same for the same id and
    another for another. Calls and results without one are paired in their order.

    Args:
      keeps_given: only missing ones are made.
    """
    ids = _ShortIds(keeps_given)
    turns: list[Message] = []
    unanswered: Iterator[str] = iter(())
    answered: set[str] = set()
    for index, message in enumerate(messages):
        calls = calls_in(message)
        if calls:
            given_ids = [
                ids.of(call.get("id"), f"{index}.{number}") for number, call in enumerate(calls)
            ]
            named = zip(calls, given_ids, strict=True)
            message = {**message, "tool_calls": [{**call, "id": id_} for call, id_ in named]}
            unanswered, answered = iter(given_ids), set()
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            short = ids.of(given, str(index))
            if not given:
                short = next((each for each in unanswered if each not in answered), short)
            answered.add(short)
            message = {**message, "tool_call_id": short}
        turns.append(message)
    return turns


class _ShortIds:
    def __init__(self, keeps_given: bool) -> None:
        self._keeps_given = keeps_given
        self._short: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, given: object, place: str) -> str:
        """Return the id that was given, else one for the call or result at a place."""
        if given and self._keeps_given:
            return str(given)
        text = str(given or f"call {place}")
        known = self._short.get(text)
        if known is not None:
            return known
        is_fine = len(text) == _ID_CHARS and text.isascii() and text.isalnum()
        short = text if is_fine else _hashed(text, 0)
        number = 0
        while short in self._taken:
            number += 1
            short = _hashed(text, number)
        self._taken.add(short)
        self._short[text] = short
        return short


def _hashed(text: str, number: int) -> str:
    digest = hashlib.sha256(f"{number}:{text}".encode("utf-8", "surrogatepass")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:_ID_CHARS])


def _told_result(message: Message) -> Message:
    text = text_of(message.get("content"))
    return {"role": "user", "content": result_in_words(message.get("name"), text)}


def _told_orphans(messages: Sequence[Message]) -> list[Message]:
    """Results that no call before them asked for, as the user's words."""
    turns: list[Message] = []
    num_open = 0
    ids: set[object] = set()
    for message in messages:
        calls = calls_in(message)
        if message["role"] == "tool":
            given = message.get("tool_call_id")
            if num_open == 0 or (given is not None and None not in ids and given not in ids):
                turns.append(_told_result(message))
                continue
            num_open -= 1
        else:
            num_open = len(calls)
            ids = {call.get("id") for call in calls}
        turns.append(message)
    return turns


def _told_calls(message: Message, form: CallFormat | None) -> Message:
    calls = calls_in(message)
    if not calls:
        return message
    texts = [text_of(message.get("content"))]
    for call in calls:
        function = function_of(call)
        texts.append(written_call(str(function["name"]), function.get("arguments", {}), form))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, texts))}


def _text_before_calls(message: Message) -> Iterable[Message]:
    text = text_of(message.get("content"))
    if not calls_in(message) or not text:
        return [message]
    said = {key: value for key, value in message.items() if key != "tool_calls"}
    called = {key: message[key] for key in ("role", "tool_calls")}
    return [said, {**called, "content": ""}]


def _single_calls(messages: Sequence[Message]) -> list[Message]:
    """One call a message, each followed by its result."""
    turns: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = calls_in(message)
        if len(calls) < 2:
            turns.append(message)
            continue
        results: dict[object, list[Message]] = {}
        while index < len(messages) and messages[index]["role"] == "tool":
            results.setdefault(messages[index].get("tool_call_id"), []).append(messages[index])
            index += 1
        unnamed = iter(results.pop(None, ()))
        for number, call in enumerate(calls):
            first = message if number == 0 else {"role": "assistant", "content": ""}
            turns.append({**first, "tool_calls": [call]})
            turns += results.pop(call.get("id"), ()) or [*itertools.islice(unnamed, 1)]
        turns += [*unnamed, *(each for rest in results.values() for each in rest)]
    return turns


# ------------------------------------------------------------------------------------- whose turn


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """No two turns of one role in succession, and the first is the user's; where nothing is said,
    nobody had a turn."""
    runs: list[list[Message]] = []
    for message in messages:
        role, last = message["role"], runs[-1][-1] if runs else None
        if role == "assistant" and not message.get("content") and not calls_in(message):
            continue
        if role not in _ROLES:
            message = {**message, "role": "user"}
            role = "user"
        if role == "assistant" and (last is None or _is_system(last)):
            runs.append([_NOTHING_ASKED])
        if last is not None and last["role"] == role and not calls_in(last) and role in _JOINABLE:
            runs[-1].append(message)
        else:
            runs.append([message])
    if not runs or _is_system(runs[-1][-1]):
        runs.append([_NOTHING_ASKED])
    return [*map(_joined, runs)]


def _apart_from_results(messages: Sequence[Message], *, joins: bool) -> list[Message]:
    """No question directly behind a call or a result: an empty answer between them, or the question
    as a part of the result."""
    runs: list[list[Message]] = []
    for message in messages:
        first = runs[-1][0] if runs else None
        if message["role"] == "user" and first is not None:
            if joins and first["role"] == "tool":
                runs[-1].append(message)
                continue
            if first["role"] == "tool" or calls_in(first):
                runs.append([{"role": "assistant", "content": ""}])
        runs.append([message])
    return [*map(_joined, runs)]


def _joined(messages: Sequence[Message]) -> Message:
    """One message with the contents of all of them, and the calls of the last one."""
    first, last = messages[0], messages[-1]
    if len(messages) == 1:
        return first
    contents = [each.get("content") for each in messages]
    content: object = _JOINT.join(filter(None, map(text_of, contents)))
    if any(isinstance(each, list) for each in contents):
        content = [part for each in contents for part in _parts(each)]
    calls = {"tool_calls": calls_in(last)} if calls_in(last) else {}
    return {**first, "content": content, **calls}


def _parts(content: object) -> list[object]:
    if isinstance(content, list):
        return content
    text = text_of(content)
    return [{"type": "text", "text": text}] if text else []
