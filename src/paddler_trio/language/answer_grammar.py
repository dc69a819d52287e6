"""What an answer is bound to, as one grammar: its form, its tool calls, and where reasoning ends.

All follows from one request's constraint, tools and thinking, from how its model writes
(``answers.model_format``) and from where the prompt leaves the answer (``answers.turns``).

A model that reasons first must be free to, and be bound from the first character after that. A lazy
grammar sleeps until a trigger; but a model that never writes the trigger is never bound. So
wherever an answer *has* to have a form, reasoning is part of the grammar: an optional section of
any text but the text that closes it. Only what fits can then be sampled, with reasoning or without.

Only calls that a model may make but need not (``tool_choice`` auto) wait for a trigger: the text
that opens them.

=============  ==========================================================================
tool choice    what the grammar takes, after the reasoning
=============  ==========================================================================
none           the constraint; without one there is no grammar
auto           without a constraint: calls, once one is opened (lazy)
               with one: the constraint, or calls
required       one call or several, to any tool
function       one call or several, to that tool
=============  ==========================================================================

"Several" is one with ``parallel_tool_calls`` off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.format_detection import GENERIC_CALLS
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.grammars.call_grammar import MAX_CALLS, CallPlace, Tool, write_calls
from paddler_trio.language.grammars.conversion import (
    AnswerGrammar,
    SchemaNotConvertibleError,
    write_any_object,
    write_choice,
    write_json_schema,
    write_pattern,
)
from paddler_trio.language.grammars.gbnf import TokenOf, write_gbnf
from paddler_trio.language.grammars.lark import (
    GrammarError,
    LarkWriter,
    Unbound,
    Work,
    either,
    joined,
    literal,
    regex,
)
from paddler_trio.language.grammars.patterns import texts_without
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import ReasoningBudget, Thoughts
from paddler_trio.wire.json_schema import TOOL_SCHEMA
from paddler_trio.wire.paddler.request_params import GbnfGrammar, JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    ConversationPrompt,
    Prompt,
    RegexGrammar,
)


def grammar_of_answer(
    constraint: Constraint | None,
    conversation: ConversationPrompt | None,
    start: AnswerStart,
    vocabulary: Vocabulary,
    unbound: Unbound | None = None,
) -> AnswerGrammar | None:
    """What every token of the answer must fit; None if it may be anything.

    Args:
      conversation: None for a prompt that is no conversation, which is bound from its first token.

    Raises:
      SchemaNotConvertibleError, Refusal: see :func:`constrain`.
    """
    if conversation is None:
        reasoning, calls = Reasoning(may_open=False), None
    else:
        reasoning = reasoning_of(start, thinking=conversation.thinking)
        calls = call_rules(start, conversation, vocabulary)
    return constrain(
        constraint,
        reasoning=reasoning,
        calls=calls,
        token_of=lambda text: _token_of(vocabulary, text),
        end_tokens=vocabulary.end_tokens,
        unbound=unbound,
    )


def budget_of_answer(
    prompt: Prompt, start: AnswerStart, vocabulary: Vocabulary
) -> ReasoningBudget | None:
    """How the engine ends the reasoning in time; None for no limit.

    A limit is a hint that coding agents send to every model: where a template marks no reasoning,
    there is none to end.
    """
    if not isinstance(prompt, ConversationPrompt) or prompt.max_reasoning_tokens is None:
        return None
    reasoning = reasoning_of(start, thinking=prompt.thinking)
    if not reasoning.close:
        return None
    may_open = reasoning.may_open and not reasoning.is_open
    return ReasoningBudget(
        max_tokens=prompt.max_reasoning_tokens,
        open=_tokens_of(vocabulary, reasoning.open) if may_open and reasoning.open else [],
        close=_tokens_of(vocabulary, reasoning.close),
        is_open=reasoning.is_open,
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
            Tool.of(function)
            for tool in conversation.tools
            if isinstance(function := tool.get("function"), Mapping)
        ],
        choice=conversation.tool_choice,
        tool_name=conversation.tool_name,
        parallel=conversation.parallel_tool_calls,
        thoughts=_thoughts(start),
    )


def _thoughts(start: AnswerStart) -> Thoughts | None:
    form = start.form
    if form.calls_end_reasoning or not form.reasoning_close:
        return None
    is_open = start.opening is TokenClass.REASONING
    return Thoughts(form.reasoning_open or "", form.reasoning_close, is_open)


def _begun(prompt_end: str, opener: str) -> str:
    """How much of an opener stands at the end of the prompt already."""
    longest = min(len(prompt_end), len(opener))
    return next((opener[:n] for n in range(longest, 0, -1) if prompt_end.endswith(opener[:n])), "")


def _tokens_of(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenize(text, add_special=False, parse_special=True)


def _token_of(vocabulary: Vocabulary, text: str) -> int | None:
    tokens = _tokens_of(vocabulary, text)
    return tokens[0] if len(tokens) == 1 else None


def _ends_turn(vocabulary: Vocabulary, text: str) -> bool:
    token = _token_of(vocabulary, text) if text else None
    return token is not None and vocabulary.is_end_of_generation(token)


class ToolNotConvertibleError(SchemaNotConvertibleError):
    """A tool has to be called whose arguments no grammar can express."""


@attrs.frozen(kw_only=True)
class Reasoning:
    """What a model does before its answer proper.

    ``open`` and ``close``: its markers, "" where it has none. ``is_open``: the prompt left the
    section open. ``may_open``: the model may open it; False where the prompt closed it already.
    ``avoided``: further texts that would end it. ``turn_open``: what follows ``close`` before
    anything else. ``content_open``: what stands before every text for the user.
    """

    open: str = ""
    close: str = ""
    is_open: bool = False
    may_open: bool = True
    avoided: tuple[str, ...] = ()
    turn_open: str = ""
    content_open: str = ""


@attrs.frozen(kw_only=True)
class CallRules:
    """The tools an answer may call, and in which form.

    ``choice``: ``none``, ``auto``, ``required`` or ``function`` with ``tool_name``. ``thoughts``:
    where an opener is none; None if it ends reasoning that was not closed.
    """

    place: CallPlace
    tools: Sequence[Tool]
    choice: str = "auto"
    tool_name: str | None = None
    parallel: bool = True
    thoughts: Thoughts | None = None


def constrain(
    constraint: Constraint | None,
    *,
    reasoning: Reasoning,
    calls: CallRules | None = None,
    token_of: TokenOf = lambda _text: None,
    end_tokens: Sequence[int] = (),
    unbound: Unbound | None = None,
) -> AnswerGrammar | None:
    """The grammar of one answer; None if it may be anything.

    Args:
      token_of: lets a lazy grammar wake on a token instead of looking through the text.
      end_tokens: with which the model ends its answer.
      unbound: takes the places of what is left out of it.

    Raises:
      SchemaNotConvertibleError: a schema, pattern, choice or tool that no grammar can express.
      Refusal: a grammar of a client that cannot be used.
    """
    choice = "none" if calls is None or not calls.tools else calls.choice
    unbound = {} if unbound is None else unbound
    writer = LarkWriter(Work(unbound))
    bound = None if constraint is None else _of_constraint(constraint, writer, token_of, end_tokens)
    if calls is None or choice == "none":
        return None if bound is None else _composed([bound], reasoning, writer)
    if choice != "auto":
        return _required_calls(calls, reasoning, unbound)
    if bound is None:
        return _lazy(calls, token_of, unbound)
    called = _optional_calls(calls, writer)
    return _composed([bound] if called is None else [bound, called], reasoning, writer)


@attrs.frozen
class _Part:
    """A rule; ``is_exact``: not even a line break may stand before it."""

    rule: str
    is_exact: bool = False
    is_content: bool = True


def _of_constraint(
    constraint: Constraint, writer: LarkWriter, token_of: TokenOf, end_tokens: Sequence[int]
) -> _Part:
    match constraint:
        case GbnfGrammar():
            try:
                rule = write_gbnf(constraint.grammar, constraint.root, writer, token_of, end_tokens)
            except GrammarError as error:
                raise Refusal("GrammarInitializationFailed", str(error)) from error
            return _Part(rule, is_exact=True)
        case JsonSchemaGrammar():
            return _Part(write_json_schema(constraint.schema, writer))
        case RegexGrammar():
            return _Part(write_pattern(constraint.pattern, writer), is_exact=True)
        case ChoiceGrammar():
            return _Part(write_choice(constraint.choices, writer), is_exact=True)
        case AnyJsonGrammar():
            return _Part(write_any_object(writer))


def _required_calls(calls: CallRules, reasoning: Reasoning, unbound: Unbound) -> AnswerGrammar:
    tools = calls.tools
    if calls.choice == "function":
        tools = [tool for tool in tools if tool.name == calls.tool_name]
        if not tools:
            raise ToolNotConvertibleError(f"tool_name: there is no tool {calls.tool_name!r}")

    def grammar(tools: Sequence[Tool]) -> AnswerGrammar:
        writer = LarkWriter(Work(unbound))
        part = _calls(calls, tools, writer, is_lenient=False)
        composed = _composed([part], reasoning, writer)
        try:
            composed.compiled()
        except GrammarError as error:
            raise ToolNotConvertibleError(str(error)) from error
        return composed

    try:
        return grammar(tools)
    except ToolNotConvertibleError:
        if any(tool.is_strict for tool in tools):
            raise
        # too large, or a tool that cannot be called: one of them is called with any arguments
        unbound.setdefault(TOOL_SCHEMA)
        return grammar([attrs.evolve(tool, parameters=None) for tool in tools])


def _optional_calls(calls: CallRules, writer: LarkWriter) -> _Part | None:
    """Calls that may be made; None where nothing marks their beginning, or no grammar fits them.

    What is not constrained here is judged when it is read.
    """
    if calls.place.form.is_bare:
        return None
    try:
        return _calls(calls, calls.tools, writer, is_lenient=True)
    except SchemaNotConvertibleError:
        writer.work.unbound.setdefault(TOOL_SCHEMA)
        return None


def _calls(
    calls: CallRules, tools: Sequence[Tool], writer: LarkWriter, *, is_lenient: bool
) -> _Part:
    most = MAX_CALLS if calls.parallel else 1
    try:
        root = write_calls(calls.place, tools, writer, most=most, is_lenient=is_lenient)
    except GrammarError as error:
        raise ToolNotConvertibleError(str(error)) from error
    except RecursionError as error:
        raise ToolNotConvertibleError("a tool's schema is nested too deeply") from error
    return _Part(root, is_content=False)


def _lazy(calls: CallRules, token_of: TokenOf, unbound: Unbound) -> AnswerGrammar | None:
    writer = LarkWriter(Work(unbound))
    part = _optional_calls(calls, writer)
    if part is None:
        return None
    opener = calls.place.form.opener.removeprefix(calls.place.prompted)
    token = token_of(opener)
    grammar = AnswerGrammar(
        writer.text(part.rule),
        trigger_tokens=[] if token is None else [token],
        trigger_patterns=[f"({re.escape(opener)})"] if token is None else [],
        thoughts=calls.thoughts,
    )
    try:
        grammar.compiled()
    except GrammarError:
        unbound.setdefault(TOOL_SCHEMA)
        return None
    return grammar


def _composed(parts: Sequence[_Part], reasoning: Reasoning, writer: LarkWriter) -> AnswerGrammar:
    """Return one grammar for an answer that is one of ``parts``, with reasoning before it."""
    if reasoning.is_open and not reasoning.close:
        message = "this model's reasoning has no mark at its end after which a grammar could begin"
        raise SchemaNotConvertibleError(message)
    may_think = reasoning.may_open and bool(reasoning.open) and bool(reasoning.close)
    direct, afterwards = [], []
    for part in parts:
        content_open = literal(reasoning.content_open) if part.is_content else ""
        direct.append(joined(content_open, part.rule))
        layout = "" if part.is_exact else '"\\n"{0,2}'
        afterwards.append(joined(literal(reasoning.turn_open), content_open, layout, part.rule))
    ways = [] if reasoning.is_open else direct
    if reasoning.is_open or may_think:
        without = texts_without([reasoning.close, *reasoning.avoided])
        thought = " & ".join(map(regex, without))
        # The mark at its end is a part of it: a lexer that never goes back would take it as text.
        thought = writer.terminal(joined(f"({thought})", literal(reasoning.close)))
        opening = "" if reasoning.is_open else joined('"\\n"?', literal(reasoning.open))
        ways.append(joined(opening, thought, either(afterwards)))
    return AnswerGrammar(writer.text(writer.rule(" | ".join(ways))))
