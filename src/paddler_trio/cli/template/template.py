"""``paddler-trio template``: see what a chat template does, without a fleet."""

from __future__ import annotations

import sys

import typer

from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.template import template_parse, template_show
from paddler_trio.cli.template.template_input import (
    ConversationFlags,
    GenerationPromptOption,
    MessagesOption,
    TemplateFlags,
    read_conversation,
    read_templates,
    take_special_tokens,
)
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.errors import ConfigurationError


@with_flags
def render(
    *,
    messages: MessagesOption,
    template: TemplateFlags,
    asked: ConversationFlags,
    add_generation_prompt: GenerationPromptOption = False,
) -> None:
    """Print the exact prompt that an agent would give the model, without a newline of ours."""
    with one_line_errors():
        from paddler_trio.language.answers.turns import rendered_prompt
        from paddler_trio.language.templates.conversation import prepare_conversation
        from paddler_trio.language.templates.token_escaping import unescaped

        templates = read_templates(template)
        conversation = read_conversation(
            messages, asked, add_generation_prompt=add_generation_prompt
        )
        conversation, templates = take_special_tokens(conversation, templates)
        prepared = prepare_conversation(conversation, templates)
        prompt = unescaped(rendered_prompt(conversation, prepared)[0])
        try:
            data = prompt.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the prompt has a lone surrogate at character {error.start}, which is no character"
            ) from error
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


template = typer.Typer(
    no_args_is_help=True, help="See what a chat template makes of a conversation."
)
template.command("render")(render)
template.command("parse")(template_parse.parse)
template.command("show")(template_show.show)
