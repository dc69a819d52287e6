"""``/v1/chat/completions``: body in, native requests, answer out; the shell of it."""

from __future__ import annotations

import time

import trio

from paddler_trio.openai.chat_request import Delivery, read_chat
from paddler_trio.openai.chat_response import ChatStream, Heading, WholeChat
from paddler_trio.openai.errors import blaming
from paddler_trio.openai.exchange import Exchange
from paddler_trio.openai.images import fetch_images
from paddler_trio.openai.models import fingerprint, model_name, must_generate
from paddler_trio.openai.run import gather, stream
from paddler_trio.openai.surface import Surface


async def chat_completions(surface: Surface, exchange: Exchange) -> None:
    request = read_chat(await exchange.json_object(surface.limits), surface.limits)
    heading = heading_of(surface, request.delivery)
    must_generate(surface)
    works = await fetch_images(request.works(), surface.settings)
    with blaming(prompt="messages", constraint=request.constrained_by):
        if request.delivery.is_stream:
            teller = ChatStream.of(
                heading,
                request.delivery,
                request.n,
                raw_calls=request.takes_raw_calls,
                max_tokens=request.max_tokens,
                now_s=trio.current_time,
            )
            await stream(
                surface.dispatcher,
                exchange,
                works,
                teller,
                surface.limits,
                keep_alive_s=request.delivery.ping_s,
            )
        else:
            whole = WholeChat.of(
                heading,
                request.delivery,
                request.n,
                raw_calls=request.takes_raw_calls,
                max_tokens=request.max_tokens,
            )
            await gather(surface.dispatcher, exchange, works, whole.take)
            await exchange.send_json(200, whole.body())


def heading_of(surface: Surface, delivery: Delivery) -> Heading:
    """ApiError 404 for a model that is not served, if names are taken strictly."""
    return Heading(
        model=model_name(surface, delivery.model),
        fingerprint=fingerprint(surface),
        created=int(time.time()),
    )
