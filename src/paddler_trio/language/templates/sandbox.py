"""Chat templates run here: in Jinja as Hugging Face sets it up, with a meter on everything.

A template is a program out of a downloaded file, so it runs in Jinja's immutable sandbox. The
sandbox keeps it away from Python's insides, but lets it loop for days and fill the memory. Both
end here:

* **Work** is counted where a template can repeat itself: in the body of a loop, a macro and a call
  block a metering statement is put while the template is compiled, and every call goes through
  the sandbox anyway. The meter belongs to one rendering, in one thread (a context variable), and
  counts the processor time of that thread, so a busy machine cuts nothing off.
* **Size** is checked before it exists, wherever a small expression can make a large value; the
  checks are in :mod:`paddler_trio.language.templates.render_limits`.

Filters do what Jinja's do, but ``tojson``, which is Hugging Face's plain ``json.dumps``. What they
make is counted, and widths, counts and texts beyond the limits are refused. Loops inside one filter
are not metered; they run over what exists, which is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from paddler_trio.language.templates.render_limits import (
    METER,
    Absent,
    bounded_items,
    check_chars,
    check_format,
    check_operation,
    check_replace,
    check_sum,
    check_text_method,
    check_tree,
    check_width,
    spend,
    spend_on,
)
from paddler_trio.language.templates.token_escaping import ESCAPE_MARK

_WITH_WIDTHS = ("batch", "center", "indent", "slice", "urlize", "wordwrap")

# JSON's or Python's escape of the mark, not the same characters after a backslash of the text.
_ESCAPED_MARK = re.compile(r"(?<!\\)((?:\\\\)*)" + re.escape(json.dumps(ESCAPE_MARK)[1:-1]))

Filter = Callable[..., Any]


_SPEND, _JOIN_TEXTS = "_spend", "_join_texts"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment every chat template is compiled in."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, strftime_now: Callable[[str], str]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
            finalize=_print,
        )
        self.tests["none"] = lambda value: value is None or isinstance(value, Absent)
        self.filters = bounded_filters(self.filters) | {_SPEND: _spend, _JOIN_TEXTS: join_texts}
        self.globals = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": _Dict(),
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        metered = cast("nodes.Template", _Metering().visit(tree))
        metered.set_environment(self)
        return metered

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # Named as Jinja names them: a template may pass any keyword, `self` for one.
        spend(0)
        name = getattr(__obj, "__name__", "")
        # what stands for str.format in a sandbox has the method behind it
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str | bytes):
            if name == "join":
                args = tuple(bounded_items(str(owner), each) for each in args)
            check_text_method(name, owner, args, kwargs)
        elif isinstance(owner, list):  # kept, and perhaps again and again
            for each in args:
                spend_on(each)
        return spend_on(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # What templates do most: a shortcut to the answer the long way round has, too.
        if type(obj) is _Namespace or type(obj) is str:
            return not attr.startswith("_")
        # Templates in use collect in lists of their own, which the immutable sandbox forbids
        # together with changing what they were given.
        if attr in ("append", "pop") and type(obj) is list:
            meter = METER.get()
            return meter is None or id(obj) not in meter.given
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        return spend_on(super().call_binop(context, operator, left, right))


def parse_template(source: str) -> nodes.Template:
    """The syntax tree of a template; jinja2.TemplateSyntaxError if it has none."""
    return TemplateSandbox(str).parse(source)


# ------------------------------------------------------------------- put in while compiling


class _Metering(NodeTransformer):
    """A metering statement at the top of every body that can run again, and bounded ``~``."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, _JOIN_TEXTS, [], [], None, None, lineno=node.lineno)

    def _metered(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        printed = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        amount = nodes.Const(printed, lineno=node.lineno)
        spend = nodes.Filter(amount, _SPEND, [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
        return cast("nodes.Node", node)

    visit_For = visit_Macro = visit_CallBlock = _metered  # noqa: N815 - as Jinja names them


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what is trained on; for a prompt it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@jinja2.pass_context
def _spend(_context: Context, chars: int) -> str:
    # with the context as an argument Jinja does not compute it while compiling
    spend(chars)
    return ""


def _print(value: object) -> object:
    """Every value on its way into the output or into a buffer of it."""
    return spend_on(text_of(value))


# -------------------------------------------------------------------------------------- globals


class _Dict:
    """``dict`` in a template: makes dictionaries, and is not the type with all its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Keeps no name with a leading underscore, so none of Python's can be put in its place."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name a field `self`
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace field {name!r} begins with an underscore")


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


# -------------------------------------------------------------------------------------- filters


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
    """Return what ``value`` prints as; escape marks come out as they are, not as Python's
    escapes."""
    if isinstance(value, str):
        return value
    check_tree(value)
    return _ESCAPED_MARK.sub(rf"\1{ESCAPE_MARK}", str(value))


def join_texts(values: Iterable[object]) -> str:
    """Do what ``~`` does."""
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
    """Make a list of what filters such as ``map`` return; templates in use print it as one."""
    if isinstance(value, Iterator):
        items = list(value)
        check_tree(items)
        return items
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _counted(bounded: Filter) -> Filter:
    @wraps(bounded)  # Jinja reads from a mark on the function what it has to give it first
    def counted(*args: Any, **kwargs: Any) -> Any:
        return spend_on(bounded(*args, **kwargs))

    return counted


def _before(jinjas: Filter, check: Callable[..., object]) -> Filter:
    """The filter, after ``check`` has seen its arguments."""
    takes_first = hasattr(jinjas, "jinja_pass_arg")

    @wraps(jinjas)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*(args[1:] if takes_first else args), *kwargs.values())
        return jinjas(*args, **kwargs)

    return checked


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
