"""Escaping control tokens in messages: a message may spell one without it becoming one.

A rendered prompt is tokenized with special tokens parsed, because the template's own
``<|im_start|>`` has to become one token. A message that spells ``<|im_end|>`` would end its own
turn and could continue in another role. So texts from outside are escaped before they go into a
template: an escape mark, one character that normal text never contains, is put behind the first
character of every control text, and where a text ends, or begins, with a part of one that its
neighbour might complete. Whatever the template then cuts, trims or joins, no escaped text can come
out as an unbroken control text: what is unbroken in the prompt is the template's.

Without its escape marks the prompt is, to the byte, what the template makes of the original texts,
unless the template searches a text for control texts; then it finds none.

``cut`` prepares tokenization. llama.cpp cuts a prompt at control tokens before anything else, so
the span between two of the template's can be tokenized on its own, as plain text, and its tokens
are those of the same characters without any special meaning. What has no escape marks is cut before
control tokens only, where llama.cpp cuts too, and only if it is long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import attrs

# A noncharacter: Unicode leaves it to programs for their own use.
ESCAPE_MARK = "\ufdd0"
_REPLACEMENT = "\ufffd"
_BLANKS = " \t\n\v\f\r"  # what llama.cpp strips beside some control tokens
_PORTION_CHARS = 4096  # about a millisecond of tokenising
_NEVER = re.compile(r"(?!)")

T = TypeVar("T")


@attrs.frozen
class TokenizedSpan:
    """A piece of a prompt that is tokenized on its own.

    ``pieces`` are the text again, in parts that can be no control token even if the tokenizer
    would assemble one from its characters; one piece if control tokens are to be parsed.
    """

    text: str
    parse_special: bool
    pieces: tuple[str, ...]


class ControlTokenEscaping:
    """Escapes one set of control texts, and cuts prompts; immutable."""

    __slots__ = (
        "_begin",
        "_controls",
        "_endings",
        "_lengths",
        "_longest",
        "_openings",
        "_strips_left",
        "_strips_right",
    )

    def __init__(
        self,
        control_texts: Iterable[str],
        *,
        strips_left: Iterable[str] = (),
        strips_right: Iterable[str] = (),
    ) -> None:
        """Escape ``control_texts``; those of one character cannot be taken apart.

        With no control texts nothing is escaped: control tokens in messages are parsed.

        Args:
          strips_left: those that swallow blanks before them.
          strips_right: those that swallow blanks behind them.
        """
        self._controls = frozenset(text for text in control_texts if len(text) > 1)
        lengths: dict[str, set[int]] = {}
        for text in self._controls:
            lengths.setdefault(text[:2], set()).add(len(text))
        # There may be thousands of control texts, but they begin in a few ways.
        self._lengths = {two: tuple(sorted(each, reverse=True)) for two, each in lengths.items()}
        self._begin = (
            re.compile("|".join(f"{re.escape(two[0])}(?={re.escape(two[1])})" for two in lengths))
            if lengths
            else _NEVER
        )
        self._openings = frozenset(t[:end] for t in self._controls for end in range(1, len(t)))
        self._endings = frozenset(t[start:] for t in self._controls for start in range(1, len(t)))
        self._longest = max(map(len, self._controls), default=1) - 1
        self._strips_left = frozenset(strips_left)
        self._strips_right = frozenset(strips_right)

    def escape(self, untrusted: str) -> str:
        """Return the text with escape marks where needed; most texts come back as they are.

        Escape marks in ``untrusted`` become U+FFFD.
        """
        if not self._controls:
            return untrusted
        text = untrusted.replace(ESCAPE_MARK, _REPLACEMENT)
        pieces: list[str] = []
        done = 0
        for start, _ in self._found_in(text, overlapping=True):
            pieces += (text[done : start + 1], ESCAPE_MARK)
            done = start + 1
        escaped = "".join([*pieces, text[done:]]) if pieces else text
        # Templates trim: what is at an end counts with and without the blanks there.
        for end in sorted({len(escaped.rstrip()), len(escaped)}, reverse=True):
            parts = range(1, min(self._longest, end) + 1)
            if any(escaped[end - part : end] in self._openings for part in parts):
                escaped = escaped[:end] + ESCAPE_MARK + escaped[end:]
        for start in sorted({0, len(escaped) - len(escaped.lstrip())}, reverse=True):
            parts = range(1, min(self._longest, len(escaped) - start) + 1)
            if any(escaped[start : start + part] in self._endings for part in parts):
                escaped = escaped[:start] + ESCAPE_MARK + escaped[start:]
        return escaped

    def escape_all(self, value: T) -> T:
        """Every text in a JSON value escaped, names of fields too; equal parts are not copied."""
        if not self._controls:
            return value
        return self._escape_all(value)  # type: ignore[return-value]  # the same shape

    def _escape_all(self, value: object) -> object:
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self._escape_all(key): self._escape_all(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._escape_all(each) for each in value]
        return value

    def cut(self, prompt: str) -> list[TokenizedSpan]:
        """The spans of a prompt made of escaped texts; joined, they are the unescaped prompt."""
        if ESCAPE_MARK not in prompt:
            return self._portions(prompt)
        spans: list[TokenizedSpan] = []
        trusted: list[str] = []

        def end_trusted() -> None:
            spans.extend(self._portions("".join(trusted)))
            trusted.clear()

        before = ""
        done = 0
        for start, end in (*self._found_in(prompt), (len(prompt), len(prompt))):
            between, after = prompt[done:start], prompt[start:end]
            plain = between.replace(ESCAPE_MARK, "")
            if any(self._found_in(plain)):
                end_trusted()
                if before in self._strips_right:
                    between = between.lstrip(_BLANKS)
                if after in self._strips_left:
                    between = between.rstrip(_BLANKS)
                pieces = tuple(piece for piece in between.split(ESCAPE_MARK) if piece)
                spans.append(TokenizedSpan("".join(pieces), parse_special=False, pieces=pieces))
            else:
                trusted.append(plain)
            trusted.append(after)
            before, done = after, end
        end_trusted()
        return spans

    def _portions(self, trusted: str) -> list[TokenizedSpan]:
        """Cut before control texts, into portions of some length, so that none takes long."""
        texts: list[str] = []
        done = 0
        for start, end in self._found_in(trusted) if len(trusted) > _PORTION_CHARS else ():
            if start - done >= _PORTION_CHARS and trusted[start:end] not in self._strips_left:
                texts.append(trusted[done:start])
                done = start
        texts.append(trusted[done:])
        return [TokenizedSpan(text, parse_special=True, pieces=(text,)) for text in texts if text]

    def _found_in(self, text: str, *, overlapping: bool = False) -> Iterator[tuple[int, int]]:
        """Return where control texts start and end, the longest of each place; in order."""
        done = 0
        for match in self._begin.finditer(text):
            start = match.start()
            if start < done:
                continue
            for length in self._lengths[text[start : start + 2]]:
                if text[start : start + length] in self._controls:
                    yield start, start + length
                    done = start + (1 if overlapping else length)
                    break


def unescaped(prompt: str) -> str:
    """The prompt as the model reads it."""
    return prompt.replace(ESCAPE_MARK, "")
