"""``/v1/completions``: body in, native requests, answer out."""

from __future__ import annotations

import attrs
import trio

from paddler_trio.apis.answer import Stopwatch
from paddler_trio.apis.api_errors import naming_fields, prompt_too_long
from paddler_trio.apis.backend import Backend
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.model_names import cells_at_most, must_generate
from paddler_trio.apis.openai.chat import heading_of, verbose_of
from paddler_trio.apis.openai.completion_request import CompletionRequest, read_completion
from paddler_trio.apis.openai.completion_response import (
    CompletionStream,
    TextAnswer,
    WholeCompletion,
    new_completion_id,
)
from paddler_trio.apis.prompts import Prompt
from paddler_trio.apis.questions import text_of, token_ids
from paddler_trio.apis.run_requests import gather, stream
from paddler_trio.wire.trio.work import TextPrompt, TokenPrompt


async def completions(backend: Backend, exchange: Exchange) -> None:
    request = await exchange.read(backend.limits, read_completion)
    if exchange.is_exact:
        request = attrs.evolve(request, delivery=request.delivery.exactly(exchange.ignored))
    heading = attrs.evolve(heading_of(backend, request.delivery), id=new_completion_id())
    must_generate(backend)
    prompts = await native_prompts(backend, request)
    works = request.works(prompts)
    echoes = [await prompt_text(backend, each) if request.with_echo else "" for each in prompts]
    verbose = await verbose_of(backend, request.delivery, works[0])
    answers = [TextAnswer(echo) for echo in echoes for _ in range(request.best_of)]
    with naming_fields(prompt="prompt", constraint=request.constrained_by):
        if request.delivery.is_stream:
            watch = Stopwatch(trio.current_time)
            encoder = CompletionStream(
                heading, request.delivery, answers, len(prompts), watch, verbose
            )
            await stream(backend, exchange, works, encoder, keep_alive_s=request.delivery.ping_s)
        else:
            whole = WholeCompletion(
                heading, request.delivery, answers, request.n, request.best_of, verbose
            )
            await gather(backend, exchange, works, whole.take)
            await exchange.send_json(200, whole.body())


async def native_prompts(
    backend: Backend, request: CompletionRequest
) -> list[TextPrompt | TokenPrompt]:
    """Each prompt; an agent is asked where texts and ids are mixed."""
    return [await _native(backend, prompt) for prompt in request.prompts.prompts]


async def _native(backend: Backend, prompt: Prompt) -> TextPrompt | TokenPrompt:
    if isinstance(prompt, str):
        return TextPrompt(text=prompt)
    most_cells = cells_at_most(backend)
    if most_cells is not None and len(prompt) > most_cells:
        raise prompt_too_long(len(prompt), most_cells, param="prompt")
    return TokenPrompt(tokens=await token_ids(backend, prompt, param="prompt"))


async def prompt_text(backend: Backend, prompt: TextPrompt | TokenPrompt) -> str:
    """The text of a prompt; an agent is asked for that of token ids."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    return await text_of(backend, prompt.tokens)
