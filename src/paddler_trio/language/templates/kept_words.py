"""A prompt has every text and every call of its conversation, in order, or it is found here.

A template is a program of somebody else's: it may refuse a message, and it may as well leave one
out without a word. So what came out is compared with what was sent. Layout does not count, and
neither does the form in which a template writes a text: as it is, or as it stands in JSON.

Reasoning is not looked for: most templates leave out that of earlier turns, as their models were
trained. What stands before the mark that closes reasoning in a content is reasoning.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.language.answers.families import REASONING_MARKS
from paddler_trio.language.templates.chat_messages import Message
from paddler_trio.language.templates.thinking_switch import THINKING_WORDS

_SCANS = 64
_MIN_SCANNED_CHARS = 1_000_000
_MAX_LEAVES = 10_000
_WORDS = re.compile("|".join(map(re.escape, sorted(THINKING_WORDS.values(), reverse=True))))
_CLOSERS = tuple(closer for _, closer in REASONING_MARKS)


_Lost: TypeAlias = tuple[str, list[str]]


@attrs.frozen
class Loss:
    """``path`` is what is not in the prompt, or stands there before what comes before it."""

    path: str
    is_misplaced: bool


def first_loss(messages: Sequence[Message], tools: Sequence[Message], prompt: str) -> Loss | None:
    """The first text, call or tool that a prompt lost or misplaced; None if there is none.

    The order is that of the messages, and in a message its text comes before its calls. Only where
    one has several calls each may be followed by its result at once.

    Args:
      messages: as ``chat_messages.read_messages`` gives them.
      prompt: without escape marks.
    """
    found = _loss_in(messages, tools, prompt, any_blanks=False)
    if found is None:
        return None
    # some templates write other blanks than they were given
    return _loss_in(messages, tools, _with_plain_blanks(prompt), any_blanks=True)


def _loss_in(
    messages: Sequence[Message], tools: Sequence[Message], prompt: str, *, any_blanks: bool
) -> Loss | None:
    search = _Search(prompt, _SCANS * len(prompt) + _MIN_SCANNED_CHARS, any_blanks)
    for index, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and not search.has(name):
            return Loss(f"tools[{index}]", is_misplaced=False)
    lost = search.lost_of(messages)
    if lost is None:
        return None
    path, pieces = lost
    return Loss(path, is_misplaced=all(map(search.has, pieces)))


def pieces_of(message: Message) -> list[str]:
    """The texts of a message's content that its prompt has to have."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    pieces: list[str] = []
    for text in texts:
        if isinstance(text, str):
            is_own = message.get("role") == "assistant"
            pieces += _WORDS.split(_after_reasoning(text) if is_own else text)
    return [piece for piece in pieces if piece.strip()]


def _after_reasoning(text: str) -> str:
    ends = (text.rfind(closer) + len(closer) for closer in _CLOSERS if closer in text)
    return text[max(ends, default=0) :]


@attrs.define
class _Search:
    _prompt: str
    _left_chars: int
    """How much may be looked through still; after that everything counts as found."""
    _any_blanks: bool
    """The prompt has one space for each run of blanks, and texts are looked for so, too."""

    def lost_of(self, messages: Sequence[Message]) -> _Lost | None:
        """Return what is lost first: its path, and its texts."""
        place, index = 0, 0
        found: int | _Lost
        while index < len(messages):
            message = messages[index]
            calls = message.get("tool_calls")
            end = index + 1
            if isinstance(calls, list) and message["role"] == "assistant":
                while end < len(messages) and messages[end]["role"] == "tool":
                    end += 1
                found = self._after_calls(messages[index:end], calls, place, index)
            else:
                pieces = pieces_of(message)
                after = self._after(pieces, place)
                found = (f"messages[{index}].content", pieces) if after is None else after
            if isinstance(found, tuple):
                return found
            place, index = found, end
        return None

    def _after_calls(
        self, turn: Sequence[Message], calls: Sequence[object], start: int, index: int
    ) -> int | _Lost:
        """Return where a turn with calls and the results behind it end."""
        texts = pieces_of(turn[0])
        text_end = self._after(texts, start)
        if text_end is None:
            return f"messages[{index}].content", texts
        place = end = text_end
        ends: list[int] = []
        numbers: dict[object, int] = {}
        for number, call in enumerate(calls):
            assert isinstance(call, Mapping)  # read_messages checked it
            function = call.get("function", call)
            name = str(function["name"])
            leaves = list(leaves_of(function.get("arguments")))
            after_name = self._after([name], place)
            founds = [after_name, *(self._after([leaf], place) for leaf in leaves)]
            known = [found for found in founds if found is not None]
            if after_name is None or len(known) < len(founds):
                return f"messages[{index}].tool_calls[{number}]", [name, *leaves]
            place, end = after_name, max(end, *known)
            ends.append(after_name)
            numbers.setdefault(call.get("id"), number)
        for number, result in enumerate(turn[1:]):
            called = numbers.get(result.get("tool_call_id"), 0)
            pieces = pieces_of(result)
            found = self._after(pieces, ends[called])
            if found is None:
                return f"messages[{index + 1 + number}].content", pieces
            end = max(end, found)
        return end

    def has(self, piece: str) -> bool:
        return self._after([piece], 0) is not None

    def _after(self, pieces: Sequence[str], start: int) -> int | None:
        """The end of the first place behind ``start`` where all of them stand, one after another;
        None if there is none."""
        place: int | None = start
        for piece in pieces:
            place = self._after_piece(piece.strip(), place)
            if place is None:
                return None
        return place

    def _after_piece(self, piece: str, start: int | None) -> int | None:
        assert start is not None
        found = self._after_text(_with_plain_blanks(piece) if self._any_blanks else piece, start)
        if found is not None or "\n" not in piece:
            return found
        place: int | None = start
        for line in filter(None, map(str.strip, piece.splitlines())):
            assert place is not None
            place = self._after_text(line, place)
            if place is None:
                return None
        return place

    def _after_text(self, text: str, start: int) -> int | None:
        for form in dict.fromkeys(_forms_of(text)):
            if self._left_chars <= 0:
                return start
            found = self._prompt.find(form, start)
            self._left_chars -= (len(self._prompt) if found < 0 else found) - start
            if found >= 0:
                return found + len(form)
        return None


def _with_plain_blanks(text: str) -> str:
    return " ".join(text.split())


def _forms_of(text: str) -> Iterator[str]:
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield repr(text)[1:-1]
    yield html.escape(text)


def leaves_of(arguments: object) -> Iterator[str]:
    """The keys, texts and whole numbers of a call's arguments; a text that is no JSON is one."""
    if isinstance(arguments, str):
        try:
            value: object = json.loads(arguments)
        except (ValueError, RecursionError):
            value = arguments
    else:
        value = arguments
    waiting = [value]
    for _ in range(_MAX_LEAVES):
        if not waiting:
            return
        match waiting.pop():
            case str(text):
                if text.strip():
                    yield text
            case Mapping() as members:
                waiting += [*members, *members.values()]
            case list() as items:
                waiting += items
            case int(number) if not isinstance(number, bool):
                yield str(number)
