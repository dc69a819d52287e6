"""Calls as a format says that they are written: what readers are tested with, whatever family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from answer_cases import CASES
from test_families import format_of_case

from llama_source import template_names, template_text
from paddler_trio.language.answers.call_syntax import (
    CallSyntax,
    JsonCalls,
    NamedJson,
    NestedTags,
    PythonCalls,
    QuotedObjects,
    TaggedCalls,
)
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.templates.conversation import ModelTemplate

Call = tuple[str, Mapping[str, object]]
Slipping = Callable[[str, CallSyntax], str]


@cache
def all_formats() -> tuple[ModelFormat, ...]:
    """Return the formats of llama.cpp's templates and of all families, each way to call once."""
    forms = [format_of_case(case) for case in CASES]
    for name in template_names():
        forms.append(format_of(ModelTemplate.compile(template_text(name)).template))
    return tuple({form.calls: form for form in forms if form.calls is not None}.values())


SYNTAXES = (JsonCalls, NamedJson, NestedTags, PythonCalls, QuotedObjects, TaggedCalls)
"""Their kinds of syntax, known without reading seventy templates: tests are named by them."""


def formats_of(syntax: type[CallSyntax]) -> list[ModelFormat]:
    """Return those of :func:`all_formats` whose calls are of this kind."""
    return [form for form in all_formats() if form.calls and isinstance(form.calls.syntax, syntax)]


def answer_of(form: ModelFormat, calls: Sequence[Call], slip: Slipping | None = None) -> str:
    """Return an answer that makes these calls; each is written as ``slip`` has it."""
    assert form.calls is not None
    shape, syntax = form.calls, form.calls.syntax
    bodies = [_body(syntax, shape, number, *call) for number, call in enumerate(calls)]
    if slip is not None:
        bodies = [slip(body, syntax) for body in bodies]
    opening, closing = shape.opener[: len(shape.opener) - shape.kept], shape.closer
    between = shape.between
    if isinstance(syntax, JsonCalls):
        opening, closing = opening + syntax.before, syntax.after + closing
    if isinstance(syntax, PythonCalls) and syntax.in_list:
        opening, closing = f"{opening}[", f"]{closing}"
    if shape.in_header:
        opening = ""
    if shape.one_a_section or shape.in_header:
        return between.join(f"{opening}{body}{closing}" for body in bodies)
    in_list = isinstance(syntax, JsonCalls | PythonCalls) and syntax.in_list
    return opening + ((between or ", ") if in_list else between).join(bodies) + closing


def _body(
    syntax: CallSyntax, shape: CallFormat, number: int, name: str, arguments: Mapping[str, object]
) -> str:
    own_id = f"abcdefg{number:02}"
    text = json.dumps(arguments, ensure_ascii=False)
    header = f"{shape.opener}{name}{shape.after_header_name}" if shape.in_header else ""
    match syntax:
        case JsonCalls(name_is_key=True):
            body = json.dumps({name: arguments}, ensure_ascii=False)
        case JsonCalls():
            fields = {syntax.name_key: name, syntax.arguments_key: arguments}
            ids = {} if syntax.id_key is None else {syntax.id_key: own_id}
            fields = {**ids, **fields} if syntax.id_comes_first else {**fields, **ids}
            body = json.dumps(fields, ensure_ascii=False)
        case NamedJson(header_names=True):
            body = text
        case NamedJson():
            mark = syntax.id_mark
            first = f"{own_id}{mark}" if mark and syntax.id_comes_first else ""
            then = f"{mark}{own_id}" if mark and not syntax.id_comes_first else ""
            index = f"{syntax.index_mark}{number}" if syntax.index_mark else ""
            head = f"{syntax.before_name}{first}{syntax.name_prefix}{name}{index}{then}"
            body = f"{head}{syntax.after_name}{text}{syntax.after_arguments}"
        case TaggedCalls():
            pairs = "".join(_argument(syntax, *pair) for pair in arguments.items())
            head = f"{syntax.before_name}{name}{syntax.name_end}{syntax.head_end}{syntax.blank}"
            body = f"{head}{pairs}{syntax.call_end}"
        case NestedTags(mark=mark):
            tags = (f"{mark}<{k}>{_bare(v)}{mark}</{k}>" for k, v in arguments.items())
            body = f'{mark}<invoke name="{name}">{"".join(tags)}{mark}</invoke>'
        case PythonCalls():
            values = (f"{key}={value!r}" for key, value in arguments.items())
            body = f"{name}{syntax.after_name}({', '.join(values)})"
        case QuotedObjects(quote=quote):
            quoted = (
                f"{key}:{quote}{value}{quote}"
                if isinstance(value, str)
                else f"{key}:{_bare(value)}"
                for key, value in arguments.items()
            )
            body = f"{syntax.before_name}{name}{{{','.join(quoted)}}}"
    return header + body


def _argument(syntax: TaggedCalls, key: str, value: object) -> str:
    attribute = ""
    if syntax.text_attribute == "type":
        attribute = f' type="{"string" if isinstance(value, str) else "object"}"'
    elif syntax.text_attribute:
        attribute = f' {syntax.text_attribute}="{"true" if isinstance(value, str) else "false"}"'
    text = json.dumps(value, ensure_ascii=False) if syntax.quoted else _bare(value)
    blank = syntax.value_blank
    head = f"{syntax.before_key}{key}{syntax.key_end}{attribute}{syntax.before_value}"
    return f"{head}{blank}{text}{blank}{syntax.value_end}{syntax.blank}"


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
