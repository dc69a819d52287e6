"""From a conversation to its prompt, for requests and for the command line alike.

read (:mod:`chat_messages`) -> choose the template -> adapt (:mod:`message_adaptation`) -> escape
(:mod:`token_escaping`) -> render (:mod:`chat_template`).

A model may bring several templates: ``tool_use`` is taken when there are tools, as Hugging Face
does it, ``rag`` when there are documents, the default otherwise. An override by the operator is in
force for everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.capabilities import TemplateCapabilities, own_variables, probe
from paddler_trio.language.templates.chat_messages import (
    Message,
    read_documents,
    read_messages,
    read_tools,
)
from paddler_trio.language.templates.chat_template import (
    RESERVED_VARIABLES,
    ChatTemplate,
    open_ended,
)
from paddler_trio.language.templates.message_adaptation import adapt, adapt_tools
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping
from paddler_trio.wire.trio.work import ConversationPrompt

TOOL_USE = "tool_use"
RAG = "rag"
NAMED_TEMPLATES = (TOOL_USE, RAG)
"""What is looked for in a model file beside the default."""
_WORD = re.compile(r"[\w-]+")
_MODELS_OWN_TEXT: tuple[str, ...] = ("content", "reasoning_content", "thinking", "reasoning")


@attrs.frozen
class ModelTemplate:
    """A template and its capabilities."""

    template: ChatTemplate
    capabilities: TemplateCapabilities

    @classmethod
    def compile(cls, source: str) -> ModelTemplate:
        """Compile and probe; ChatTemplateError. Milliseconds: once per load."""
        template = ChatTemplate.compile(source)
        return cls(template, probe(template))


@attrs.frozen(kw_only=True)
class ModelTemplates:
    """Everything about a model that decides its prompts; immutable."""

    default: ModelTemplate
    named: Mapping[str, ModelTemplate] = attrs.field(factory=dict)
    bos_token: str = ""
    eos_token: str = ""
    newline: str = "\n"
    escaping: ControlTokenEscaping = attrs.field(factory=lambda: ControlTokenEscaping(()))

    def chosen(self, *, has_tools: bool, has_documents: bool) -> ModelTemplate:
        """The template of a request."""
        if has_tools and TOOL_USE in self.named:
            return self.named[TOOL_USE]
        if has_documents and not has_tools and RAG in self.named:
            return self.named[RAG]
        return self.default


@attrs.frozen(kw_only=True)
class PreparedConversation:
    """A conversation ready to be rendered, with and without the generation prompt."""

    model: ModelTemplate
    _templates: ModelTemplates
    _messages: Sequence[Message]
    _tools: Sequence[Message]
    _documents: Sequence[Message]
    _variables: Mapping[str, object]
    _continues: bool

    def text(self, *, add_generation_prompt: bool) -> str:
        """The prompt, with escape marks in what must not become a control token.

        A final message that is to be continued leaves no room for a generation prompt.

        Raises:
          ChatTemplateError: see :meth:`ChatTemplate.render`.
        """
        variables = dict(self._variables)
        given = variables.pop("enable_thinking", None)
        enable_thinking = None if given is None else bool(given)

        def render(messages: Sequence[Mapping[str, object]]) -> str:
            return self.model.template.render(
                messages,
                tools=self._tools,
                documents=self._documents,
                add_generation_prompt=add_generation_prompt and not self._continues,
                enable_thinking=enable_thinking,
                bos_token=self._templates.bos_token,
                eos_token=self._templates.eos_token,
                extra=variables,
            )

        return open_ended(render, self._messages) if self._continues else render(self._messages)


def prepare_conversation(
    conversation: ConversationPrompt, templates: ModelTemplates
) -> PreparedConversation:
    """Everything but the rendering itself.

    ``template_kwargs`` may name ``documents``, which are not a field of the request.

    Raises:
      ChatTemplateError: naming the field that is not what it has to be.
    """
    messages = read_messages(conversation.messages)
    tools = read_tools(conversation.tools)
    variables = dict(conversation.template_kwargs)
    documents = read_documents(variables.pop("documents", None))
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise ChatTemplateError(f"template_kwargs.{name}: set by the request already")
    continues = conversation.continue_final_message
    if continues and not messages:
        raise ChatTemplateError("continue_final_message: there is no message to be continued")
    if continues and messages[-1]["role"] != "assistant":
        raise ChatTemplateError(
            f"continue_final_message: messages[{len(messages) - 1}].role is "
            f"{messages[-1]['role']!r}: only an assistant's message can be continued"
        )
    model = templates.chosen(has_tools=bool(tools), has_documents=bool(documents))
    escaping = templates.escaping
    escaped = [_escaped(message, escaping) for message in messages]
    adapted = adapt(escaped, model.capabilities, thinking=conversation.thinking)
    escaped_tools = [escaping.escape_all(tool) for tool in adapt_tools(tools, model.capabilities)]
    return PreparedConversation(
        model=model,
        templates=templates,
        messages=adapted,
        tools=escaped_tools,
        documents=[escaping.escape_all(document) for document in documents],
        variables={
            **_given_variables(model, templates, escaped_tools),
            **_thinking_variables(conversation.thinking, model.capabilities, variables),
            **escaping.escape_all(variables),
        },
        continues=continues,
    )


def _given_variables(
    model: ModelTemplate, templates: ModelTemplates, tools: Sequence[Message]
) -> dict[str, object]:
    variables = own_variables(model.template, tools)
    if "nl_token" in model.template.variables:  # Paddler gives it
        variables["nl_token"] = templates.newline
    return variables


def _thinking_variables(
    thinking: bool | None, capabilities: TemplateCapabilities, given: Mapping[str, object]
) -> dict[str, object]:
    """The template's own switch, and Hugging Face's name for it."""
    if thinking is None:
        return {}
    variables: dict[str, object] = {"enable_thinking": thinking}
    if capabilities.thinking is not None:
        variables |= capabilities.thinking.on if thinking else capabilities.thinking.off
    for name, value in variables.items():
        if name in given and given[name] != value:
            raise ChatTemplateError(
                f"template_kwargs.{name}: is {given[name]!r}, but the request's thinking is "
                f"{thinking}: give only one of them"
            )
    return variables


def _escaped(message: Message, escaping: ControlTokenEscaping) -> Message:
    """A message whose texts cannot become control tokens.

    The assistant's content is the model's own: templates look for its markers. Roles that are plain
    words are compared by the template and stay as they are.
    """
    own = _MODELS_OWN_TEXT if message["role"] == "assistant" else ()
    if _WORD.fullmatch(str(message["role"])):
        own = (*own, "role")
    return {
        key: value if key in own else escaping.escape_all(value) for key, value in message.items()
    }
