"""``paddler-trio template render``: the exact prompt of a conversation."""

from __future__ import annotations

import sys

from paddler_trio.cli.template.template_input import (
    BosOption,
    ContinueOption,
    EosOption,
    GenerationPromptOption,
    KwargsOption,
    MessagesOption,
    ModelOption,
    TemplateOption,
    ThinkingOption,
    ToolsOption,
    read_conversation,
    read_templates,
    take_special_tokens,
)
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.errors import ConfigurationError


def render(
    messages: MessagesOption,
    template: TemplateOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    thinking: ThinkingOption = None,
    kwargs: KwargsOption = None,
    add_generation_prompt: GenerationPromptOption = False,
    continue_final_message: ContinueOption = False,
    bos_token: BosOption = None,
    eos_token: EosOption = None,
) -> None:
    """Print the exact prompt that an agent would give the model, without a newline of ours."""
    with one_line_errors():
        from paddler_trio.language.answers.turns import rendered_prompt
        from paddler_trio.language.templates.conversation import prepare_conversation
        from paddler_trio.language.templates.token_escaping import unescaped

        templates = read_templates(template, model, bos_token=bos_token, eos_token=eos_token)
        conversation = read_conversation(
            messages,
            tools,
            kwargs,
            thinking=thinking,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
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
