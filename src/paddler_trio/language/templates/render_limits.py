"""One rendering of a chat template may take so much processor time, and so much room.

The meter counts while a template runs. The checks come before an operation is done: those that make
much out of little (``*``, ``center``, ``join``, ``replace``, printing a list ...) would fill
the memory before any meter could count.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sized
from contextvars import ContextVar
from typing import Any, TypeVar

import attrs
import jinja2
from jinja2.exceptions import SecurityError

MAX_TEXT_CHARS = 16 * 1024 * 1024
"""Of any text a template makes, the prompt included."""
MAX_ITEMS = 1_000_000
"""Of any list a template makes, nested ones counted in."""
MAX_WIDTH = 100_000
"""Of what is padded, indented, wrapped or sliced: the limit Jinja's sandbox has for ``range``."""
MAX_INTEGER_BITS = 4096
MAX_SPENT_CHARS = 32 * MAX_TEXT_CHARS
"""Of everything a rendering makes on the way: templates collect a prompt piece by piece."""
_CHARS_PER_ITEM = 8
_LONG_WIDTH = re.compile(r"%[^a-zA-Z%]*\d{6}|\{[^{}]*:[^{}]*\d{6}")


class LimitError(jinja2.TemplateError):
    """A rendering took more than it may."""


def _ids(values: Iterable[object]) -> frozenset[int]:
    return frozenset(map(id, values))


@attrs.define(eq=False, kw_only=True)
class Meter:
    """A meter has what one rendering may still spend: processor seconds of its thread, and
    characters.

    ``given`` are the ids of the request's values, which it must leave as they are.
    """

    _limit_s: float
    _limit_chars: int
    given: frozenset[int] = attrs.field(default=(), converter=_ids)
    _deadline_s: float = attrs.field(init=False)
    _steps: int = attrs.field(default=0, init=False)
    chars: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._deadline_s = time.thread_time() + self._limit_s

    def spend(self, chars: int) -> None:
        """One step that made ``chars`` characters; LimitError if it was one too many."""
        self._steps += 1
        self.chars += chars
        if self.chars > self._limit_chars:
            raise LimitError(f"made more than {self._limit_chars} characters of text")
        # asking for the time costs as much as a step
        if self._steps % 32 == 0 and time.thread_time() > self._deadline_s:
            raise LimitError(
                f"ran longer than {self._limit_s:g} s of processor time ({self._steps} steps)"
            )


METER: ContextVar[Meter | None] = ContextVar("METER", default=None)
"""Of the rendering that runs in this thread; None while a template is compiled."""


def spend(chars: int) -> None:
    """Count a step that made ``chars`` characters; LimitError if it was one too many."""
    meter = METER.get()
    if meter is not None:
        meter.spend(chars)


T = TypeVar("T")


def spend_on(made: T) -> T:
    """Count what a step made: texts, and lists, whose items take memory too."""
    if isinstance(made, str | bytes):
        spend(len(made))
    elif isinstance(made, list | tuple):
        spend(_CHARS_PER_ITEM * len(made))
    return made


