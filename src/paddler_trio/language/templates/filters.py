"""The filters of chat templates: Jinja's, with what they make bounded and counted.

``tojson`` is Hugging Face's: plain ``json.dumps``. All others do what Jinja's do, and refuse
widths, counts and texts beyond the limits of :mod:`paddler_trio.language.templates.render_limits`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes

from paddler_trio.language.templates.render_limits import (
    Absent,
    bounded_items,
    check_chars,
    check_format,
    check_replace,
    check_sum,
    check_tree,
    check_width,
    spend_on,
)
from paddler_trio.language.templates.token_escaping import ESCAPE_MARK

_WITH_WIDTHS = ("batch", "center", "indent", "slice", "urlize", "wordwrap")

# JSON's or Python's escape of the mark, not the same characters after a backslash of the text.
_ESCAPED_MARK = re.compile(r"(?<!\\)((?:\\\\)*)" + re.escape(json.dumps(ESCAPE_MARK)[1:-1]))

Filter = Callable[..., Any]


def bounded_filters(jinjas: dict[str, Filter]) -> dict[str, Filter]:
    """All of Jinja's filters, bounded, and ours; each counts what it makes."""
    filters = {
        **jinjas,
        **{name: _with_widths(jinjas[name], name) for name in _WITH_WIDTHS},
        "format": _before(jinjas["format"], lambda form, *rest: check_format(str(form), rest)),
        "pprint": _before(jinjas["pprint"], lambda value, *_: check_tree(value)),
        "replace": _before(jinjas["replace"], _check_replacing),
        "sum": _before(jinjas["sum"], check_sum),
        "join": _joining(jinjas["join"]),
        "string": text_of,
        "tojson": to_json,
    }
    return {name: _counted(each) for name, each in filters.items()}


def text_of(value: object) -> str:
    """What ``value`` prints as; escape marks come out as they are, not as Python's escapes."""
    if isinstance(value, str):
        return value
    check_tree(value)
    return _ESCAPED_MARK.sub(rf"\1{ESCAPE_MARK}", str(value))


def join_texts(values: Iterable[object]) -> str:
    """What ``~`` does."""
    texts = [text_of(value) for value in values]
    check_chars(sum(map(len, texts)), "~")
    return spend_on("".join(texts))


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Positional as well as named arguments, since templates use both.

    The marks of ``token_escaping`` come out as they are, also where every other character beyond
    ASCII is escaped.
    """
    if isinstance(value, Absent):
        value = None
    check_tree(value)
    check_width(indent, "tojson")
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_items_of,
    )
    return _ESCAPED_MARK.sub(rf"\1{ESCAPE_MARK}", text) if ensure_ascii else text


def _items_of(value: object) -> list[object]:
    """What filters such as ``map`` return is no list yet; templates in use print it as one."""
    if isinstance(value, Iterator):
        items = list(value)
        check_tree(items)
        return items
    raise TypeError(f"{type(value).__name__} has no form in JSON")


# ------------------------------------------------------------------------------- around Jinja's


def _counted(bounded: Filter) -> Filter:
    def counted(*args: Any, **kwargs: Any) -> Any:
        return spend_on(bounded(*args, **kwargs))

    return _passed_like(bounded, counted)


def _before(jinjas: Filter, check: Callable[..., object]) -> Filter:
    """The filter, after ``check`` has seen its arguments."""
    takes_first = hasattr(jinjas, "jinja_pass_arg")

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*(args[1:] if takes_first else args), *kwargs.values())
        return jinjas(*args, **kwargs)

    return _passed_like(jinjas, checked)


def _with_widths(jinjas: Filter, name: str) -> Filter:
    def check(value: object, *given: object) -> None:
        for width in given:
            check_width(width, name)
        if name == "indent" and isinstance(value, str):
            width = given[0] if given else 4
            size = len(width) if isinstance(width, str) else int(str(width))
            check_chars(len(value) + (value.count("\n") + 1) * size, name)

    return _before(jinjas, check)


def _check_replacing(text: object, *given: object) -> None:
    old, new = (*given, None, None)[:2]
    check_replace(str(text), old, new)


def _joining(jinjas: Filter) -> Filter:
    @jinja2.pass_eval_context
    def join(
        eval_context: nodes.EvalContext, value: Any, d: str = "", attribute: Any = None
    ) -> Any:
        if attribute is None:
            value = bounded_items(str(d), value)
        return jinjas(eval_context, value, d, attribute)

    return join


def _passed_like(original: Filter, wrapper: Filter) -> Filter:
    """Jinja reads from a mark on the function what it has to give it first."""
    if hasattr(original, "jinja_pass_arg"):
        wrapper.jinja_pass_arg = original.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper
