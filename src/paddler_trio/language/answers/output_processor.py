"""Tokens become results on one path, which every sampled token takes.

bytes -> characters -> class -> stop texts -> tool-call reader -> result, with usage counted on the
way, and everything held back flushed on every ending. Pure and synchronous: one object an
answer.

Stop texts are looked for in what a client reads as the answer: content, text that cannot be
classified, and the raw text of tool calls, each section by itself. Reasoning and markers are no
part of the answer, so a stop text in them ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from encodings.utf_8 import IncrementalDecoder as Utf8Decoder
from functools import lru_cache
from json.encoder import encode_basestring

import attrs

from paddler_trio.language.answers.automaton import Automaton, Piece, TokenClass
from paddler_trio.language.answers.call_events import Remainder
from paddler_trio.language.answers.stop_texts import StopTexts
from paddler_trio.language.answers.tool_calls import (
    Parsed,
    ParsedCall,
    ParseFailed,
    ToolCallOutcome,
    ToolCallReader,
    ValidationFailed,
)
from paddler_trio.wire.engine.engine_pipe import Ending, Logprobs, Progress
from paddler_trio.wire.json_text import JsonText

RawResult = dict[str, object]

_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI reports this number for what cannot be sampled."""
_PIECE_TAGS = {
    TokenClass.CONTENT: "ContentToken",
    TokenClass.REASONING: "ReasoningToken",
    TokenClass.TOOL_CALL: "ToolCallToken",
    TokenClass.UNDETERMINABLE: "UndeterminableToken",
}
_FAILURES = {
    "grammar_invalid": "GrammarInitializationFailed",
    "grammar_rejected": "GrammarRejectedModelOutput",
    "image_failed": "ImageDecodingFailed",
    "cannot_see": "MultimodalNotSupported",
}
"""The results of endings, with their detail; of others it is ``SamplerError``."""


