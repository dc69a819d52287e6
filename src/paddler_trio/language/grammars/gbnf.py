"""GBNF of clients as Lark, character by character.

llama.cpp follows every character by itself; a lexer that takes the longest literal would not follow
all that a grammar means. So each character is a terminal of its own: the parser follows all
readings at once. What is refused is what llama.cpp refuses, but for rules that begin with
themselves, which can be followed here.

Source:
  llama.cpp's ``grammars/README.md`` for the notation, ``src/llama-grammar.cpp`` for what it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import attrs

from paddler_trio.language.grammars.lark import GrammarError, LarkWriter, literal

MAX_GBNF_CHARS = 256 * 1024
MAX_NESTING = 200
MAX_ELEMENTS = 50_000
"""The most characters, sets and names: each is a symbol of the library's grammar."""
MAX_COUNT = 2000
"""The most repetitions, as in llama.cpp."""
_LAST_CHARACTER = 0x10FFFF

TokenOf = Callable[[str], int | None]
"""The one token that a text is; None if it is several."""

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_TOKEN = re.compile(
    r"""
    [ \t]*+
    (?:\#[^\r\n]*)?+
    (?:
      (?P<newline>\r\n|\r|\n)
    | (?P<define>[A-Za-z0-9-]+[ \t]*::=)
    | (?P<name>[A-Za-z0-9-]+)
    | (?P<text>"(?:\\.|[^"\\])*")
    | (?P<class>\[(?:\\.|[^\]\\])*\]|\.)
    | (?P<token>!?<(?:\[\d{1,9}\]|(?!\[)[^>]*)>)
    | (?P<repeat>[*+?]|\{[^}]*\})
    | (?P<group>[()])
    | (?P<or>\|)
    | (?P<end>\Z)
    | (?P<wrong>.)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_COUNTS = re.compile(r"\{\s*(\d{1,9})\s*(,?)\s*(\d{0,9})\s*\}")


def write_gbnf(
    grammar: str,
    root: str,
    writer: LarkWriter,
    token_of: TokenOf,
    end_tokens: Sequence[int] = (),
) -> str:
    """Return the rule for the texts of a grammar.

    Args:
      end_tokens: what "any token but this one" never means.

    Raises:
      GrammarError: too large, not GBNF, or without the rule ``root``.
    """
    if len(grammar) > MAX_GBNF_CHARS:
        message = f"the grammar has {len(grammar)} characters, the limit is {MAX_GBNF_CHARS}"
        raise GrammarError(message)
    if "\0" in grammar + root or any("\ud800" <= each <= "\udfff" for each in grammar + root):
        raise GrammarError("the grammar has a character that UTF-8 texts cannot have")
    reader = _Reader(writer, token_of, end_tokens)
    reader.read(grammar)
    if root not in reader.defined:
        raise GrammarError(f"the grammar has no rule {root!r}")
    for name, asked_by in reader.asked.items():
        if name not in reader.defined:
            raise GrammarError(f"the grammar has no rule {name!r}, which {asked_by!r} asks for")
    for name, body in reader.defined.items():
        writer.define(reader.names[name], body)
    return reader.names[root]


@attrs.define
class _Open:
    """A rule or group that is being read, as parts of its alternatives."""

    name: str
    ways: list[list[str]] = attrs.field(factory=lambda: [[]])

    @property
    def body(self) -> str:
        return " | ".join(" ".join(way) or '""' for way in self.ways)


@attrs.define(eq=False)
class _Reader:
    _writer: LarkWriter
    _token_of: TokenOf
    _end_tokens: Sequence[int]
    defined: dict[str, str] = attrs.field(factory=dict, init=False)
    """The right side of each rule; the last one counts, as in llama.cpp."""
    names: dict[str, str] = attrs.field(factory=dict, init=False)
    asked: dict[str, str] = attrs.field(factory=dict, init=False)
    """The names of rules that are asked for, and one that does."""
    _open: list[_Open] = attrs.field(factory=list, init=False)
    _num_elements: int = attrs.field(default=0, init=False)
    _may_break: bool = attrs.field(default=True, init=False)
    """A line may end here without ending the rule."""
    _is_ended: bool = attrs.field(default=True, init=False)
    """The rule ended with its line."""

    def read(self, grammar: str) -> None:
        for token in _TOKEN.finditer(grammar):
            kind = str(token.lastgroup)
            if kind == "wrong":
                raise GrammarError(f"the grammar cannot be read at character {token.end()}")
            if kind == "newline":
                self._is_ended = self._is_ended or not (self._may_break or len(self._open) > 1)
            elif kind != "end":
                self._take(kind, token[kind])
                self._may_break = kind in ("define", "or") or token[kind] == "("
        self._close_rule()
        if not self.defined:
            raise GrammarError("the grammar has no rule")

    def _take(self, kind: str, text: str) -> None:
        if kind == "define":
            if not self._is_ended:
                raise GrammarError(f"the grammar begins the rule {text!r} in the middle of a line")
            self._close_rule()
            self._open.append(_Open(text[:-3].rstrip()))
            self._is_ended = False
            return
        if self._is_ended:
            raise GrammarError(f"the grammar has {text[:40]!r} where a rule has to begin")
        way = self._open[-1].ways[-1]
        self._num_elements += len(text) if kind == "text" else 1
        if self._num_elements > MAX_ELEMENTS:
            raise GrammarError(f"the grammar has more than {MAX_ELEMENTS} elements")
        match kind:
            case "or":
                self._open[-1].ways.append([])
            case "group" if text == "(":
                if len(self._open) > MAX_NESTING:
                    raise GrammarError(f"the grammar is nested more than {MAX_NESTING} deep")
                self._open.append(_Open(""))
            case "group":
                if len(self._open) < 2:
                    raise GrammarError("the grammar closes a group that is not open")
                group = self._open.pop()
                self._open[-1].ways[-1].append(self._writer.rule(group.body))
            case "repeat":
                if not way or way[-1] == '""':
                    raise GrammarError(f"the grammar has nothing before {text!r} to repeat")
                part = self._writer.rule(way[-1]) if way[-1][-1] in "*+?}" else way[-1]
                way[-1] = part + _times(text)
            case "name":
                self.asked.setdefault(text, self._open[0].name)
                way.append(self._name(text))
            case "text":
                characters = [literal(each) for each in _characters(text[1:-1])]
                several = f"({' '.join(characters)})"
                way.append(several if len(characters) > 1 else "".join(characters) or '""')
            case "class":
                way.append(_class_of(text) if text not in ("[]", "[^]") else '""')
            case _:
                way.append(self._token(text))

    def _name(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self._writer.reserve()
        return self.names[name]

    def _token(self, text: str) -> str:
        named = text.removeprefix("!")
        token = int(named[2:-2]) if named.startswith("<[") else self._token_of(named)
        if token is None:
            raise GrammarError(f"the grammar has {named}, which is no token of this model")
        if text == named:
            return f"<[{token}]>"
        return f"<[^{','.join(map(str, sorted({token, *self._end_tokens})))}]>"

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise GrammarError("the grammar leaves a group open")
        if self._open:
            rule = self._open.pop()
            self._name(rule.name)
            self.defined[rule.name] = rule.body


def _times(text: str) -> str:
    if text in "*+?":
        return text
    counts = _COUNTS.fullmatch(text)
    if counts is None:
        raise GrammarError(f"the grammar repeats {text[:40]}, which are no counts")
    least = int(counts[1])
    most = least if not counts[2] else int(counts[3]) if counts[3] else None
    for count in (least, most or 0):
        if count > MAX_COUNT:
            raise GrammarError(f"the grammar repeats {text[:40]}, the limit is {MAX_COUNT}")
    if most is not None and most < least:
        raise GrammarError(f"the grammar repeats {text[:40]}: the smaller number comes first")
    return f"{{{least},{'' if most is None else most}}}"


def _characters(text: str) -> Iterator[str]:
    for two, four, eight, escaped, plain in _CHARACTER.findall(text):
        if digits := two or four or eight:
            yield chr(min(int(digits, 16), _LAST_CHARACTER))
        elif not escaped:
            yield plain
        elif escaped in _ESCAPES:
            yield _ESCAPES[escaped]
        else:
            raise GrammarError(f"the grammar has the unknown escape '\\{escaped}'")


def _class_of(text: str) -> str:
    """Return a terminal for one character of a set."""
    if text == ".":
        return r"/[^\x00]/"
    inside = text[1:-1]
    is_negated = inside.startswith("^")
    pieces = [match.group() for match in _CHARACTER.finditer(inside[is_negated:])]
    characters = [ord(next(_characters(piece))) for piece in pieces]
    ranges = [r"\x00"] if is_negated else []
    at = 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and pieces[at + 1] == "-"
        first, last = characters[at], characters[at + 2 if is_range else at]
        ranges += _range(max(first, 0 if is_negated else 1), last)
        at += 3 if is_range else 1
    return f"/[{'^' * is_negated}{''.join(ranges)}]/" if ranges else NOTHING


NOTHING = r"/[^\x00-\x{10ffff}]/"


def _range(first: int, last: int) -> Iterator[str]:
    """Return a range without what is no character."""
    for least, most in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last)):
        if least <= most:
            yield f"\\x{{{least:x}}}-\\x{{{most:x}}}"
