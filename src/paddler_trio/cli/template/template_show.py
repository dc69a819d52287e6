"""``paddler-trio template show``: the markers and the tool-call format that a template implies."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.template.template_input import TemplateFlags, read_templates
from paddler_trio.cli.terminal import one_line_errors

if TYPE_CHECKING:
    from paddler_trio.language.answers.model_format import CallFormat
    from paddler_trio.language.templates.conversation import ModelTemplate, ModelTemplates


@with_flags
def show(*, template: TemplateFlags) -> None:
    """Print what was found out about a template, as JSON; each named template has its own entry."""
    with one_line_errors():
        templates = read_templates(template)
        shown = {"default": _description(templates.default, templates)}
        for name, named in templates.named.items():
            shown[name] = _description(named, templates)
        text = json.dumps(shown, ensure_ascii=False, indent=2)
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


def _description(chosen: ModelTemplate, templates: ModelTemplates) -> dict[str, object]:
    from paddler_trio.language.answers.format_detection import format_of
    from paddler_trio.language.answers.turns import turn_ends_of

    form = format_of(chosen.template)
    return {
        "format": form.name,
        "reasoning": {"open": form.reasoning_open, "close": form.reasoning_close},
        "tool_calls": None if form.calls is None else _calls(form.calls),
        "content_marks": list(form.content_marks),
        "turn_ends": turn_ends_of(chosen.template, form, eos_token=templates.eos_token),
    }


def _calls(calls: CallFormat) -> dict[str, object]:
    import attrs

    return {
        "open": calls.opener,
        "close": calls.closer,
        "one_a_section": calls.one_a_section,
        "between": calls.between,
        "name_in_header": calls.in_header,
        "syntax": {"kind": type(calls.syntax).__name__, **attrs.asdict(calls.syntax)},
    }