@attrs.define(eq=False)
class OutputProcessor:
    """One answer in the making.

    Args:
      classifier: opened in the class the prompt leaves the answer in.
      tools: reads tool calls; None when the client did not ask for parsed ones.
      stop: looks for stop texts; None when there are none.
      is_extended: its ``Done`` includes how it finished and how long it took.
      without_layout_from: the first section in which blanks between reasoning and content are left
        out; None to keep all. Only here it is known where empty reasoning ended.
      reasoning_is_content: it is shown as content, in which stop texts count as little as before.
    """

    classifier: Automaton
    tools: ToolCallReader | None
    stop: StopTexts | None = None
    is_extended: bool = False
    without_layout_from: int | None = None
    reasoning_is_content: bool = False
    unbound: Sequence[str] = ()
    """What the grammar does not hold, still to be reported."""
    prompt_tokens: Sequence[int] = ()
    """Those of the prompt, if they are still to be reported."""
    _decoder: Utf8Decoder = attrs.field(factory=lambda: Utf8Decoder("replace"), init=False)
    """A token may end inside a character: its first bytes are held back."""
    _counts: dict[TokenClass, int] = attrs.field(init=False)
    _num_replayed: int = attrs.field(default=0, init=False)
    _has_content: bool = attrs.field(default=False, init=False)
    """The newest section is content, and not empty."""
    _searched: Piece | None = attrs.field(default=None, init=False)
    """The piece whose section is searched for stop texts now."""
    _logprobs: list[RawResult] = attrs.field(factory=list, init=False)
    """Those of tokens whose text is held back: it may be no text of the answer at all."""

    def __attrs_post_init__(self) -> None:
        self._counts = dict.fromkeys(TokenClass, 0)

    @property
    def is_complete(self) -> bool:
        """A stop text was found: further tokens are not part of the answer."""
        return self.stop is not None and self.stop.found is not None

    @property
    def num_sampled(self) -> int:
        """Tokens of this agent."""
        return sum(self._counts.values()) - self._num_replayed

    def replay(self, texts: Iterable[bytes]) -> None:
        """Tokens of another agent: processed as if sampled here, without results."""
        for text in texts:
            self.take(text, ends_turn=False)
            self._num_replayed += 1

    def take(
        self, text: bytes, *, ends_turn: bool, logprobs: Logprobs | None = None
    ) -> list[RawResult]:
        """One sampled token; ``ends_turn`` tokens count but are not shown.

        ``logprobs`` come with the text that the token is part of, and not at all if that is a
        marker, layout or a stop text.
        """
        before = self.classifier.section
        opened = self.classifier.current
        if ends_turn:
            self._counts[opened] += 1
            return []
        if text.isascii() and not self._decoder.buffer:
            characters = text.decode("ascii")
        else:
            characters = self._decoder.decode(text)
        pieces = self.classifier.feed(characters)
        # a marker counts in the section it opens or closes: closing belongs to what it closes
        passed = self.classifier.section != before
        closing = passed and self.classifier.current is TokenClass.CONTENT
        self._counts[opened if closing else self.classifier.current] += 1
        visible = self._without_layout(pieces)
        shown = self._shown(visible)
        if logprobs is None:
            return shown
        if passed:
            self._logprobs.clear()  # what was held back was a marker
            if not visible:
                return shown
        self._logprobs.append({"Logprobs": JsonText(_logprobs(logprobs))})
        if pieces and not visible:
            self._logprobs.clear()  # it was layout
        if not shown:
            return []
        told, self._logprobs = self._logprobs, []
        return told + shown

    def progress(self, progress: Progress) -> list[RawResult]:
        """Return how far the prompt is; Paddler's protocol has no such result."""
        if not self.is_extended:
            return []
        told: RawResult = {
            "total": progress.total,
            "cached": progress.cached,
            "computed": progress.computed,
        }
        if self.unbound:
            told["unbound"], self.unbound = list(self.unbound), ()
        if self.prompt_tokens:
            told["tokens"], self.prompt_tokens = self.prompt_tokens, ()
        return [{"Progress": told}]

    def end(self, ending: Ending) -> list[RawResult]:
        """Everything still held back, then the one ending result."""
        results: list[RawResult] = []
        if not self.is_complete:
            rest = self._decoder.decode(b"", final=True)
            pieces = self.classifier.feed(rest) + self.classifier.flush()
            results = self._shown(self._without_layout(pieces))
            results += self._end_search()
            if results:
                results = self._logprobs + results
        if self.tools is not None:
            in_call = self.classifier.current is TokenClass.TOOL_CALL
            is_cut_off = in_call and ending.reason != "stop"
            outcomes = self.tools.close_section(is_cut_off=is_cut_off)
            if is_cut_off:
                outcomes = [each for each in outcomes if not _broke_off(each)]
            results += self._calls(self.tools, outcomes)
        results.append(self._ending(ending))
        return results

    def _shown(self, pieces: Iterable[Piece]) -> list[RawResult]:
        if self.stop is None:
            return [result for piece in pieces for result in self._results_of(piece)]
        results: list[RawResult] = []
        for piece in pieces:
            results += self._searched_for_stops(piece, self.stop)
            if self.stop.found is not None:
                break
        return results

    def _without_layout(self, pieces: list[Piece]) -> list[Piece]:
        if self.without_layout_from is None:
            return pieces
        kept: list[Piece] = []
        for piece in pieces:
            text = piece.text
            if piece.token_class is not TokenClass.CONTENT:
                self._has_content = False
            elif not self._has_content:
                if (
                    piece.came_from is TokenClass.REASONING
                    and piece.section >= self.without_layout_from
                ):
                    text = text.lstrip()
                self._has_content = bool(text)
                if not text:
                    continue
            kept.append(piece if text == piece.text else attrs.evolve(piece, text=text))
        return kept

    def _searched_for_stops(self, piece: Piece, stop: StopTexts) -> list[RawResult]:
        results: list[RawResult] = []
        if self._searched is not None and self._searched.section != piece.section:
            results = self._end_search()
        if piece.token_class is TokenClass.REASONING:
            return results + self._results_of(piece)
        self._searched = piece
        text = stop.feed(piece.text)
        shown = piece if text == piece.text else attrs.evolve(piece, text=text)
        return results + self._results_of(shown)

    def _end_search(self) -> list[RawResult]:
        """The section is over: what was held back for a stop text is text."""
        if self.stop is None or self._searched is None:
            return []
        rest = attrs.evolve(self._searched, text=self.stop.flush())
        self._searched = None
        return self._results_of(rest)

    def _results_of(self, piece: Piece) -> list[RawResult]:
        results: list[RawResult] = []
        if self.tools is not None:
            results = self._calls(self.tools, self.tools.feed_piece(piece))
        if piece.text:
            is_raw = self.reasoning_is_content and piece.token_class is TokenClass.REASONING
            kind = TokenClass.CONTENT if is_raw else piece.token_class
            results.append({_PIECE_TAGS[kind]: piece.text})
        return results

    def _calls(self, tools: ToolCallReader, outcomes: Iterable[ToolCallOutcome]) -> list[RawResult]:
        """Return what became known of calls: their growth, unless the client is Paddler's, then
        these."""
        results: list[RawResult] = [
            {"ToolCallDelta": attrs.asdict(delta)} for delta in tools.take_deltas()
        ]
        return (results if self.is_extended else []) + _outcomes(outcomes)

    def _ending(self, ending: Ending) -> RawResult:
        if self.is_complete:
            return self._done(ending)
        match ending.reason:
            case "stop" | "length" | "cells" | "stopped":
                return self._done(ending)
            case "refused" if self.is_extended:
                return {"BadRequest": {"field": "prompt", "message": ending.detail}}
            case "image_too_large":
                sizes = {"image_tokens": ending.num_image_tokens, "n_batch": ending.n_batch}
                return {"ImageExceedsBatchSize": sizes}
            case reason:
                return {_FAILURES.get(reason, "SamplerError"): ending.detail}

    def _done(self, ending: Ending) -> RawResult:
        if not self.is_extended:
            return done(ending, self._counts)
        return extended_done(
            ending,
            self._counts,
            stop_text=None if self.stop is None else self.stop.found,
            num_replayed=self._num_replayed,
        )


