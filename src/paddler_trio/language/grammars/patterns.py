"""Regular expressions of clients in the library's syntax, and expressions that we need ourselves.

JSON Schema's dialect is ECMAScript's. llguidance reads Rust's, without looking around and without
references back; where both read the same characters differently, they are written so that they mean
what ECMAScript means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import attrs
from llguidance import LLMatcher, regex_to_lark

from paddler_trio.language.grammars.lark import GrammarError, either, joined, regex

MAX_PATTERN_CHARS = 16 * 1024
MAX_REPETITIONS = 65_536

# The formats of JSON Schema as patterns. Each describes only texts that its format allows; corners
# that no model needs (the leap second, years before 1000, comments in mail addresses) are left out.
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_MAIL_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]{1,20}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LENGTH = (
    "P(?:[0-9]{1,6}W"
    "|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)"
    "(?:T{T})?|T{T})"
).replace(
    "{T}",
    "(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)",
)

TEXT_FORMATS = {
    "date": _DATE,
    "time": f"{_CLOCK}{_ZONE}",
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "duration": _LENGTH,
    "email": rf"{_MAIL_WORD}(?:\.{_MAIL_WORD}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": f"(?:{_GROUP}:){{7}}{_GROUP}|::(?:{_GROUP}:){{0,5}}{_GROUP}|(?:{_GROUP}:){{1,7}}:",
    "uri": r"[A-Za-z][A-Za-z0-9+.\-]{0,30}://"
    r"(?:[A-Za-z0-9._\~:/?#@!$&'()*+,;=\-]|%[0-9A-Fa-f]{2})+",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
}

# ------------------------------------------------------------------------ patterns of clients

_PART = re.compile(
    r"\\c[A-Za-z]|\\u\{[0-9A-Fa-f]+\}|\\[pP]\{[^}]*\}|\\.|\{[0-9]+(?:,[0-9]*)?\}|\[\^\]|.",
    re.DOTALL,
)
_IN_CLASS = re.compile(r"\\c[A-Za-z]|\\[pP]\{[^}]*\}|\\.|.", re.DOTALL)
_FIRST_BRACKET = "dialects differ about a ] that comes first in a class"
_COUNT = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")


@attrs.frozen
class Alternative:
    """One way in which a pattern matches; without an anchor, anything may stand on that side."""

    body: str
    from_start: bool
    to_end: bool

    @property
    def anchored(self) -> str:
        """The alternative with its anchors, as JSON Schema writes it."""
        return f"{'^' * self.from_start}{self.body}{'$' * self.to_end}"


@lru_cache(maxsize=256)
def alternatives_of(pattern: str) -> tuple[Alternative, ...]:
    """Read a pattern; GrammarError if the library cannot follow it, or nobody can."""
    if len(pattern) > MAX_PATTERN_CHARS:
        reason = f"has {len(pattern)} characters, the limit is {MAX_PATTERN_CHARS}"
        raise GrammarError(f"pattern: {reason}")
    ways: list[list[str]] = [[]]
    depth = at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        assert found is not None, "the last way takes any character"
        part, at = found[0], found.end()
        if part == "[":
            part, at = _class_at(pattern, found.start())
        elif part == "[^]":
            if re.match(r"[^\[\]]*\]", pattern[at:]):
                raise GrammarError(f"pattern: {_FIRST_BRACKET}")
            part = r"[\s\S]"
        elif part == "{" and re.match(r",[0-9]*\}", pattern[at : at + 12]):
            raise GrammarError("pattern: dialects differ about {,n} and {,}: write {0,n}")
        elif part in ("{", "}"):
            part = "\\" + part
        elif part.startswith("\\c"):
            part = f"\\x{ord(part[2]) % 32:02x}"
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            ways.append([])
        else:
            ways[-1].append(part)
    read = tuple(_anchored(parts) for parts in ways)
    _check("|".join(way.anchored for way in read), pattern)
    return read


def _class_at(pattern: str, start: int) -> tuple[str, int]:
    """Return a class of characters and where it ends: Rust would read others in it, and sets."""
    at = start + 1 + pattern.startswith("[^", start)
    parts = [pattern[start:at]]
    if pattern.startswith("]", at):
        raise GrammarError(f"pattern: {_FIRST_BRACKET}")
    while at < len(pattern):
        found = _IN_CLASS.match(pattern, at)
        assert found is not None, "the last way takes any character"
        part, at = found[0], found.end()
        if part == "\\b":
            part = r"\x08"
        elif part.startswith("\\c"):
            part = f"\\x{ord(part[2]) % 32:02x}"
        elif part in "[&~" or (part == "-" and pattern.startswith("-", at)):
            part = "\\" + part
        parts.append(part)
        if part == "]":
            return "".join(parts), at
    raise GrammarError("pattern: a class of characters is not closed")


def _anchored(parts: list[str]) -> Alternative:
    from_start, to_end = parts[:1] == ["^"], parts[-1:] == ["$"]
    return Alternative("".join(parts[from_start : len(parts) - to_end]), from_start, to_end)


def _check(written: str, pattern: str) -> None:
    try:
        "".join((written, pattern)).encode()
    except UnicodeEncodeError as error:
        raise GrammarError("pattern: it has half a surrogate pair, which is no text") from error
    counts = [int(count) for pair in _COUNT.findall(written) for count in pair if count]
    if counts and max(counts) > MAX_REPETITIONS:
        reason = f"{max(counts)} repetitions, the limit is {MAX_REPETITIONS}"
        raise GrammarError(f"pattern: {reason}")
    schema = {"type": "string", "pattern": written}
    problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    if problem and not problem.startswith("WARNING"):
        raise GrammarError(f"pattern: {_reason(problem)}")


def _reason(problem: str) -> str:
    """Return what the library says of a pattern, without the grammar that it quotes."""
    told = re.search(r"error: (.*)|compile JSON schema: (.*)", problem)
    return next(filter(None, told.groups()), problem) if told else problem


# ------------------------------------------------------------------------ parts of terminals


def whole_text(pattern: str) -> str:
    """Return a terminal's part for texts that a pattern matches as a whole; GrammarError."""
    return either([_terminal(way.body) for way in alternatives_of(pattern)])


