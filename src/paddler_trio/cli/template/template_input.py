"""The input of the ``template`` commands: a template, and a conversation to render with it.

The commands read files and go the same way as an agent from there on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.setting import Setting

if TYPE_CHECKING:
    from paddler_trio.language.templates.conversation import ModelTemplates
    from paddler_trio.wire.trio.work import ConversationPrompt

STDIN = "-"
ANY_MESSAGES: list[dict[str, object]] = [{"role": "user", "content": "Hello."}]
"""The conversation of somebody who gave none."""

MessagesOption = Annotated[
    str,
    typer.Option(
        "--messages",
        metavar="FILE",
        help="JSON array of messages in OpenAI's shape, or an object with `messages` and perhaps "
        "`tools`; - reads standard input.",
    ),
]
OptionalMessagesOption = Annotated[
    str | None,
    typer.Option(
        "--messages",
        metavar="FILE",
        help="JSON array of messages in OpenAI's shape, or an object with `messages` and perhaps "
        "`tools`.",
        show_default="one turn of a user",
    ),
]
GenerationPromptOption = Annotated[
    bool,
    typer.Option(
        "--add-generation-prompt/--no-add-generation-prompt",
        help="Open the assistant's turn at the end.",
    ),
]


@attrs.frozen(kw_only=True)
class TemplateFlags:
    """The template, and the special tokens that it writes."""

    template: Annotated[
        str | None, Setting("Jinja file; - reads standard input.", metavar="FILE")
    ] = None
    model: Annotated[
        Path | None,
        Setting(
            "GGUF file whose template, special tokens and vocabulary to use. With --template, "
            "that template takes the place of the file's, as an override does."
        ),
    ] = None
    bos_token: Annotated[
        str | None,
        Setting("Text of the vocabulary's first token.", unset="the model's, else none"),
    ] = None
    eos_token: Annotated[
        str | None,
        Setting("Text of the vocabulary's last token.", unset="the model's, else none"),
    ] = None


@attrs.frozen(kw_only=True)
class ConversationFlags:
    """The variables of a template beside the messages."""

    tools: Annotated[
        str | None, Setting("JSON array of tools in OpenAI's shape.", metavar="FILE")
    ] = None
    thinking: Annotated[
        bool | None,
        Setting(
            "Switch the model's thinking, if its template can.",
            flag="--thinking/--no-thinking",
            unset="as the template wants it",
        ),
    ] = None
    kwargs: Annotated[
        str | None,
        Setting(
            "JSON object with further template variables, such as `documents`.", metavar="FILE"
        ),
    ] = None
    continue_final_message: Annotated[
        bool,
        Setting("End inside the last message, the assistant's, which an answer would go on with."),
    ] = False


def take_special_tokens(
    conversation: ConversationPrompt, templates: ModelTemplates
) -> tuple[ConversationPrompt, ModelTemplates]:
    """``bos_token`` and ``eos_token`` among the variables are meant as the options of that name.

    A request to an agent cannot set them; at a terminal nobody else knows them.
    """
    variables = dict(conversation.template_kwargs)
    bos_token, eos_token = (variables.pop(name, None) for name in ("bos_token", "eos_token"))
    if isinstance(bos_token, str):
        templates = attrs.evolve(templates, bos_token=bos_token)
    if isinstance(eos_token, str):
        templates = attrs.evolve(templates, eos_token=eos_token)
    return attrs.evolve(conversation, template_kwargs=variables), templates


def read_templates(given: TemplateFlags) -> ModelTemplates:
    """The templates to render with, compiled and probed.

    Raises:
      typer.BadParameter: neither is given, or a file cannot be read.
      ChatTemplateError, ModelFileError: what is in the file is not usable.
    """
    from paddler_trio.language.templates.conversation import ModelTemplate, ModelTemplates

    source = None if given.template is None else _read(given.template, "--template")
    if given.model is not None:
        templates = _templates_in(given.model, source)
    elif source is not None:
        templates = ModelTemplates(default=ModelTemplate.compile(source))
    else:
        raise typer.BadParameter("give --template FILE, --model GGUF, or both")
    tokens: dict[str, Any] = {"bos_token": given.bos_token, "eos_token": given.eos_token}
    return attrs.evolve(templates, **{name: t for name, t in tokens.items() if t is not None})


def _templates_in(model: Path, override: str | None) -> ModelTemplates:
    from paddler_trio.language.model_language import CHATML, templates_of
    from paddler_trio.language.vocabulary import Vocabulary, route_llama_log
    from paddler_trio.system.logs.logs import configure_logs

    configure_logs(level="error")
    route_llama_log()
    vocabulary = Vocabulary.load(model)
    try:
        source = override if override is not None else vocabulary.chat_template() or CHATML
        return templates_of(vocabulary, source, is_override=override is not None)
    finally:
        vocabulary.close()


def read_conversation(
    messages: str | None, asked: ConversationFlags, *, add_generation_prompt: bool
) -> ConversationPrompt:
    """The request as a balancer would send it; what is in the messages the agent's code judges.

    Raises:
      typer.BadParameter: a file cannot be read, or is not the JSON it has to be.
    """
    given = ANY_MESSAGES if messages is None else _read_json(messages, "--messages")
    given_tools = None if asked.tools is None else _read_json(asked.tools, "--tools")
    if isinstance(given, dict):
        given_tools = given.get("tools") if given_tools is None else given_tools
        given = given.get("messages")
    if not isinstance(given, list):
        raise typer.BadParameter("expected an array of messages", param_hint="--messages")
    if given_tools is not None and not isinstance(given_tools, list):
        raise typer.BadParameter("expected an array of tools", param_hint="--tools")
    variables = {} if asked.kwargs is None else _read_json(asked.kwargs, "--kwargs")
    if not isinstance(variables, dict):
        raise typer.BadParameter("expected an object", param_hint="--kwargs")
    from paddler_trio.wire.trio.work import ConversationPrompt

    return ConversationPrompt(
        messages=tuple(given),
        tools=tuple(given_tools or ()),
        thinking=asked.thinking,
        template_kwargs=variables,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=asked.continue_final_message,
    )


def _read_json(file: str, hint: str) -> object:
    text = _read(file, hint)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}", param_hint=hint) from error


def _read(file: str, hint: str) -> str:
    return text_of_file(Path(file), hint, may_be_stdin=True)
