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

With ``parallel_tool_calls`` off "several" is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.answers.format_detection import GENERIC_CALLS
from paddler_trio.language.answers.turns import AnswerStart
from paddler_trio.language.grammars.call_grammar import MAX_CALLS, CallPlace, Tool, write_calls
from paddler_trio.language.grammars.finite_automaton import texts_without, write
from paddler_trio.language.grammars.gbnf_compilation import AnswerGrammar
from paddler_trio.language.grammars.gbnf_conversion import (
    SchemaNotConvertibleError,
    any_json_to_gbnf,
    choice_to_gbnf,
    inspect_gbnf,
    json_schema_to_gbnf,
    refuse_endless,
    regex_to_gbnf,
)
from paddler_trio.language.grammars.gbnf_writer import (
    MAX_GRAMMAR_CHARS,
    GrammarError,
    GrammarWriter,
    literal,
)
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import ReasoningBudget, Thoughts
from paddler_trio.wire.json_schema import lawful_schema
from paddler_trio.wire.paddler.request_params import GbnfGrammar, JsonSchemaGrammar
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    ConversationPrompt,
    RegexGrammar,
)


def grammar_of_answer(
    constraint: Constraint | None,
    conversation: ConversationPrompt | None,
    start: AnswerStart,
    vocabulary: Vocabulary,
) -> AnswerGrammar | None:
    """What every token of the answer must fit; None if it may be anything.

    Args:
      conversation: None for a prompt that is no conversation, which is bound from its first token.

    Raises:
      SchemaNotConvertibleError, Refusal: see :func:`constrain`.
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

    A limit is a hint that coding agents send to every model: where a template marks no reasoning,
    there is none to end.
    """
    if conversation.max_reasoning_tokens is None:
        return None
    reasoning = reasoning_of(start, thinking=conversation.thinking)
    if not reasoning.close:
        return None
    may_open = reasoning.may_open and not reasoning.is_open
    return ReasoningBudget(
        max_tokens=conversation.max_reasoning_tokens,
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
            _tool(function)
            for tool in conversation.tools
            if isinstance(function := tool.get("function"), Mapping)
        ],
        choice=conversation.tool_choice,
        tool_name=conversation.tool_name,
        parallel=conversation.parallel_tool_calls,
        thoughts=_thoughts(start),
    )


def _tool(function: Mapping[str, object]) -> Tool:
    parameters = function.get("parameters")
    is_strict = function.get("strict") is True
    if isinstance(parameters, Mapping):
        is_strict = is_strict or parameters.get("strict") is True
        parameters = lawful_schema(parameters).schema
    return Tool(str(function.get("name", "")), parameters, is_strict)


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


TokenOf = Callable[[str], int | None]
"""The one token that a text is; None if it is several."""


def constrain(
    constraint: Constraint | None,
    *,
    reasoning: Reasoning,
    calls: CallRules | None = None,
    token_of: TokenOf = lambda _text: None,
) -> AnswerGrammar | None:
    """The grammar of one answer; None if it may be anything.

    Args:
      token_of: lets a lazy grammar wake on a token instead of looking through the text.

    Raises:
      SchemaNotConvertibleError: a schema, pattern, choice or tool that no grammar can express.
      Refusal: a grammar of a client that cannot be used.
    """
    choice = "none" if calls is None or not calls.tools else calls.choice
    bound = None if constraint is None else _of_constraint(constraint)
    if calls is None or choice == "none":
        return None if bound is None else _composed([bound], reasoning)
    prefix = _unused_prefix("call-", bound)
    if choice != "auto":
        return _composed([_required_calls(calls, prefix)], reasoning)
    called = _optional_calls(calls, prefix)
    if bound is None:
        return None if called is None else _lazy(called, calls, token_of)
    parts = [bound] if called is None else [bound, called]
    return _composed(parts, reasoning)


# --------------------------------------------------------------------------- the parts


@attrs.frozen
class _Part:
    """GBNF with a root; ``is_exact``: not even a line break may stand before it."""

    gbnf: str
    root: str
    is_exact: bool = False
    is_content: bool = True


def _of_constraint(constraint: Constraint) -> _Part:
    match constraint:
        case GbnfGrammar():
            try:
                inspect_gbnf(constraint.grammar, constraint.root)
            except GrammarError as error:
                raise Refusal("GrammarInitializationFailed", str(error)) from error
            return _Part(constraint.grammar, constraint.root, is_exact=True)
        case JsonSchemaGrammar():
            return _Part(json_schema_to_gbnf(constraint.schema), "root")
        case RegexGrammar():
            return _Part(regex_to_gbnf(constraint.pattern), "root", is_exact=True)
        case ChoiceGrammar():
            return _Part(choice_to_gbnf(constraint.choices), "root", is_exact=True)
        case AnyJsonGrammar():
            return _Part(any_json_to_gbnf(), "root")


