"""A conversation becomes its prompt here, for requests and for the command line alike.

read (:mod:`chat_messages`) -> choose the template -> adapt (:mod:`message_adaptation`) -> escape
(:mod:`token_escaping`) -> render (:mod:`chat_template`).

A model may bring several templates: ``tool_use`` is taken when there are tools, as Hugging Face
does it, ``rag`` when there are documents, the default otherwise. An override by the operator is in
force for everything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.model_format import CallFormat
from paddler_trio.language.templates.capabilities import (
    Probe,
    TemplateCapabilities,
    own_variables,
)
from paddler_trio.language.templates.chat_messages import (
    Message,
    read_documents,
    read_messages,
    read_tools,
)
from paddler_trio.language.templates.chat_template import (
    RESERVED_VARIABLES,
    ChatTemplate,
    Variables,
    open_ended,
)
from paddler_trio.language.templates.kept_words import Loss, first_loss
from paddler_trio.language.templates.message_adaptation import (
    adapt,
    adapt_tools,
    read_arguments,
)
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping, unescaped
from paddler_trio.language.templates.turn_probes import in_words, with_turns
from paddler_trio.wire.trio.work import ConversationPrompt

TOOL_USE = "tool_use"
RAG = "rag"
NAMED_TEMPLATES = (TOOL_USE, RAG)
"""What is looked for in a model file beside the default."""
_MAX_OTHER_FORMS_S = 1.0
"""Processor time after which no other form of a conversation is tried."""
_WORD = re.compile(r"[\w-]+")
_MODELS_OWN_TEXT: tuple[str, ...] = ("content", "reasoning_content", "thinking", "reasoning")


@attrs.frozen
class ModelTemplate:
    """A template, its capabilities, and how its model writes calls if that is known."""

    template: ChatTemplate
    capabilities: TemplateCapabilities
    calls: CallFormat | None = None

    @classmethod
    def compile(cls, source: str) -> ModelTemplate:
        """Compile and probe; ChatTemplateError. Milliseconds: once per load."""
        template = ChatTemplate.compile(source)
        probe = Probe(template)
        capabilities = probe.capabilities()
        if not capabilities.shows_messages:
            return cls(template, capabilities)
        calls = format_of(template).calls
        return cls(template, with_turns(probe, capabilities, calls), calls)


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
    _render: _Render
    _turns: _Turns
    _known: Mapping[bool, str]
    """Prompts that were rendered already."""

    def text(self, *, add_generation_prompt: bool) -> str:
        """The prompt, with escape marks in what must not become a control token.

        A final message that is to be continued leaves no room for a generation prompt.

        Raises:
          ChatTemplateError: see :meth:`ChatTemplate.render`.
        """
        known = self._known.get(add_generation_prompt)
        return self._render(self._turns, add_generation_prompt) if known is None else known


@attrs.frozen
class _Turns:
    """Messages and tools as a template gets them."""

    messages: Sequence[Message]
    tools: Sequence[Message]


_Render: TypeAlias = Callable[[_Turns, bool], str]


def prepare_conversation(
    conversation: ConversationPrompt, templates: ModelTemplates
) -> PreparedConversation:
    """The conversation in the form in which its template loses nothing of it.

    ``template_kwargs`` may name ``documents``, which are not a field of the request.

    Raises:
      ChatTemplateError: naming the field that is not what it has to be, or what the template does
        not print; or it refuses.
    """
    messages = read_messages(conversation.messages)
    tools = read_tools(conversation.tools)
    variables, documents = _own_variables(conversation)
    continues = conversation.continue_final_message
    if continues:
        _check_continuable(messages)
    model = templates.chosen(has_tools=bool(tools), has_documents=bool(documents))
    escaping = templates.escaping
    documents = [escaping.escape_all(document) for document in documents]
    variables = {
        **_thinking_variables(conversation.thinking, model.capabilities, variables),
        **escaping.escape_all(variables),
    }

    def render(turns: _Turns, add_generation_prompt: bool) -> str:
        given = {**_given_variables(model, templates, turns.tools), **variables}
        enable_thinking = given.pop("enable_thinking", None)

        def rendered(messages: Sequence[Mapping[str, object]]) -> str:
            return model.template.render(
                messages,
                tools=turns.tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt and not continues,
                enable_thinking=None if enable_thinking is None else bool(enable_thinking),
                bos_token=templates.bos_token,
                eos_token=templates.eos_token,
                extra=given,
            )

        return open_ended(rendered, turns.messages) if continues else rendered(turns.messages)

    adapted = _adaptation(conversation, messages, tools, model, escaping)
    opens = conversation.add_generation_prompt
    known: dict[bool, str] = {}
    if model.capabilities.shows_messages:
        turns, known[opens] = _kept(
            model.capabilities,
            adapted,
            lambda turns: render(turns, opens),
            lambda prompt: first_loss(messages, tools, unescaped(prompt)),
        )
    else:
        turns = adapted(model.capabilities)
    return PreparedConversation(model=model, render=render, turns=turns, known=known)


def _adaptation(
    conversation: ConversationPrompt,
    messages: Sequence[Message],
    tools: Sequence[Message],
    model: ModelTemplate,
    escaping: ControlTokenEscaping,
) -> Callable[[TemplateCapabilities], _Turns]:
    """Return what makes the turns of a conversation that suit a template of such capabilities."""
    escaped_tools = [escaping.escape_all(tool) for tool in tools]

    def adapted(capabilities: TemplateCapabilities) -> _Turns:
        turns = adapt(
            [_escaped(each, escaping) for each in read_arguments(messages, capabilities)],
            capabilities,
            thinking=conversation.thinking,
            tools=escaped_tools,
            calls=model.calls,
        )
        return _Turns(turns, adapt_tools(escaped_tools, capabilities))

    return adapted


def _own_variables(
    conversation: ConversationPrompt,
) -> tuple[Variables, Sequence[Message]]:
    """Return the variables that a request has for its template, and its documents apart."""
    variables = dict(conversation.template_kwargs)
    documents = read_documents(variables.pop("documents", None))
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise ChatTemplateError(f"template_kwargs.{name}: set by the request already")
    return variables, documents


def _check_continuable(messages: Sequence[Message]) -> None:
    if not messages:
        raise ChatTemplateError("continue_final_message: there is no message to be continued")
    last, path = messages[-1], f"continue_final_message: messages[{len(messages) - 1}]"
    if last["role"] != "assistant":
        raise ChatTemplateError(
            f"{path}.role is {last['role']!r}: only an assistant's message can be continued"
        )
    if "content" not in last:
        raise ChatTemplateError(f"{path}.content has no text to continue")


def _kept(
    capabilities: TemplateCapabilities,
    adapted: Callable[[TemplateCapabilities], _Turns],
    render: Callable[[_Turns], str],
    loss_of: Callable[[str], Loss | None],
) -> tuple[_Turns, str]:
    """The first form of the conversation in which a template loses nothing, and its prompt: as it
    can express it, then in words. If each loses the order, the first that loses nothing else.

    Raises:
      ChatTemplateError: there is none; with the template's reason or what it loses.
    """
    problem: ChatTemplateError | None = None
    misplaced: tuple[_Turns, str] | None = None
    give_up_s = time.thread_time() + _MAX_OTHER_FORMS_S
    for each in (capabilities, *in_words(capabilities)):
        try:
            turns = adapted(each)
            prompt = render(turns)
            loss = loss_of(prompt)
        except ChatTemplateError as error:
            problem = problem or error
        else:
            if loss is None:
                return turns, prompt
            if loss.is_misplaced:
                misplaced = misplaced or (turns, prompt)
            problem = problem or ChatTemplateError(
                f"{loss.path}: the chat template does not print it"
            )
        if time.thread_time() > give_up_s:
            break
    if misplaced is not None:
        return misplaced
    assert problem is not None
    raise problem


def _given_variables(
    model: ModelTemplate, templates: ModelTemplates, tools: Sequence[Message]
) -> dict[str, object]:
    variables = own_variables(model.template, tools)
    if "nl_token" in model.template.variables:  # Paddler gives it
        variables["nl_token"] = templates.newline
    return variables


def _thinking_variables(
    thinking: bool | None, capabilities: TemplateCapabilities, given: Variables
) -> dict[str, object]:
    """The template's own switch, and Hugging Face's name for it; where nothing is said a model
    reasons whose template opens the section by itself."""
    if thinking is None:
        switch = capabilities.thinking
        on = switch.on if switch is not None and switch.needs_default else {}
        return {name: value for name, value in on.items() if name not in given}
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
