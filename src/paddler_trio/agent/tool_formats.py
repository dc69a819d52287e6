"""How models write a tool call down: the text of one section, read as names and arguments.

The section tells its format itself, so no model family has to be known:

    {"name": "f", "arguments": {...}}                               Hermes, Qwen; also in a list
    <function=f><parameter=key>value</parameter></function>         Qwen Coder
    f<arg_key>key</arg_key><arg_value>value</arg_value>             GLM
    f[ARGS]{...}                                                    Mistral

Calls are read one after the other. What is no call is handed back as a ``Remainder``, never
dropped, so one broken call does not cost its siblings. Every text in a call can be sent as UTF-8
and every number is finite, although JSON can say otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias

import attrs

Arguments: TypeAlias = "dict[str, object] | str"
"""A JSON object, or the raw text where the model wrote none."""

ToolSchemas: TypeAlias = Mapping[str, Mapping[str, object]]
"""JSON Schema of the parameters by tool name; an empty one says nothing."""


@attrs.frozen
class WrittenCall:
    """A call as the model wrote it, not yet judged."""

    name: str
    arguments: Arguments


@attrs.frozen
class Remainder:
    """Text that is no call in any known format, and why."""

    text: str
    message: str


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_NAME = re.compile(r"([\w.:-]+)\s*(?=<arg_key>)")
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_MISTRAL_NAME = re.compile(r"([\w.:-]+)(?:\[CALL_ID\][\w-]+)?\[ARGS\]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def read_calls(section: str, schemas: ToolSchemas) -> list[WrittenCall | Remainder]:
    """Everything in a section, in order.

    Args:
      section: the text between the markers of tool calls.
      schemas: decide whether a value written without quotes is a text or JSON.

    Raises:
      RecursionError: nested deeper than the interpreter follows.
    """
    calls: list[WrittenCall | Remainder] = []
    rest = section.strip()
    while rest:
        try:
            found, end = _read_first(rest, schemas)
        except ValueError as error:
            calls.append(Remainder(rest, str(error)))
            return calls
        calls.extend(found)
        rest = rest[end:].lstrip(" \t\r\n,;")
    return calls


def _read_first(text: str, schemas: ToolSchemas) -> tuple[Sequence[WrittenCall | Remainder], int]:
    """The call, or list of calls, at the start of ``text`` and where it ends."""
    if text[0] in "{[":
        value, end = _read_json(text)
        items = value if isinstance(value, list) else [value]
        return [_call_from_json(item) for item in items], end
    if function := _FUNCTION.match(text):
        name = function[1]
        pairs = _PARAMETER.findall(function[2])
        return [WrittenCall(name, _typed(pairs, schemas.get(name, {})))], function.end()
    if mistral := _MISTRAL_NAME.match(text):
        value, end = _read_json(text, mistral.end())
        return [WrittenCall(mistral[1], _arguments_from(value))], end
    if glm := _GLM_NAME.match(text):
        pairs, end = [], glm.end()
        while argument := _GLM_ARGUMENT.match(text, end):
            pairs.append((argument[1].strip(), argument[2]))
            end = argument.end()
        if pairs:
            return [WrittenCall(glm[1], _typed(pairs, schemas.get(glm[1], {})))], end
    raise ValueError("no known format of tool calls")


def _read_json(text: str, start: int = 0) -> tuple[object, int]:
    """The JSON value at ``start`` and where it ends; every text in it can be sent as UTF-8."""
    value: object
    value, end = _JSON.raw_decode(text, start)
    if "\\u" in text[start:end]:  # only escapes can bring half a character
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


def _call_from_json(item: object) -> WrittenCall | Remainder:
    # Some models nest the call as the OpenAI API does.
    inner = item.get("function") if isinstance(item, dict) else None
    call = inner if isinstance(inner, dict) else item
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(name, str) or not name:
        text = json.dumps(item, ensure_ascii=False)
        return Remainder(text, "a tool call is a JSON object with its tool in the field 'name'")
    return WrittenCall(name, _arguments_from(call.get("arguments", call.get("parameters"))))


def _arguments_from(value: object) -> Arguments:
    """Objects stay, nothing means none, and JSON inside a string is opened, as OpenAI writes it."""
    if isinstance(value, str):
        try:
            inner, end = _read_json(value.strip())
        except ValueError:
            return value
        return inner if isinstance(inner, dict) and end == len(value.strip()) else value
    if value is None:
        return {}
    return value if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)


def _typed(pairs: list[tuple[str, str]], schema: Mapping[str, object]) -> dict[str, object]:
    """Values of the tag formats: JSON where it is JSON, except for what has to be a string."""
    properties = schema.get("properties")
    arguments: dict[str, object] = {}
    for key, text in pairs:
        rules = properties.get(key) if isinstance(properties, Mapping) else None
        wanted = rules.get("type") if isinstance(rules, Mapping) else None
        arguments[key] = text
        if wanted != "string":
            try:
                value, end = _read_json(text.strip())
            except ValueError:
                continue  # a text without quotes, which these formats allow
            arguments[key] = value if end == len(text.strip()) else text
    return arguments