class Absent(jinja2.Undefined):
    """Undefined to ``is defined``, none to ``is none`` and ``== none``, empty to a loop."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Absent)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(None)


def _too_large(what: str, limit: int, unit: str) -> SecurityError:
    return SecurityError(f"the result of {what!r} is too large: the limit is {limit} {unit}")


def check_chars(chars: int, what: str) -> None:
    """SecurityError if the result of ``what`` would be too long a text."""
    if chars > MAX_TEXT_CHARS:
        raise _too_large(what, MAX_TEXT_CHARS, "characters")


def check_width(width: object, what: str) -> None:
    """SecurityError if ``what`` is asked to pad, wrap or slice to so much."""
    if isinstance(width, int | float) and width > MAX_WIDTH:
        raise _too_large(what, MAX_WIDTH, "characters of width")


def check_tree(value: object) -> None:
    """Refuse what prints as far more than it is: lists that hold the same list many times."""
    items = 0
    chars = 0
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            chars += len(each)
        elif isinstance(each, Mapping):
            items += 2 * len(each)
            pending.extend(each.keys())
            pending.extend(each.values())
        elif isinstance(each, list | tuple | set | frozenset):
            items += len(each)
            pending.extend(each)
        if items > MAX_ITEMS:
            raise _too_large("printing a list", MAX_ITEMS, "items")
        if chars > MAX_TEXT_CHARS:
            raise _too_large("printing a list", MAX_TEXT_CHARS, "characters")


def check_operation(operator: str, left: object, right: object) -> None:
    """SecurityError if what an operator makes of these would be too large."""
    match left, right:
        case (int(), int()) if operator == "**":
            bits = left.bit_length() * max(right, 0)
        case (int(), int()) if operator == "*":
            bits = left.bit_length() + right.bit_length()
        case (str(), _) if operator == "%":
            check_format(left, right if isinstance(right, tuple) else (right,))
            return
        case (str() | bytes(), str() | bytes()) if operator == "+":
            check_chars(len(left) + len(right), "+")
            return
        case (str() | bytes() as text, int(times)) | (
            int(times),
            str() | bytes() as text,
        ) if operator == "*":
            check_chars(len(text) * times, "*")
            return
        case (list() | tuple(), list() | tuple()) if operator == "+":
            if len(left) + len(right) > MAX_ITEMS:
                raise _too_large("+", MAX_ITEMS, "items")
            return
        case (list() | tuple() as items, int(times)) | (
            int(times),
            list() | tuple() as items,
        ) if operator == "*":
            if len(items) * times > MAX_ITEMS:
                raise _too_large("*", MAX_ITEMS, "items")
            check_chars(times * sum(len(each) for each in items if isinstance(each, str)), "*")
            return
        case _:
            return
    if bits > MAX_INTEGER_BITS:
        raise _too_large(operator, MAX_INTEGER_BITS, "bits")


def check_format(form: str, values: Iterable[object]) -> None:
    """Widths of formats are numbers in the form or, for ``*`` and ``{:{}}``, in the values."""
    if _LONG_WIDTH.search(form):
        raise _too_large("format", MAX_WIDTH, "characters of width")
    total = len(form)
    for value in values:
        if "*" in form or "{" in form:
            check_width(value, "format")
        total += len(value) if isinstance(value, str) else 0
        if not isinstance(value, str):
            check_tree(value)
    check_chars(total, "format")


def check_text_method(
    name: str, owner: str | bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """SecurityError if what a method of a text makes of these would be too large."""
    match name:
        case "center" | "ljust" | "rjust" | "zfill":
            for width in (*args, *kwargs.values()):
                check_width(width, name)
        case "expandtabs":
            for width in (*args, *kwargs.values()):
                if isinstance(width, int):
                    check_chars(len(owner) * (1 + width), name)
        case "replace":
            old, new = (*args, *kwargs.values(), None, None)[:2]
            check_replace(owner, old, new)
        case "format" | "format_map" if isinstance(owner, str):
            check_format(owner, (*args, *kwargs.values()))
        case "translate" if args and isinstance(args[0], Mapping):
            longest = max((len(v) for v in args[0].values() if isinstance(v, str)), default=1)
            check_chars(len(owner) * longest, name)
        case _:
            pass


def check_replace(text: str | bytes, old: object, new: object) -> None:
    """SecurityError if replacing would make too long a text."""
    if not isinstance(old, str | bytes) or not isinstance(new, str | bytes):
        return
    if len(new) > len(old) and len(text) * (1 + len(new)) > MAX_TEXT_CHARS:
        found = text.count(old)  # type: ignore[arg-type]  # of the other kind: TypeError, as before
        check_chars(len(text) + found * (len(new) - len(old)), "replace")


def check_sum(items: object, *rest: object) -> None:
    """A sum of lists is one long list."""
    if any(isinstance(start, list) for start in rest) and isinstance(items, list | tuple):
        total = sum(len(each) for each in items if isinstance(each, list))
        if total > MAX_ITEMS:
            raise _too_large("sum", MAX_ITEMS, "items")


def bounded_items(separator: str, values: object) -> object:
    """``values`` as a list that is not too long to be joined; what cannot be is left alone."""
    if isinstance(values, str):
        check_chars(len(values) * (1 + len(separator)), "join")
    if isinstance(values, str) or not isinstance(values, Iterable):
        return values
    texts: list[object] = []
    chars = 0
    for each in values:
        texts.append(each)
        chars += len(separator) + (len(each) if isinstance(each, Sized) else 1)
        check_chars(chars, "join")
    return texts