def text_with(pattern: str) -> str:
    """Return a terminal's part for texts in which a pattern matches; GrammarError."""
    return either(
        [
            joined(
                "" if way.from_start else ANY_TEXT,
                _terminal(way.body),
                "" if way.to_end else ANY_TEXT,
            )
            for way in alternatives_of(pattern)
        ]
    )


def _terminal(body: str) -> str:
    return regex(regex_to_lark(f"(?:{body})", use_ascii="dw"))


ANY_TEXT = r"/[\s\S]*/"


def text_of_length(least: int, most: int | None) -> str:
    """Return a terminal's part for texts of so many characters."""
    return f"/[\\s\\S]{{{least},{'' if most is None else most}}}/"


def texts_without(avoided: Sequence[str]) -> list[str]:
    """Return expressions that all match a text exactly if it has none of the ``avoided`` ones.

    An expression cannot say "not" here. It can say what follows a character that a text begins
    with, as long as that is not in the rest of it: of a text that repeats its first character, an
    end is avoided that does not, which forbids a little more.
    """
    words: dict[str, list[str]] = {}
    for text in dict.fromkeys(avoided):
        if text and text == text[0] * len(text):
            words.setdefault(text, []).append(text)
            continue
        word = next(text[i:] for i in range(len(text)) if text[i] not in text[i + 1 :])
        words.setdefault(word[0], []).append(word)
    written = []
    for first, group in words.items():
        if len(first) > 1 or group == [first]:
            one, most = _escaped(first[0]), len(first) - 1
            runs = f"|{one}{{1,{most}}}[^{one}]" if most else ""
            written.append(f"(?:[^{one}]{runs})*{one}{{0,{most}}}")
        else:
            written.append(_without(first, group))
    return written


def _without(first: str, words: Iterable[str]) -> str:
    shortest: list[str] = []
    for word in sorted(words, key=len):
        if not any(word.startswith(short) for short in shortest):
            shortest.append(word)
    tree: dict[str, object] = {}
    for word in shortest:
        node = tree
        for character in word[1:-1]:
            node = node.setdefault(character, {})  # type: ignore[assignment]
        node[word[-1]] = None
    again, away, begun = _ways(tree, first)
    here = _escaped(first)
    return f"(?:[^{here}]|{here}(?:{again})*(?:{away}))*(?:{here}(?:{again})*(?:{begun})?)?"


def _ways(node: dict[str, object], first: str) -> tuple[str, str, str]:
    """Return what leads from a place in the words back to their first character, what leads out of
    all words, and all that may stand there at the end of a text."""
    others = "".join(map(_escaped, (first, *node)))
    again, away, begun = [_escaped(first)], [f"[^{others}]"], []
    for character, below in node.items():
        if isinstance(below, dict):
            letter = _escaped(character)
            back, out, open_ = _ways(below, first)
            again.append(f"{letter}(?:{back})")
            away.append(f"{letter}(?:{out})")
            begun.append(f"{letter}(?:{open_})?" if open_ else letter)
    return "|".join(again), "|".join(away), "|".join(begun)


def _escaped(character: str) -> str:
    is_plain = character.isascii() and character.isalnum()
    return character if is_plain else f"\\x{{{ord(character):x}}}"
