"""Writes llguidance's dialect of Lark: rules that exist once, literals, and regular expressions.

The lexer takes the longest text that a terminal allows and never goes back. So what follows a free
text is written into the same terminal, and no terminal goes on where another one has to begin.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

import attrs

from paddler_trio.errors import PaddlerError, shortened

MAX_GRAMMAR_CHARS = 2 * 1024 * 1024
_OPTIONS = '%llguidance {"no_forcing": true}'
"""Looking ahead for what is certain has no limit: some grammars are certain for ever."""
MAX_STEPS = 400_000
"""Of the work on one grammar, about a second. What applications ask for takes some ten thousand."""


class GrammarError(PaddlerError):
    """What was asked for cannot be a grammar; the text names the part and the reason.

    Names, references and values are of the client's making and may be as long as its request.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


Unbound: TypeAlias = dict[str, None]
"""Places in the schemas of a request that were left out of a grammar, in their order."""


@attrs.define
class Work:
    """The work done for one grammar: parts that are within their limits may be too many."""

    unbound: Unbound = attrs.field(factory=dict)
    _steps: int = attrs.field(default=0, init=False)

    def spend(self, steps: int) -> None:
        """Count ``steps``; GrammarError if they are more than ``MAX_STEPS`` together."""
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise GrammarError(
                f"patterns, enums, allOf and oneOf take more than {MAX_STEPS} steps together; "
                "make them fewer or smaller"
            )


@attrs.define(eq=False)
class LarkWriter:
    """The rules and terminals of one grammar, by what they say."""

    work: Work = attrs.field(factory=Work)
    _names: dict[str, str] = attrs.field(factory=dict, init=False)
    _lines: list[str] = attrs.field(factory=list, init=False)
    _num_chars: int = attrs.field(default=0, init=False)

    def rule(self, body: str) -> str:
        """Return the name of the rule that says ``body``."""
        return self._named(body, "r")

    def terminal(self, body: str) -> str:
        """Return the name of the terminal that says ``body``: regular expressions and literals."""
        return self._named(body, "T")

    def reserve(self) -> str:
        """Return the name of a rule that is defined later, since it may contain itself."""
        name = f"r{len(self._names)}"
        self._names[f"({name}"] = name
        return name

    def define(self, name: str, body: str) -> None:
        """Define a reserved rule; GrammarError beyond ``MAX_GRAMMAR_CHARS``."""
        self._num_chars += len(body) + len(name) + 3
        if self._num_chars > MAX_GRAMMAR_CHARS:
            message = f"the grammar has more than {MAX_GRAMMAR_CHARS} characters"
            raise GrammarError(message)
        self._lines.append(f"{name}: {body}")

    def text(self, root: str) -> str:
        """Return the grammar whose texts are those of the rule or terminal ``root``."""
        return "\n".join([_OPTIONS, f"start: {root}", *self._lines]) + "\n"

    def _named(self, body: str, kind: str) -> str:
        known = self._names.get(body)
        if known is None:
            known = self._names[body] = f"{kind}{len(self._names)}"
            self.define(known, body)
        return known


def literal(text: str) -> str:
    """Return what takes exactly this text; GrammarError for half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{text!r} has half a surrogate pair, which is no text") from error
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """Return a terminal's part that takes what an expression of the library's syntax matches."""
    return "/" + re.sub(r"\\.|/|\n", _escaped_in_regex, pattern, flags=re.DOTALL) + "/"


def _escaped_in_regex(found: re.Match[str]) -> str:
    part = found[0]
    if part in ("\n", "\\\n"):
        return r"\n"
    return r"\/" if part == "/" else part


def joined(*parts: str) -> str:
    """Return these parts one after the other; those that take nothing are left out."""
    return " ".join(part for part in parts if part not in ("", '""')) or '""'


def either(parts: list[str]) -> str:
    """Return one of these parts, as one item of a sequence."""
    ways = list(dict.fromkeys(parts))
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def optional(part: str) -> str:
    """Return a part that may be left out."""
    return '""' if part == '""' else f"({part})?"
