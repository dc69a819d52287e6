"""``/v1/chat/completions``: body in, native requests, answer out; the shell of it."""

from __future__ import annotations

import time

import attrs
import trio

from paddler_trio.apis.api_errors import blaming
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.generation_settings import generation_settings
from paddler_trio.apis.image_fetch import fetch_images
from paddler_trio.apis.model_names import (
    cluster_parameters,
    fingerprint,
    model_name,
    must_generate,
)
from paddler_trio.apis.openai.chat_request import Delivery, Json, read_chat
from paddler_trio.apis.openai.chat_response import ChatStream, Heading, WholeChat
from paddler_trio.apis.questions import end_tokens, rendered
from paddler_trio.apis.run import gather, stream
from paddler_trio.apis.surface import Surface
from paddler_trio.wire.trio.generate import Generate


async def chat_completions(surface: Surface, exchange: Exchange) -> None:
    request = await exchange.read(surface.limits, read_chat)
    if exchange.is_exact:
        request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
    heading = heading_of(surface, request.delivery)
    must_generate(surface)
    works = await fetch_images(request.works(), surface.settings, exchange.room)
    verbose = await verbose_of(surface, request.delivery, works[0])
    with blaming(prompt="messages", constraint=request.constrained_by):
        if request.delivery.is_stream:
            encoder = ChatStream.of(
                heading,
                request.delivery,
                request.n,
                raw_calls=request.takes_raw_calls,
                max_tokens=request.max_tokens,
                now_s=trio.current_time,
                verbose=verbose,
            )
            await stream(
                surface.dispatcher,
                exchange,
                works,
                encoder,
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
                verbose=verbose,
            )
            await gather(surface.dispatcher, exchange, works, whole.take)
            await exchange.send_json(200, whole.body())


async def verbose_of(surface: Surface, delivery: Delivery, generate: Generate) -> Json | None:
    """What the model is given for ``generate``, if the request asks for it; an agent is asked."""
    if not delivery.is_verbose:
        return None
    return {
        "prompt": (await rendered(surface, generate.prompt))["prompt"],
        "generation_settings": generation_settings(
            cluster_parameters(surface),
            generate,
            is_stream=delivery.is_stream,
            with_timings=delivery.with_timings,
            end_tokens=await end_tokens(surface, generate),
        ),
    }


def heading_of(surface: Surface, delivery: Delivery) -> Heading:
    """ApiError 404 for a model that is not served, if names are taken strictly."""
    return Heading(
        model=model_name(surface, delivery.model),
        fingerprint=fingerprint(surface),
        created=int(time.time()),
    )
