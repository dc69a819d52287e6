"""The grammar of an answer and the budget of its reasoning.

Both follow from one request's constraint, tools and thinking, from how its model writes
(``answers.model_format``) and from where the prompt leaves the answer (``answers.turns``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.format_detection import GENERIC_CALLS
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.grammars.call_grammar import CallPlace, Tool
from paddler_trio.language.grammars.grammar_composition import (
    CallRules,
    Reasoning,
    constrain,
    reasoning_budget,
)
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import Grammar, ReasoningBudget
from paddler_trio.wire.trio.work import Constraint, ConversationPrompt


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
        reasoning=reasoning_of(start, thinking=conversation.thinking),
        calls=call_rules(start, conversation, vocabulary),
        token_of=lambda text: _token_of(vocabulary, text),
    )


def budget_of_answer(
    conversation: ConversationPrompt, start: AnswerStart, vocabulary: Vocabulary
) -> ReasoningBudget | None:
    """How the engine ends the reasoning in time; None for no limit.

    Raises:
      ReasoningBudgetError: see :func:`reasoning_budget`.
    """
    return reasoning_budget(
        conversation.max_reasoning_tokens,
        reasoning_of(start, thinking=conversation.thinking),
        lambda text: vocabulary.tokenize(text, add_special=False, parse_special=True),
    )


def reasoning_of(start: AnswerStart, *, thinking: bool | None) -> Reasoning:
    """What may come before the answer proper; ``thinking`` False: nothing, unless it is open.

    Where the template closed the section already, nothing opens it again.
    """
    form = start.form
    opening, closing = form.reasoning_open or "", form.reasoning_close or ""
    ends = form.rules.markers_of(TokenClass.REASONING).texts - {closing}
    is_closed = start.opening is TokenClass.CONTENT and (
        not closing or closing in start.prompt_end or not opening
    )
    is_open = start.opening is TokenClass.REASONING
    content_is_open = start.prompt_end.endswith(form.content_open)
    return Reasoning(
        open=opening.removeprefix(_begun(start.prompt_end, opening)),
        close=closing,
        is_open=is_open,
        may_open=thinking is not False and not is_open and not is_closed,
        avoided=tuple(sorted(ends)),
        turn_open=form.turn_open,
        content_open="" if content_is_open else form.content_open,
    )


def call_rules(
    start: AnswerStart, conversation: ConversationPrompt, vocabulary: Vocabulary
) -> CallRules:
    """The tools of a conversation, as calls in the model's own format."""
    form = start.form.calls or GENERIC_CALLS
    avoided = start.form.rules.markers_of(TokenClass.TOOL_CALL).texts
    return CallRules(
        place=CallPlace(
            form=form,
            avoided=tuple(sorted(avoided)),
            prompted=_begun(start.prompt_end, form.opener),
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


def _functions(tools: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    functions = (tool.get("function") for tool in tools)
    return [function for function in functions if isinstance(function, Mapping)]


def _begun(prompt_end: str, opener: str) -> str:
    """How much of an opener stands at the end of the prompt already."""
    longest = min(len(prompt_end), len(opener))
    return next((opener[:n] for n in range(longest, 0, -1) if prompt_end.endswith(opener[:n])), "")


def _token_of(vocabulary: Vocabulary, text: str) -> int | None:
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 else None


def _ends_turn(vocabulary: Vocabulary, text: str) -> bool:
    token = _token_of(vocabulary, text) if text else None
    return token is not None and vocabulary.is_end_of_generation(token)