def _required_calls(calls: CallRules, prefix: str) -> _Part:
    tools = calls.tools
    if calls.choice == "function":
        tools = [tool for tool in tools if tool.name == calls.tool_name]
        if not tools:
            raise ToolNotConvertibleError(f"tool_name: there is no tool {calls.tool_name!r}")
    try:
        return _calls(calls, tools, prefix, is_lenient=False)
    except ToolNotConvertibleError:
        if any(tool.is_strict for tool in tools):
            raise
        # too large, or a tool that cannot be called: one of them is called with any arguments
        free = [attrs.evolve(tool, parameters=None) for tool in tools]
        return _calls(calls, free, prefix, is_lenient=False)


def _optional_calls(calls: CallRules, prefix: str) -> _Part | None:
    """Calls that may be made; None where nothing marks their beginning, or no grammar fits them.

    What is not constrained here is judged when it is read.
    """
    if calls.place.form.is_bare:
        return None
    try:
        return _calls(calls, calls.tools, prefix, is_lenient=True)
    except SchemaNotConvertibleError:
        return None


def _calls(calls: CallRules, tools: Sequence[Tool], prefix: str, *, is_lenient: bool) -> _Part:
    writer = GrammarWriter(prefix)
    most = MAX_CALLS if calls.parallel else 1
    try:
        root = write_calls(calls.place, tools, writer, most=most, is_lenient=is_lenient)
        grammar = writer.text(root)
        refuse_endless(grammar, writer.root)
    except GrammarError as error:
        raise ToolNotConvertibleError(str(error)) from error
    except RecursionError as error:
        raise ToolNotConvertibleError("a tool's schema is nested too deeply") from error
    return _Part(grammar, writer.root, is_content=False)


def _lazy(part: _Part, calls: CallRules, token_of: TokenOf) -> AnswerGrammar:
    opener = calls.place.form.opener.removeprefix(calls.place.prompted)
    token = token_of(opener)
    return AnswerGrammar(
        part.gbnf,
        part.root,
        trigger_tokens=[] if token is None else [token],
        trigger_patterns=[f"({re.escape(opener)})"] if token is None else [],
        thoughts=calls.thoughts,
    )


def _composed(parts: Sequence[_Part], reasoning: Reasoning) -> AnswerGrammar:
    """One grammar for an answer that is one of ``parts``, with reasoning before it."""
    if reasoning.is_open and not reasoning.close:
        message = "this model's reasoning has no mark at its end after which a grammar could begin"
        raise SchemaNotConvertibleError(message)
    may_think = reasoning.may_open and bool(reasoning.open) and bool(reasoning.close)
    is_plain = not (reasoning.is_open or may_think or reasoning.content_open)
    if is_plain and len(parts) == 1:
        return AnswerGrammar(parts[0].gbnf, parts[0].root)
    direct, afterwards = [], []
    for part in parts:
        content_open = literal(reasoning.content_open) if part.is_content else '""'
        direct.append(f"{content_open} {part.root}")
        layout = '""' if part.is_exact else '"\\n"{0,2}'
        afterwards.append(f"{literal(reasoning.turn_open)} {content_open} {layout} {part.root}")
    writer = GrammarWriter(_unused_prefix("answer-", *parts))
    ways = [] if reasoning.is_open else direct
    if reasoning.is_open or may_think:
        avoided = dict.fromkeys((reasoning.close, *reasoning.avoided))
        thought = write(texts_without(list(avoided)), writer, in_json=False, hint="thought")
        opening = '""' if reasoning.is_open else f'"\\n"? {literal(reasoning.open)}'
        ways.append(f"{opening} {thought} {literal(reasoning.close)} ({' | '.join(afterwards)})")
    # The rules of the parts are not this writer's: it only names them.
    head = writer.rule(" | ".join(ways), "whole")
    own = writer.text(head, known=[part.root for part in parts])
    grammar = own + "".join(part.gbnf.rstrip("\n") + "\n" for part in parts)
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"the grammar has {len(grammar)} characters, the limit is {MAX_GRAMMAR_CHARS}"
        raise SchemaNotConvertibleError(message)
    return AnswerGrammar(grammar, writer.root)


def _unused_prefix(prefix: str, *parts: _Part | None) -> str:
    """A beginning of names that none of these grammars has."""
    while any(part is not None and prefix in part.gbnf for part in parts):
        prefix = f"x{prefix}"
    return prefix
