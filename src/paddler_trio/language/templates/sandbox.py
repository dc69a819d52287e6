"""Where chat templates run: Jinja as Hugging Face sets it up, with a meter on everything.

A template is a program out of a downloaded file, so it runs in Jinja's immutable sandbox. The
sandbox keeps it away from Python's insides, but lets it loop for days and fill the memory. Both
end here:

* **Work** is counted where a template can repeat itself: in the body of a loop, a macro and a call
  block a metering statement is put while the template is compiled, and every call goes through
  the sandbox anyway. The meter belongs to one rendering, in one thread (a context variable), and
  counts the processor time of that thread, so a busy machine cuts nothing off.
* **Size** is checked before it exists, wherever a small expression can make a large value; the
  checks are in :mod:`paddler_trio.language.templates.render_limits`.

Loops inside one filter are not metered; they run over what exists, which is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
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

from paddler_trio.language.templates.filters import bounded_filters, join_texts, text_of
from paddler_trio.language.templates.render_limits import (
    METER,
    Absent,
    bounded_items,
    check_operation,
    check_text_method,
    spend,
    spend_on,
)

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

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._metered(node)

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
