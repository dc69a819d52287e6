"""Tools, calls and results as plain text, for templates that cannot express them.

A model whose way of calling is known from its template reads and writes that way here too. Any
other is told to write a line of JSON, ``{"name": ..., "arguments": {...}}``: that is what the
answer is read for, and what a grammar forces where a call is required.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paddler_trio.language.answers.call_syntax import JsonCalls, NamedJson, PythonCalls
from paddler_trio.language.answers.model_format import CallFormat

_GENERIC = CallFormat("", JsonCalls())


def written_call(name: str, arguments: object, form: CallFormat | None = None) -> str:
    """One call as the model would write it; arguments that are no object stay the text they are."""
    members = _object_in(arguments)
    text = str(arguments) if members is None else json.dumps(members, ensure_ascii=False)
    match (_GENERIC if form is None or form.in_header else form).syntax:
        case JsonCalls(name_is_key=True) as syntax:
            call = f"{{{_quoted(name)}: {text}}}"
        case JsonCalls() as syntax:
            keys = _quoted(syntax.name_key), _quoted(syntax.arguments_key)
            call = f"{{{keys[0]}: {_quoted(name)}, {keys[1]}: {text}}}"
        case NamedJson(header_names=False) as syntax:
            decorated = f"{syntax.name_prefix}{name}{syntax.index_mark and f'{syntax.index_mark}0'}"
            head = f"{syntax.before_name}{decorated}{syntax.after_name}"
            call = f"{head}{text}{syntax.after_arguments}"
        case PythonCalls() as syntax if members is not None:
            values = ", ".join(f"{key}={_literal(value)}" for key, value in members.items())
            call = f"{name}{syntax.after_name}({values})"
        case _:
            return written_call(name, arguments)
    if form is None or form.in_header:
        return call
    if isinstance(syntax, JsonCalls):
        call = f"{syntax.before}{call}{syntax.after}"
    if isinstance(syntax, JsonCalls | PythonCalls) and syntax.in_list:
        call = f"[{call}]"
    return f"{form.opener}{call}{form.closer}"


def result_in_words(name: object, text: str) -> str:
    """The result of a call as a user would report it."""
    of = f" of {name}" if isinstance(name, str) and name else ""
    return f"Result{of}:\n{text}"


def tools_in_words(tools: Sequence[Mapping[str, object]], form: CallFormat | None = None) -> str:
    """Return what a system message says of the tools, one a line, and of the way to call one."""
    lines = [json.dumps(tool.get("function"), ensure_ascii=False) for tool in tools]
    example = written_call("NAME_OF_THE_TOOL", {"NAME_OF_AN_ARGUMENT": "VALUE"}, form)
    return "\n".join(
        [
            "You can call tools. Each line describes one of them:",
            *lines,
            "To call a tool, write nothing but this, with its name and its arguments as JSON:",
            example,
            "You are told the result in the next turn.",
        ]
    )


def _literal(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _object_in(arguments: object) -> Mapping[str, object] | None:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments.strip() or "{}")
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, Mapping) else None
