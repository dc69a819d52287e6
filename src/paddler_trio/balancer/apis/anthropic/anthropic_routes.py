"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API.

``anthropic-version`` and ``anthropic-beta`` headers are accepted and change nothing of an answer:
what a body asks for decides.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import attrs

from paddler_trio.balancer.apis.answers.answer import (
    Answer,
    AnswerReader,
    ArgumentsDelta,
    ContentDelta,
    Ended,
    Prefilled,
    ReasoningDelta,
    Step,
    ToolCallStart,
    completion_tokens,
    reader_of,
)
from paddler_trio.balancer.apis.answers.run_requests import gather, stream
from paddler_trio.balancer.apis.anthropic.anthropic_request import read_count_tokens, read_messages
from paddler_trio.balancer.apis.anthropic.call_input import input_of
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, model_name, must_generate, named
from paddler_trio.balancer.apis.image_fetch import fetch_images
from paddler_trio.balancer.apis.questions import count_tokens
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming

_ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def envelope(error: ApiError) -> Json:
    """Anthropic's: ``{"type": "error", "error": {"type", "message"}}``, with ``details`` if any."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.status, fallback)
    body: Json = {"type": kind, "message": error.message}
    if error.details:
        body["details"] = error.details
    return {"type": "error", "error": body}


@attrs.define(kw_only=True)
class MessageHeading:
    """Hold what is decided before the answer: ``model`` is the name to answer under.

    ``with_thinking``: the answer has the text of the reasoning, not only an empty block.
    """

    model: str
    with_thinking: bool = True
    id: str = attrs.field(factory=lambda: "msg_" + secrets.token_urlsafe(18))

    def fields(self) -> Json:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}


def stop_of(ended: Ended) -> Json:
    """``stop_reason`` and ``stop_sequence``."""
    reason = {
        "length": "max_tokens",
        "cells": "model_context_window_exceeded",
        "stop_text": "stop_sequence",
    }.get(ended.reason, "tool_use" if ended.num_calls else "end_turn")
    return {
        "stop_reason": reason,
        "stop_sequence": ended.stop_text if reason == "stop_sequence" else None,
    }


def usage_of(ended: Ended) -> Json:
    """Anthropic counts cached tokens of the prompt separately."""
    cached = ended.usage.get("cached_prompt_tokens", 0)
    return _usage(ended.usage["prompt_tokens"] - cached, cached, completion_tokens(ended))


def _usage(fresh: int, cached: int, written: int) -> Json:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": written,
    }


# ------------------------------------------------------------------------------ a whole answer


@attrs.define
class WholeMessage:
    """An answer that is sent at once."""

    heading: MessageHeading
    answer: Answer

    def take(self, step: Step) -> int:
        return self.answer.take(step.results)

    def body(self) -> Json:
        answer = self.answer
        content: list[Json] = []
        if answer.reasoning:
            thinking = answer.reasoning if self.heading.with_thinking else ""
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if answer.content:
            content.append({"type": "text", "text": answer.content})
        content += [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": input_of(call.arguments),
            }
            for call in answer.calls
        ]
        return {
            **self.heading.fields(),
            "content": content,
            **stop_of(answer.ended),
            "usage": usage_of(answer.ended),
        }


# ---------------------------------------------------------------------------- a stream of events


_EMPTY_BLOCKS: Mapping[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
}


@attrs.define
class MessageStream:
    """A ``StreamEncoder`` of Anthropic's events.

    Blocks come one after the other, each with an index of its own. The message begins with the
    first progress of the prompt, so that its usage is there if it is known.
    """

    heading: MessageHeading
    _reader: AnswerReader
    _has_begun: bool = attrs.field(default=False, init=False)
    _block: int = attrs.field(default=-1, init=False)
    """Index of the newest block."""
    _open: str | None = attrs.field(default=None, init=False)
    """Its kind, while it is open: text, thinking or tool_use."""

    def opening(self) -> bytes:
        return b""

    def take(self, step: Step) -> bytes:
        events = []
        for piece in self._reader.take(step.results):
            match piece:
                case Prefilled(total, cached, _):
                    events.append(self._begin(total - cached, cached))
                case ReasoningDelta(text):
                    events.append(self._into("thinking"))
                    if self.heading.with_thinking:
                        events.append(self._delta("thinking", text))
                case ContentDelta(text):
                    events += [self._into("text"), self._delta("text", text)]
                case ToolCallStart(_, call_id, name):
                    events.append(self._close())
                    events.append(self._into("tool_use", id=call_id, name=name, input={}))
                case ArgumentsDelta(_, arguments):
                    events.append(self._delta("input_json", arguments, member="partial_json"))
                case Ended():
                    end = _event("message_delta", delta=stop_of(piece), usage=usage_of(piece))
                    events += [self._begin(0, 0), self._close(), end]
        return b"".join(events)

    def closing(self) -> bytes:
        return _event("message_stop")

    def failed(self, error: ApiError) -> bytes:
        return streaming.event(envelope(error), name="error")

    # ------------------------------------------------------------------------------- inside

    def _begin(self, fresh: int, cached: int) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = {
            **self.heading.fields(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(fresh, cached, 0),
        }
        return _event("message_start", message=message) + _event("ping")

    def _into(self, kind: str, **more: object) -> bytes:
        """Make a block of this kind the open one."""
        if self._open == kind:
            return b""
        ended = self._begin(0, 0) + self._close()
        self._block += 1
        self._open = kind
        block = {"type": kind, **_EMPTY_BLOCKS.get(kind, {}), **more}
        return ended + _event("content_block_start", index=self._block, content_block=block)

    def _delta(self, kind: str, text: str, *, member: str | None = None) -> bytes:
        delta = {"type": f"{kind}_delta", member or kind: text}
        return _event("content_block_delta", index=self._block, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signature = {"type": "signature_delta", "signature": ""}
            signed = _event("content_block_delta", index=self._block, delta=signature)
        self._open = None
        return signed + _event("content_block_stop", index=self._block)


def _event(kind: str, **members: object) -> bytes:
    return streaming.event({"type": kind, **members}, name=kind)


async def messages(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_messages)
    backend = backend.routed(exchange, request.model)
    model = model_name(backend, exchange, request.model)
    heading = MessageHeading(model=model, with_thinking=request.with_thinking)
    named(heading, backend, exchange, request.model)
    must_generate(backend)
    works = await fetch_images([request.generate], backend.settings, exchange.room, exchange.http)
    reader = reader_of(request.generate)
    if request.is_stream:
        encoder = MessageStream(heading, reader)
        await stream(backend, exchange, works, encoder)
    else:
        whole = WholeMessage(heading, Answer(reader))
        await gather(backend, exchange, works, whole.take)
        await exchange.send_json(200, whole.body())


async def count_message_tokens(backend: Backend, exchange: ApiExchange) -> None:
    counted = await exchange.read(backend.limits, read_count_tokens)
    backend = backend.routed(exchange, counted.model)
    must_generate(backend)
    await exchange.send_json(
        200, {"input_tokens": await count_tokens(backend, exchange, counted.prompt)}
    )
