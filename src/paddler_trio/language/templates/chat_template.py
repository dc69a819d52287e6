"""Chat templates rendered as the models saw them in training, that is as Hugging Face does.

A model answers well only to the exact bytes it was trained on, so everything that shapes those
bytes follows ``transformers``: both whitespace trims, loop controls, a ``tojson`` that is plain
``json.dumps`` (insertion order, no HTML escapes, non-ASCII kept), ``strftime_now``,
``raise_exception`` and ``{% generation %}`` blocks, which only matter in training.

Without tools the variable ``tools`` is absent: not defined, none, and an empty sequence; so are
``documents``. Each of these is what some templates in use ask for, and an empty list would make
those that ask ``tools is not none`` announce tools that do not exist.

What keeps a template from doing harm is in :mod:`paddler_trio.language.templates.sandbox`.

Source:
  https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import attrs
import jinja2
import jinja2.meta

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.render_limits import (
    MAX_SPENT_CHARS,
    MAX_TEXT_CHARS,
    METER,
    Absent,
    Meter,
)
from paddler_trio.language.templates.sandbox import TemplateSandbox

MAX_SOURCE_CHARS = 256 * 1024
"""Ten times the longest template in use; compiling that much takes seconds."""
MAX_OUTPUT_CHARS = MAX_TEXT_CHARS
MAX_RENDER_S = 5.0
"""Processor time of one rendering. A conversation of 100 kB takes a few milliseconds; where a
template looks at all messages for each of them, a thousand messages take a second."""
RESERVED_VARIABLES = frozenset(
    {"add_generation_prompt", "bos_token", "documents", "eos_token", "messages", "tools"}
)
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
"""Variables that llama.cpp gives every template; without them some print a date that is years old,
or none."""
_CONTINUE_HERE = "CONTINUE_FINAL_MESSAGE_TAG "
_JINJAS_NAME = "<template>"
"""What Jinja calls a template that came from no file."""

Message = Mapping[str, object]
Tool = Mapping[str, object]
Variables = Mapping[str, object]


@attrs.frozen(eq=False)
class ChatTemplate:
    """A compiled template. Immutable: any number of threads may render it at the same time.

    ``variables`` are the names it reads and does not always set itself.
    """

    _template: jinja2.Template
    _date: Callable[[str], str]
    source: str
    variables: frozenset[str] = frozenset()

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
        # Without a time zone, as in training: the few templates that print one print nothing.

        def date(form: str) -> str:
            return now().replace(tzinfo=None).strftime(form)

        sandbox = TemplateSandbox(date)
        try:
            tree = sandbox.parse(source)
            variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
            template = sandbox.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            message = f"chat template does not compile: line {error.lineno}: {error.message}"
            raise ChatTemplateError(message, line=error.lineno) from error
        except Exception as error:
            # Jinja writes Python and compiles that: nesting can also fail in Python's own compiler.
            message = f"chat template does not compile: {type(error).__name__}: {error}"
            raise ChatTemplateError(message) from error
        return cls(template, date, source, variables)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        documents: Sequence[Message] | None = None,
        add_generation_prompt: bool,
        enable_thinking: bool | None = None,
        bos_token: str,
        eos_token: str,
        extra: Variables | None = None,
        max_output_chars: int = MAX_OUTPUT_CHARS,
        max_render_s: float = MAX_RENDER_S,
    ) -> str:
        """The prompt for a conversation, special tokens written out.

        Args:
          messages: in the shape the template expects, usually OpenAI's; handed over as they are.
          tools: function tools, like ``documents`` for retrieval none or an empty sequence alike.
          add_generation_prompt: open the assistant's turn.
          enable_thinking: None leaves the variable undefined.
          bos_token: text of the vocabulary's first token, "" if it has none.
          eos_token: the same for its last token.
          extra: further variables; must not name one of the variables above.
          max_output_chars: the longest prompt that is not an error.
          max_render_s: processor seconds after which it is one.

        Raises:
          ChatTemplateError: the template refused (``raise_exception``), failed, printed or took
            more than it may. The text is meant for the author of the request.
        """
        variables = self._variables(
            {
                "messages": messages,
                "tools": tools or Absent(name="tools"),
                "documents": documents or Absent(name="documents"),
                "add_generation_prompt": add_generation_prompt,
                "bos_token": bos_token,
                "eos_token": eos_token,
            },
            enable_thinking,
            extra or {},
        )
        limits = Meter(
            limit_s=max_render_s, limit_chars=MAX_SPENT_CHARS, given=(messages, tools, documents)
        )
        meter = METER.set(limits)
        try:
            return self._printed(variables, max_output_chars)
        except jinja2.TemplateError as error:
            message = f"chat template: {error.message}"
            raise ChatTemplateError(message, line=_line_of(error)) from error
        except ChatTemplateError:
            raise
        except Exception as error:
            # A template is a foreign program: it may raise whatever Python can.
            message = f"chat template: {type(error).__name__}: {error}"
            raise ChatTemplateError(message, line=_line_of(error)) from error
        finally:
            METER.reset(meter)

    def _printed(self, variables: Variables, limit: int) -> str:
        """Return what the template prints, if that is no more than ``limit`` characters."""
        pieces: list[str] = []
        output_chars = 0
        for piece in self._template.generate(variables):
            output_chars += len(piece)
            if output_chars > limit:
                raise ChatTemplateError(f"chat template printed more than {limit} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _variables(
        self,
        own: Variables,
        enable_thinking: bool | None,
        extra: Variables,
    ) -> Variables:
        """Return everything that the template may read; ChatTemplateError for a name twice."""
        variables = dict(own)
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        for name, value in extra.items():
            if name in variables or name == "enable_thinking":
                message = f"chat template variable {name!r} is set by the request already"
                raise ChatTemplateError(message)
            variables[name] = value
        for name in _DATES.keys() & self.variables - variables.keys():
            variables[name] = self._date(_DATES[name])
        return variables


def open_ended(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str:
    """The prompt cut off after the last message, so that the answer goes on with it.

    As Hugging Face finds the place: a tag is put behind the message's content, and the prompt ends
    where the tag comes out. If the template trims contents, the end is trimmed too.

    Args:
      render: the template with everything but the messages; no generation prompt.

    Raises:
      ChatTemplateError: the last message has no text to go on with, or does not come out.
    """
    last = messages[-1] if messages else {}
    content = last.get("content")
    final = ""
    tagged: object = None
    if isinstance(content, str):
        final, tagged = content, content + _CONTINUE_HERE
    elif isinstance(content, Sequence):
        final, tagged = _tag_last_text(content)
    if tagged is None:
        raise ChatTemplateError(
            f"continue_final_message: messages[{len(messages) - 1}].content has no text to continue"
        )
    rendered = render([*messages[:-1], {**last, "content": tagged}])
    tag = _CONTINUE_HERE.strip()
    if tag not in rendered or final.strip() not in rendered:
        raise ChatTemplateError(
            "continue_final_message: the template does not print the last message as it is"
        )
    end = rendered.rindex(tag)
    if rendered.startswith(_CONTINUE_HERE, end):
        return rendered[:end]
    return rendered[:end].rstrip()


def _line_of(error: BaseException) -> int | None:
    """The line of the template in which it was raised, the innermost one; Jinja has put the lines
    of the template into the traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _JINJAS_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _tag_last_text(parts: Sequence[object]) -> tuple[str, object]:
    for index, part in reversed([*enumerate(parts)]):
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text = part["text"]
            tagged = {**part, "text": text + _CONTINUE_HERE}
            return text, [*parts[:index], tagged, *parts[index + 1 :]]
    return "", None
