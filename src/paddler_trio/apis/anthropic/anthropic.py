"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API; the shell of both.

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
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.image_fetch import fetch_images
from paddler_trio.apis.model_names import model_name, must_generate
from paddler_trio.apis.run import gather, stream
from paddler_trio.apis.surface import Surface
from paddler_trio.apis.token_counts import count_tokens


async def messages(surface: Surface, exchange: Exchange) -> None:
    request = await exchange.read(surface.limits, read_messages)
    model = model_name(surface, request.model)
    heading = MessageHeading(model=model, with_thinking=request.with_thinking)
    must_generate(surface)
    works = await fetch_images([request.generate], surface.settings, exchange.room)
    if request.is_stream:
        encoder = MessageStream(heading)
        await stream(surface.dispatcher, exchange, works, encoder, surface.limits)
    else:
        whole = WholeMessage(heading)
        await gather(surface.dispatcher, exchange, works, whole.take)
        named = [(b"request-id", exchange.id.encode())]
        await exchange.send_json(200, whole.body(), headers=named)


async def count_message_tokens(surface: Surface, exchange: Exchange) -> None:
    conversation, model = await exchange.read(surface.limits, read_count_tokens)
    model_name(surface, model)
    must_generate(surface)
    await exchange.send_json(200, {"input_tokens": await count_tokens(surface, conversation)})
