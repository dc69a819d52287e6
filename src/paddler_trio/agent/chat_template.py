"""Chat templates rendered as the models saw them in training, that is as Hugging Face does.

A model answers well only to the exact bytes it was trained on, so everything that shapes those
bytes follows ``transformers``: both whitespace trims, loop controls, a ``tojson`` that is plain
``json.dumps`` (insertion order, no HTML escapes, non-ASCII kept), ``strftime_now``,
``raise_exception`` and ``{% generation %}`` blocks, which only matter in training.

Without tools the variable ``tools`` is absent: not defined, none, and an empty sequence. Each of
these is what some templates in use ask for, and an empty list would make those that ask
``tools is not none`` announce tools that do not exist.

A template is a program out of a downloaded file. It runs in Jinja's immutable sandbox, which
also limits ``range()``; what one operation may multiply and what a whole rendering may print is
bounded here.

Source:
  https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paddler_trio.errors import ChatTemplateError

MAX_SOURCE_CHARS = 1024 * 1024
MAX_OUTPUT_CHARS = 16 * 1024 * 1024
_MAX_INTEGER_BITS = 4096

Message = Mapping[str, object]
Tool = Mapping[str, object]


class ChatTemplate:
    """A compiled template. Immutable: any number of threads may render it at the same time."""

    __slots__ = ("_template", "source")

    def __init__(self, template: jinja2.Template, source: str) -> None:
        self._template = template
        self.source = source

    @classmethod
    def compile(
        cls, source: str, *, now: Callable[[], datetime] = lambda: datetime.now().astimezone()
    ) -> ChatTemplate:
        """Compile Jinja ``source``; ``now`` is the clock behind ``strftime_now``, local time.

        Raises:
          ChatTemplateError: not a Jinja template, or longer than ``MAX_SOURCE_CHARS``.
        """
        if len(source) > MAX_SOURCE_CHARS:
            message = f"chat template has {len(source)} characters, the limit is {MAX_SOURCE_CHARS}"
            raise ChatTemplateError(message)
        environment = _BoundedSandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.tests["none"] = lambda value: value is None or isinstance(value, _Absent)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            return cls(environment.from_string(source), source)
        except jinja2.TemplateSyntaxError as error:
            message = f"chat template does not compile: line {error.lineno}: {error.message}"
            raise ChatTemplateError(message) from error
        except Exception as error:
            # Jinja writes Python and compiles that: nesting can also fail in Python's own compiler.
            message = f"chat template does not compile: {type(error).__name__}: {error}"
            raise ChatTemplateError(message) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool,
        enable_thinking: bool | None,
        bos_token: str,
        eos_token: str,
        extra: Mapping[str, object] | None = None,
        max_output_chars: int = MAX_OUTPUT_CHARS,
    ) -> str:
        """The prompt for a conversation, special tokens written out.

        Args:
          messages: in the shape the template expects, usually OpenAI's; handed over as they are.
          tools: function tools; none and an empty sequence mean the same.
          add_generation_prompt: whether to open the assistant's turn.
          enable_thinking: None leaves the variable undefined.
          bos_token: text of the vocabulary's first token, "" if it has none.
          eos_token: the same for its last token.
          extra: further variables; must not name one of the variables above.
          max_output_chars: the longest prompt that is not an error.

        Raises:
          ChatTemplateError: the template refused (``raise_exception``), failed, or printed more
            than ``max_output_chars``. The text is meant for the author of the request.
        """
        variables: dict[str, object] = {
            "messages": messages,
            "tools": tools or _Absent(name="tools"),
            "documents": _Absent(name="documents"),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        for name, value in (extra or {}).items():
            if name in variables or name == "enable_thinking":
                message = f"chat template variable {name!r} is set by the request already"
                raise ChatTemplateError(message)
            variables[name] = value
        pieces: list[str] = []
        output_chars = 0
        try:
            for piece in self._template.generate(variables):
                output_chars += len(piece)
                if output_chars > max_output_chars:
                    break
                pieces.append(piece)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template: {error.message}") from error
        except Exception as error:
            # The template is somebody's program: it may raise whatever Python can.
            message = f"chat template: {type(error).__name__}: {error}"
            raise ChatTemplateError(message) from error
        if output_chars > max_output_chars:
            message = f"chat template printed more than {max_output_chars} characters"
            raise ChatTemplateError(message)
        return "".join(pieces)


class _Absent(jinja2.Undefined):
    """Undefined to ``is defined``, none to ``is none`` and ``== none``, empty to a loop."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, _Absent)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(None)


class _BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which one multiplication cannot fill the memory either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if _result_is_too_large(operator, left, right):
            raise SecurityError(f"result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


def _result_is_too_large(operator: str, left: object, right: object) -> bool:
    match left, right:
        case (int(), int()) if operator == "**":
            return left.bit_length() * max(right, 0) > _MAX_INTEGER_BITS
        case (int(), int()):
            return left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS
        case (str() | list() | tuple() as items, int(times)) | (
            int(times),
            str() | list() | tuple() as items,
        ):
            return len(items) * times > MAX_OUTPUT_CHARS
        case _:
            return False


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what is trained on; for a prompt it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it as a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Positional as well as named, since templates use both.
    return json.dumps(
        None if isinstance(value, _Absent) else value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
