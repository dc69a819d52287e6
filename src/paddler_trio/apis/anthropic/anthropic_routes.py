"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API.

``anthropic-version`` and ``anthropic-beta`` headers are accepted and change nothing: what a body
asks for decides.
"""

from __future__ import annotations

from paddler_trio.apis.anthropic.anthropic_request import read_count_tokens, read_messages
from paddler_trio.apis.anthropic.anthropic_response import (
    MessageHeading,
    MessageStream,
    WholeMessage,
)
from paddler_trio.apis.backend import Backend
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.image_fetch import fetch_images
from paddler_trio.apis.model_names import model_name, must_generate
from paddler_trio.apis.questions import count_tokens
from paddler_trio.apis.run_requests import gather, stream


async def messages(backend: Backend, exchange: Exchange) -> None:
    request = await exchange.read(backend.limits, read_messages)
    model = model_name(backend, request.model)
    heading = MessageHeading(model=model, with_thinking=request.with_thinking)
    must_generate(backend)
    works = await fetch_images([request.generate], backend.settings, exchange.room)
    if request.is_stream:
        encoder = MessageStream(heading)
        await stream(backend, exchange, works, encoder)
    else:
        whole = WholeMessage(heading)
        await gather(backend, exchange, works, whole.take)
        named = [(b"request-id", exchange.id.encode())]
        await exchange.send_json(200, whole.body(), headers=named)


async def count_message_tokens(backend: Backend, exchange: Exchange) -> None:
    conversation, model = await exchange.read(backend.limits, read_count_tokens)
    model_name(backend, model)
    must_generate(backend)
    await exchange.send_json(200, {"input_tokens": await count_tokens(backend, conversation)})
