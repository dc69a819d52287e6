"""One request's constraint, tools and thinking, bound to how its model writes.

``answers.model_format`` says how a model marks its reasoning and its calls, the prompt says in
which section the answer begins; from both follow the grammar of the answer (``constraints``) and
the budget of its reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import attrs

from paddler_trio.language.answers.call_syntax import JsonCalls
from paddler_trio.language.answers.formats import ExplicitMarkers, format_of
from paddler_trio.language.answers.model_format import CallFormat, ModelFormat
from paddler_trio.language.answers.pieces import TokenClass
from paddler_trio.language.grammars.call_grammar import CallPlace, Tool
from paddler_trio.language.grammars.constraints import (
    CallRules,
    Reasoning,
    constrain,
    reasoning_budget,
)
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import Grammar, ReasoningBudget
from paddler_trio.wire.trio.generate import Constraint, ConversationPrompt

GENERIC_CALLS = CallFormat(opener="", syntax=JsonCalls(), between="\n")
"""What a model is made to write that knows no tool calls, if it has to call one."""


@attrs.frozen
class AnswerStart:
    """How an answer begins: the model's format, and what its prompt leaves open.

    ``prompt``: what the prompt says after the conversation. ``opening``: the class of the answer's
    first letter.
    """

    form: ModelFormat
    prompt: str = ""
    opening: TokenClass = TokenClass.UNDETERMINABLE

    def reasoning(self, *, thinking: bool | None) -> Reasoning:
        """What may come before the answer proper; ``thinking`` False: nothing, unless it is open.

        Where the template closed the section already, nothing opens it again.
        """
        form = self.form
        opening, closing = form.reasoning_open or "", form.reasoning_close or ""
        ends = form.rules.markers_of(TokenClass.REASONING).texts - {closing}
        is_closed = self.opening is TokenClass.CONTENT and (
            not closing or closing in self.prompt or not opening
        )
        is_open = self.opening is TokenClass.REASONING
        return Reasoning(
            open=opening.removeprefix(_said(self.prompt, opening)),
            close=closing,
            is_open=is_open,
            may_open=thinking is not False and not is_open and not is_closed,
            avoided=tuple(sorted(ends)),
            turn_open=form.turn_open,
            content_open="" if self.prompt.endswith(form.content_open) else form.content_open,
        )

    def calls(self, conversation: ConversationPrompt, vocabulary: Vocabulary) -> CallRules:
        """The tools of a conversation, as calls in the model's own format."""
        form = self.form.calls or GENERIC_CALLS
        avoided = self.form.rules.markers_of(TokenClass.TOOL_CALL).texts
        return CallRules(
            place=CallPlace(
                form=form,
                avoided=tuple(sorted(avoided)),
                said=_said(self.prompt, form.opener),
                ends_turn=_ends_turn(vocabulary, form.closer),
            ),
            tools=[
                Tool(str(function.get("name", "")), function.get("parameters"))
                for function in _functions(conversation.tools)
            ],
            choice=conversation.tool_choice,
            tool_name=conversation.tool_name,
            parallel=conversation.parallel_tool_calls,
        )


@lru_cache(maxsize=16)  # the templates in force; a request finds nothing anew
def form_of(template: ChatTemplate, markers: ExplicitMarkers | None = None) -> ModelFormat:
    """How the model behind a template writes, with what an operator says over it."""
    return format_of(template, markers)


def grammar_of_answer(
    constraint: Constraint | None,
    conversation: ConversationPrompt | None,
    start: AnswerStart,
    vocabulary: Vocabulary,
) -> Grammar | None:
    """What every token of the answer must fit; None if it may be anything.

    Args:
      conversation: None for a prompt that is no conversation, which is bound from its first token.

    Raises:
      SchemaNotConvertibleError, GbnfRefusedError: see :func:`constrain`.
    """
    if conversation is None:
        return constrain(constraint, reasoning=Reasoning(may_open=False))
    return constrain(
        constraint,
        reasoning=start.reasoning(thinking=conversation.thinking),
        calls=start.calls(conversation, vocabulary),
        token_of=lambda text: _token_of(vocabulary, text),
    )


def budget_of_answer(
    conversation: ConversationPrompt, start: AnswerStart, vocabulary: Vocabulary
) -> ReasoningBudget | None:
    """How the engine ends the reasoning in time; None if nobody asked.

    Raises:
      ReasoningBudgetError: see :func:`reasoning_budget`.
    """
    return reasoning_budget(
        conversation.max_reasoning_tokens,
        start.reasoning(thinking=conversation.thinking),
        lambda text: vocabulary.tokenize(text, add_special=False, parse_special=True),
    )


def _functions(tools: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    functions = (tool.get("function") for tool in tools)
    return [function for function in functions if isinstance(function, Mapping)]


def _said(prompt: str, opener: str) -> str:
    """How much of a call's opener stands at the end of the prompt already."""
    longest = min(len(prompt), len(opener))
    return next((opener[:n] for n in range(longest, 0, -1) if prompt.endswith(opener[:n])), "")


def _token_of(vocabulary: Vocabulary, text: str) -> int | None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 else None


def _ends_turn(vocabulary: Vocabulary, text: str) -> bool:
    token = _token_of(vocabulary, text) if text else None
    return token is not None and vocabulary.is_end_of_generation(token)
