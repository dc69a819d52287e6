"""Code that a model writes where a call might stand: it calls the tool that runs code.

Llama 3 and Functionary write ``print(1)`` behind ``<|python_tag|>``, gpt-oss in a message to
``python``. The code is the argument ``code``, unless that tool has another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from paddler_trio.language.answers.call_events import Emit, NotACallError, ToolSchemas
from paddler_trio.language.answers.read_tagged import ArgumentsWriter
from paddler_trio.language.answers.text_source import MAX_NAME_CHARS, Reading, Source, stops_of
from paddler_trio.language.answers.typed_values import TextValue

CODE_TOOLS = ("python", "ipython", "code_interpreter")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_BEGUN_ARGUMENT = re.compile(r"(?:[A-Za-z_]\w*)?\s*=?")
_NAMED_ARGUMENT = re.compile(r"\)|[A-Za-z_]\w*\s*=(?!=)")


def code_tool_of(schemas: ToolSchemas, default: str) -> str:
    """The tool that runs code: one of those that were offered, else the family's own."""
    return next((name for name in (default, *CODE_TOOLS) if name in schemas), default)


def is_code(source: Source, schemas: ToolSchemas) -> Reading[bool]:
    """Whether the section that begins here is code, and no call; nothing but blanks is taken.

    Without ``schemas`` a call is recognised by its named arguments.
    """
    while True:
        char = yield from source.skip_blank()
        there = source.rest[: 2 * MAX_NAME_CHARS]
        word = _NAME.match(there)
        if char == "" or char in "{[<" or (yield from source.starts_with("```json")) is not None:
            return False
        if word is None:
            return True
        name, after = word.group(), there[word.end() :].lstrip()
        is_known = name in schemas or name.endswith(".call")
        arguments = after[1:].lstrip()
        is_all_there = source.ended or len(there) == 2 * MAX_NAME_CHARS
        if after and not after.startswith("("):
            return not is_known
        if after and (is_known or schemas):
            return not is_known
        if is_all_there or (after and not _BEGUN_ARGUMENT.fullmatch(arguments)):
            return not source.is_cut_off and _NAMED_ARGUMENT.match(arguments) is None
        yield


def read_code_call(source: Source, name: str, schemas: ToolSchemas, emit: Emit) -> Reading[None]:
    """A call of the tool ``name`` with everything that is left; blanks before it were taken.

    Raises:
      NotACallError: it was cut off.
    """
    writer = ArgumentsWriter(name, emit)
    writer.begin_pair(_argument_of(schemas.get(name, {})))
    code = TextValue(writer.grow, may_be_laid_out=False)
    yield from source.take_until(stops_of(), code.feed)
    if source.is_cut_off:
        raise NotACallError("the code does not end")
    code.end()
    writer.end()


def _argument_of(schema: Mapping[str, object]) -> str:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) == 1:
        return str(next(iter(properties)))
    return "code"
