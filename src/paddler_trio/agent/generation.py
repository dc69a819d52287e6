"""From token bytes to Paddler's results: the one path every drawn token takes.

bytes -> UTF-8 carry -> class -> tool-call reader -> result, with usage counted on the way, and
everything held back flushed on every ending (W1-W4). Pure and synchronous: one object an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.agent.token_classes import Piece, TokenClass, TokenClassifier
from paddler_trio.agent.tool_calls import (
    Parsed,
    ParsedCall,
    ParseFailed,
    ToolCallOutcome,
    ToolCallReader,
    Unrecognized,
    ValidationFailed,
)
from paddler_trio.agent.utf8_carry import Utf8Carry
from paddler_trio.wire.engine_pipe import Ending

RawResult = dict[str, object]

_PIECE_TAGS = {
    TokenClass.CONTENT: "ContentToken",
    TokenClass.REASONING: "ReasoningToken",
    TokenClass.TOOL_CALL: "ToolCallToken",
    TokenClass.UNDETERMINABLE: "UndeterminableToken",
}
_USAGE_FIELDS = {
    TokenClass.CONTENT: "content_tokens",
    TokenClass.REASONING: "reasoning_tokens",
    TokenClass.TOOL_CALL: "tool_call_tokens",
    TokenClass.UNDETERMINABLE: "undeterminable_tokens",
}


@attrs.define(eq=False)
class Generation:
    """One answer in the making.

    Args:
      classifier: opened in the class the prompt leaves the answer in.
      tools: reads tool calls; None when the client did not ask for parsed ones.
    """

    classifier: TokenClassifier
    tools: ToolCallReader | None
    _carry: Utf8Carry = attrs.field(factory=Utf8Carry, init=False)
    _counts: dict[TokenClass, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = dict.fromkeys(TokenClass, 0)

    def take(self, text: bytes, *, ends_turn: bool) -> list[RawResult]:
        """One drawn token; ``ends_turn`` tokens count but are not shown."""
        before = self.classifier.section
        opened = self.classifier.current
        if ends_turn:
            self._counts[opened] += 1
            return []
        pieces = self.classifier.feed(self._carry.feed(text))
        # a marker counts in the section it opens or closes: closing belongs to what it closes
        passed = self.classifier.section != before
        closing = passed and self.classifier.current is TokenClass.CONTENT
        self._counts[opened if closing else self.classifier.current] += 1
        return self._shown(pieces)

    def end(self, ending: Ending) -> list[RawResult]:
        """Everything still held back, then the one ending result."""
        pieces = self.classifier.feed(self._carry.flush()) + self.classifier.flush()
        results = self._shown(pieces)
        if self.tools is not None:
            results += _outcomes(self.tools.close_section())
        results.append(self._ending(ending))
        return results

    def _shown(self, pieces: Iterable[Piece]) -> list[RawResult]:
        results: list[RawResult] = []
        for piece in pieces:
            if self.tools is not None:
                results += _outcomes(self.tools.feed_piece(piece))
            results.append({_PIECE_TAGS[piece.token_class]: piece.text})
        return results

    def _ending(self, ending: Ending) -> RawResult:
        match ending.reason:
            case "stop" | "length" | "cells" | "stopped":
                return done(ending, self._counts)
            case "grammar_invalid":
                return {"GrammarInitializationFailed": ending.detail}
            case "grammar_rejected":
                return {"GrammarRejectedModelOutput": ending.detail}
            case _:
                return {"SamplerError": ending.detail}


def done(ending: Ending, counts: Mapping[TokenClass, int]) -> RawResult:
    """The successful ending; ``counts`` are drawn tokens by class."""
    usage: dict[str, object] = {
        "prompt_tokens": ending.num_prompt_tokens,
        "cached_prompt_tokens": ending.num_cached_tokens,
        "input_image_tokens": 0,
        "input_audio_tokens": 0,
    }
    for kind, field in _USAGE_FIELDS.items():
        usage[field] = counts.get(kind, 0)
    return {"Done": {"usage": usage}}


def _outcomes(outcomes: Iterable[ToolCallOutcome]) -> list[RawResult]:
    results: list[RawResult] = []
    for outcome in outcomes:
        match outcome:
            case Parsed(calls):
                results.append({"ToolCallParsed": [_call(call) for call in calls]})
            case ValidationFailed(messages):
                results.append({"ToolCallValidationFailed": list(messages)})
            case Unrecognized(text, message):
                results.append(
                    {"UnrecognizedToolCallFormat": {"text": text, "ffi_error_message": message}}
                )
            case ParseFailed(message):
                results.append({"ToolCallParseFailed": message})
    return results


def _call(call: ParsedCall) -> dict[str, object]:
    tag = "InvalidJson" if isinstance(call.arguments, str) else "ValidJson"
    return {"id": call.id, "name": call.name, "arguments": {tag: call.arguments}}
