"""The arguments of a tool call are held to the tool's JSON Schema.

Tools are untrusted input, and arguments are validated in the agent's event loop, so validation is
bounded: schemas in size, and each validation in the references it follows and the comparisons it
makes. References out of the schema lead nowhere, and are never fetched. What rests on regular
expressions (``pattern``, ``patternProperties``, ``unevaluated...``) is accepted but not validated:
the dialect is not Python's, and Python's have no bound in time. Whether the items of a long array
are unique is not validated either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeAlias, cast

import attrs
from jsonschema import (
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from paddler_trio.errors import PaddlerError, shortened
from paddler_trio.wire.json_schema import lawful_schema

MAX_SCHEMA_CHARS = 256 * 1024
MAX_REFERENCES = 10_000
MAX_NESTED_RULES = 200
"""Of keywords that are applied inside each other, three frames of Python each. At the interpreter's
own limit the ``RecursionError`` may be raised inside a map that is written in Rust: a panic."""
MAX_COMPARISONS = 5_000_000
"""Of values, in one validation, about 0.1 s; 2000 objects of two typed fields take a million."""
MAX_UNIQUE_ITEMS = 256
MAX_UNIQUE_VALUES = 2048
"""Of all values in the items together, at any depth: each may be compared with every item."""
MAX_FINDINGS = 8
_MAX_FINDING_CHARS = 300

JsonSchema: TypeAlias = Mapping[str, object]
_Rule: TypeAlias = Callable[[Validator, object, object, JsonSchema], Iterator[ValidationError]]

_NOT_CHECKED = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties")
_CHOICES = ("allOf", "anyOf", "oneOf")
_RULE_COMPARISONS, _CHOICE_COMPARISONS = 100, 400
"""What applying one keyword, and one alternative, costs beside what it compares."""
_VALUE_COMPARISONS = 10
"""What comparing a value with another, or writing it into an error, costs."""
_WRITTEN_CHARS = 64
"""So many characters of a text are written into an error in the time of one value."""
_TOO_MANY_REFERENCES = f"schema follows more than {MAX_REFERENCES} references"
_TOO_MANY_COMPARISONS = f"schema takes more than {MAX_COMPARISONS} comparisons to judge this"


class ToolSchemaError(PaddlerError):
    """A tool is not a function with a usable JSON Schema; ``tool`` names it, as far as known."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(shortened(f"tool {tool!r}: {reason}"))
        self.tool = tool


class ToolSchema:
    """One tool's schema, checked once and applied any number of times.

    Plain data inside: it is checked in one process and applied in another.
    """

    def __init__(self, tool: str, schema: JsonSchema) -> None:
        """Read ``schema``, the ``parameters`` of the function called ``tool``.

        What is no JSON Schema in it judges nothing.

        Raises:
          ToolSchemaError: too large, or nested too deeply.
        """
        self._tool = tool
        try:
            size_chars = len(json.dumps(schema, ensure_ascii=False))
            if size_chars > MAX_SCHEMA_CHARS:
                reason = f"schema of {size_chars} characters, the limit is {MAX_SCHEMA_CHARS}"
                raise ToolSchemaError(tool, reason)
            self._schema = lawful_schema(schema).schema
        except RecursionError as error:
            raise ToolSchemaError(tool, "schema is nested too deeply") from error

    def findings(self, arguments: Mapping[str, object]) -> list[str]:
        """Return what is wrong with ``arguments``, at most ``MAX_FINDINGS`` messages; empty
        means fine."""
        findings: list[str] = []
        before = _WORK.set(_Work())
        try:
            validator = _bounded()(self._schema, registry=EMPTY_REGISTRY)
            for error in validator.iter_errors(cast("Mapping[str, Any]", arguments)):
                findings.append(self._finding(f"{error.json_path}: {error.message}"))
                if len(findings) == MAX_FINDINGS:
                    break
        except RecursionError:
            findings.append(self._finding(_TOO_MANY_REFERENCES))
        except _LimitError as error:
            findings.append(self._finding(str(error)))
        except Unresolvable as error:
            findings.append(self._finding(f"schema: $ref: {error.ref!r} does not exist"))
        except Exception as error:  # noqa: BLE001  # the library raises anything where $ref leads
            reason = f"{type(error).__name__}: {error}"
            findings.append(self._finding(f"schema cannot be applied: {reason}"))
        finally:
            _WORK.reset(before)
        return findings

    def _finding(self, text: str) -> str:
        return _shorten(f"tool {self._tool!r}: {text}")


