"""A model's thinking is turned on and off by a variable of its template, or by a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from jinja2 import nodes

from paddler_trio.language.templates.chat_template import RESERVED_VARIABLES, ChatTemplate
from paddler_trio.language.templates.sandbox import parse_template

_BOOLEAN_SWITCHES = ("enable_thinking", "thinking", "enable_reasoning", "reasoning", "think")
_WORD_SWITCHES = ("thinking_mode", "reasoning_effort", "thinking_option", "reasoning_mode")
_OFF_WORDS = ("off", "none", "disabled", "no_think", "disable", "no", "/no_think", "minimal")
_ON_WORDS = ("on", "enabled", "high", "medium", "think", "enable", "yes", "/think")
_INVERSE_SWITCHES = (
    "skip_thinking",
    "skip_reasoning",
    "disable_thinking",
    "no_think",
    "no_thinking",
)
_BUDGETS = ("thinking_budget", "reasoning_budget")
THINKING_WORDS: Mapping[bool, str] = {True: "/think", False: "/no_think"}
"""What people write to models that are switched by a word in the system message."""


@attrs.frozen
class ThinkingSwitch:
    """Template variables that turn the model's thinking on and off.

    ``needs_default``: where nothing is said, the template closes the reasoning that it opens
    otherwise, only because it does not ask whether anything was said.
    """

    on: Mapping[str, object]
    off: Mapping[str, object]
    needs_default: bool = False


def possible_switches(template: ChatTemplate) -> Iterator[ThinkingSwitch]:
    """The usual variables that a template reads, in the order in which they are believed."""
    names = template.variables - RESERVED_VARIABLES
    for name in filter(names.__contains__, _BOOLEAN_SWITCHES):
        yield ThinkingSwitch({name: True}, {name: False})
    for name in filter(names.__contains__, _WORD_SWITCHES):
        words = compared_words(template.source, name)
        off = next(filter(words.__contains__, _OFF_WORDS), None)
        on = next(filter(words.__contains__, _ON_WORDS), None)
        if off is not None:
            yield ThinkingSwitch({name: on} if on else {}, {name: off})
    for name in filter(names.__contains__, _BUDGETS):
        yield ThinkingSwitch({}, {name: 0})
    for name in filter(names.__contains__, _INVERSE_SWITCHES):
        yield ThinkingSwitch({name: False}, {name: True})


def has_default(source: str, variable: str) -> bool:
    """Return whether a template decides itself what an undefined ``variable`` means."""
    tree = parse_template(source)

    def is_it(node: nodes.Node | None) -> bool:
        return isinstance(node, nodes.Name) and node.name == variable

    tested = (each.node for each in tree.find_all(nodes.Test))
    filtered = (each.node for each in tree.find_all(nodes.Filter) if each.name == "default")
    assigned = (each.target for each in tree.find_all(nodes.Assign))
    return any(map(is_it, (*tested, *filtered, *assigned)))


def compared_words(source: str, variable: str) -> frozenset[str]:
    """The texts that a template compares ``variable`` with."""
    words: set[str] = set()
    for comparison in parse_template(source).find_all(nodes.Compare):
        sides = [comparison.expr, *(operand.expr for operand in comparison.ops)]
        inner = [each for side in sides for each in (side, *side.find_all(nodes.Node))]
        if any(isinstance(each, nodes.Name) and each.name == variable for each in inner):
            words |= {
                each.value
                for each in inner
                if isinstance(each, nodes.Const) and isinstance(each.value, str)
            }
    return frozenset(words)