def done(ending: Ending, counts: Mapping[TokenClass, int]) -> RawResult:
    """The successful ending; ``counts`` are sampled tokens by class."""
    return {"Done": {"usage": _usage(ending, counts)}}


def extended_done(
    ending: Ending,
    counts: Mapping[TokenClass, int],
    *,
    stop_text: str | None = None,
    num_replayed: int = 0,
) -> RawResult:
    """The successful ending of a ``Generate``; see ``EXTENDED_GENERATION_TAGS``.

    ``num_replayed`` of the tokens were sampled elsewhere: no time was spent on them here.
    """
    timings: dict[str, object] = {
        "prompt_n": max(0, ending.num_prompt_tokens - ending.num_cached_tokens),
        "prompt_ms": ending.prompt_ms,
        "cached_n": ending.num_cached_tokens,
        "predicted_n": sum(counts.values()) - num_replayed,
        "predicted_ms": ending.predicted_ms,
    }
    if ending.num_drafted:
        timings["draft_n"] = ending.num_drafted
        timings["draft_accepted_n"] = ending.num_accepted
    reason = ending.reason if stop_text is None else "stop_text"
    return {
        "Done": {
            "usage": _usage(ending, counts),
            "finish": {"reason": reason, "stop_text": stop_text},
            "timings": timings,
        }
    }


def _usage(ending: Ending, counts: Mapping[TokenClass, int]) -> dict[str, object]:
    return {
        "prompt_tokens": ending.num_prompt_tokens,
        "cached_prompt_tokens": ending.num_cached_tokens,
        "input_image_tokens": ending.num_image_tokens,
        "input_audio_tokens": ending.num_audio_tokens,
        **{f"{kind.value}_tokens": counts.get(kind, 0) for kind in TokenClass},
    }


def _logprobs(logprobs: Logprobs) -> str:
    """Return the JSON of the sampled token with the most likely ones: written here, as a hundred
    objects for each token would take five times as long."""
    sampled, *likely = [
        _of_token(token, text) + repr(max(_LEAST_LOGPROB, value))
        for token, text, value in zip(logprobs.tokens, logprobs.texts, logprobs.values, strict=True)
    ]
    return f'{sampled},"top":[{"},".join([*likely, ""])[:-1]}]}}'


@lru_cache(maxsize=16_384)
def _of_token(token: int, text: bytes) -> str:
    """Return what is the same of a token each time, up to its probability."""
    shown = encode_basestring(text.decode("utf-8", errors="replace"))
    return f'{{"id":{token},"token":{shown},"bytes":[{",".join(map(str, text))}],"logprob":'


def _broke_off(outcome: ToolCallOutcome) -> bool:
    """Return whether an answer was cut off inside a call, which its ending reports already."""
    return isinstance(outcome, ParseFailed) or (isinstance(outcome, Remainder) and outcome.is_last)


def _outcomes(outcomes: Iterable[ToolCallOutcome]) -> list[RawResult]:
    results: list[RawResult] = []
    for outcome in outcomes:
        match outcome:
            case Parsed(calls):
                results.append({"ToolCallParsed": [_call(call) for call in calls]})
            case ValidationFailed(messages):
                results.append({"ToolCallValidationFailed": list(messages)})
            case Remainder(text, message):
                results.append(
                    {"UnrecognizedToolCallFormat": {"text": text, "ffi_error_message": message}}
                )
            case ParseFailed(message):
                results.append({"ToolCallParseFailed": message})
    return results


def _call(call: ParsedCall) -> dict[str, object]:
    tag = "InvalidJson" if isinstance(call.arguments, str) else "ValidJson"
    return {"id": call.id, "name": call.name, "arguments": {tag: call.arguments}}