@attrs.define
class _Work:
    """A validation has done so much so far."""

    references: int = 0
    comparisons: int = 0
    depth: int = 0

    def spend(self, comparisons: int) -> None:
        self.comparisons += comparisons
        if self.comparisons > MAX_COMPARISONS:
            raise _LimitError(_TOO_MANY_COMPARISONS)


_WORK: ContextVar[_Work] = ContextVar("_WORK")
"""Of the validation that runs here: all validations share their rules."""


@cache
def _bounded() -> type[Validator]:
    """JSON Schema 2020-12 with its work counted and regular expressions passed over.

    Making the class takes many times as long as judging a usual call with it.
    """
    rules = dict(cast("Mapping[str, _Rule]", Draft202012Validator.VALIDATORS))
    for keyword in filter(rules.__contains__, _NOT_CHECKED):
        rules[keyword] = _where(lambda *_: False, rules[keyword])
    # A property that only a pattern allows must not be refused as an additional one.
    rules["additionalProperties"] = _where(
        lambda _, schema: "patternProperties" not in schema, rules["additionalProperties"]
    )
    if "uniqueItems" in rules:  # every item of an array may be compared with every other
        rules["uniqueItems"] = _where(
            lambda instance, _: _are_few(instance, _weight(instance)), rules["uniqueItems"]
        )
    limited = {keyword: _limited(keyword, rule) for keyword, rule in rules.items()}
    return cast("type[Validator]", extend(Draft202012Validator, limited))  # type: ignore[no-untyped-call]


def _limited(keyword: str, check: _Rule) -> _Rule:
    each = _CHOICE_COMPARISONS if keyword in _CHOICES else 1

    def rule(
        validator: Validator, value: object, instance: object, schema: JsonSchema
    ) -> Iterator[ValidationError]:
        work = _WORK.get()
        work.spend(_RULE_COMPARISONS + each * _size(value) + _size(instance))
        work.spend(_VALUE_COMPARISONS * _compared(keyword, value, instance))
        work.references += keyword == "$ref"
        if work.references > MAX_REFERENCES or work.depth == MAX_NESTED_RULES:
            raise _LimitError(_TOO_MANY_REFERENCES)
        work.depth += 1
        try:
            for error in check(validator, value, instance, schema):
                if not isinstance(error.validator, str):  # of this rule, not of one inside it
                    written = _weight(value) + _weight(instance)
                    work.spend(_VALUE_COMPARISONS * written)
                yield error
        finally:
            work.depth -= 1

    return rule


class _LimitError(Exception):
    """One validation took more than it may; never leaves this file."""


def _size(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _compared(keyword: str, value: object, instance: object) -> int:
    """Return how many values, at any depth, a keyword that compares whole values compares at
    most."""
    if keyword == "uniqueItems":
        weight = _weight(instance)
        return weight + (_size(instance) * weight // 2 if _are_few(instance, weight) else 0)
    if keyword == "enum":
        times = _size(value)
    elif keyword == "const":
        times = 1
    else:
        return 0
    if not isinstance(instance, list | dict):
        return times
    return times + min(_weight(value), times * _weight(instance))


def _are_few(items: object, weight: int) -> bool:
    """Return whether each item may be compared with every other."""
    return _size(items) <= MAX_UNIQUE_ITEMS and weight <= MAX_UNIQUE_VALUES


def _weight(value: object) -> int:
    """Return how many values there are inside, at any depth, a long text as several."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        total += 1
        if isinstance(each, str):
            total += len(each) // _WRITTEN_CHARS
        elif isinstance(each, dict):
            waiting += each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return total


def _where(applies: Callable[[object, JsonSchema], bool], check: _Rule) -> _Rule:
    """``check`` for those instances and schemas that it ``applies`` to."""

    def rule(
        validator: Validator, value: object, instance: object, schema: JsonSchema
    ) -> Iterator[ValidationError]:
        if applies(instance, schema):
            yield from check(validator, value, instance, schema)

    return rule


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_FINDING_CHARS else f"{text[:_MAX_FINDING_CHARS]} ..."
