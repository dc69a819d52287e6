"""``/v1/chat/completions``: body in, native requests, answer out."""

from __future__ import annotations

import time

import attrs
import trio

from paddler_trio.apis.api_errors import naming_fields
from paddler_trio.apis.backend import Backend
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
from paddler_trio.apis.run_requests import gather, stream
from paddler_trio.wire.trio.work import Generate


async def chat_completions(backend: Backend, exchange: Exchange) -> None:
    request = await exchange.read(backend.limits, read_chat)
    if exchange.is_exact:
        request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
    heading = heading_of(backend, request.delivery)
    must_generate(backend)
    works = await fetch_images(request.works(), backend.settings, exchange.room)
    verbose = await verbose_of(backend, request.delivery, works[0])
    with naming_fields(prompt="messages", constraint=request.constrained_by):
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
            await stream(backend, exchange, works, encoder, keep_alive_s=request.delivery.ping_s)
        else:
            whole = WholeChat.of(
                heading,
                request.delivery,
                request.n,
                raw_calls=request.takes_raw_calls,
                max_tokens=request.max_tokens,
                verbose=verbose,
            )
            await gather(backend, exchange, works, whole.take)
            await exchange.send_json(200, whole.body())


async def verbose_of(backend: Backend, delivery: Delivery, generate: Generate) -> Json | None:
    """What the model is given for ``generate``, if the request asks for it; an agent is asked."""
    if not delivery.is_verbose:
        return None
    return {
        "prompt": (await rendered(backend, generate.prompt))["prompt"],
        "generation_settings": generation_settings(
            cluster_parameters(backend),
            generate,
            is_stream=delivery.is_stream,
            with_timings=delivery.with_timings,
            end_tokens=await end_tokens(backend, generate),
        ),
    }


def heading_of(backend: Backend, delivery: Delivery) -> Heading:
    """ApiError 404 for a model that is not served, if names are taken strictly."""
    return Heading(
        model=model_name(backend, delivery.model),
        fingerprint=fingerprint(backend),
        created=int(time.time()),
    )
