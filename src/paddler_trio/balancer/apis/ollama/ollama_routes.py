"""``/api/chat``, ``/api/generate``, ``/api/embed`` and ``/api/embeddings`` of Ollama's API."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import trio

from paddler_trio.balancer.apis.answers.answer import Answer, reader_of
from paddler_trio.balancer.apis.answers.run_requests import Framing, gather, stream
from paddler_trio.balancer.apis.api_errors import prompt_too_long
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import (
    Backend,
    cells_at_most,
    model_name,
    must_generate,
    named,
)
from paddler_trio.balancer.apis.fields import text_in
from paddler_trio.balancer.apis.image_fetch import fetch_images
from paddler_trio.balancer.apis.ollama.ollama_answers import (
    NDJSON_HEADERS,
    AnswerLines,
    Holder,
    OllamaForm,
    Said,
    WholeAnswer,
)
from paddler_trio.balancer.apis.ollama.ollama_fields import embed_record, embeddings_record
from paddler_trio.balancer.apis.ollama.ollama_request import OllamaRequest, read_chat, read_generate
from paddler_trio.balancer.apis.openai.embeddings import Embedded, embed, vectors_of
from paddler_trio.balancer.apis.questions import ask
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.model_questions import DescribeModel
from paddler_trio.wire.trio.trio_link import CONTEXT
from paddler_trio.wire.trio.work import Generate


async def chat(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_chat)
    await _answer(backend, exchange, request, Holder.MESSAGE)


async def generate(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_generate)
    holder = Holder.TEXT if request.is_verbatim else Holder.RESPONSE
    await _answer(backend, exchange, request, holder)


async def _answer(
    backend: Backend,
    exchange: ApiExchange,
    request: OllamaRequest,
    holder: Holder,
) -> None:
    backend = backend.routed(exchange, request.model)
    form = OllamaForm(
        model=model_name(backend, exchange, request.model),
        holder=holder,
        elapsed_s=lambda: trio.current_time() - exchange.began_s,
        with_logprobs=request.with_logprobs,
    )
    named(form, backend, exchange, request.model)
    must_generate(backend)
    if request.generate is None:
        await _load(backend, exchange, form, unloads=request.unloads)
        return
    asked = _with_context(backend, request.generate)
    works = await fetch_images([asked], backend.settings, exchange.room, exchange.http)
    reader = reader_of(asked, is_verbatim=request.is_verbatim)
    if request.is_stream:
        lines = AnswerLines(form, reader)
        framing = Framing(NDJSON_HEADERS, lines.filler)
        await stream(
            backend, exchange, works, lines, held=lambda: lines.held_bytes, framing=framing
        )
    else:
        whole = WholeAnswer(form, Answer(reader))
        await gather(backend, exchange, works, whole.take)
        await exchange.send_json(200, await exchange.run(whole.body))


def _with_context(backend: Backend, generate: Generate) -> Generate:
    """Return the request; without a context it asks for none where an agent is too old for it.

    Errors:
      ApiError: 400 its context alone does not fit a slot.
    """
    context = generate.context
    if context == () and not all(CONTEXT.decode() in each.offers for each in backend.agents):
        return attrs.evolve(generate, context=None)
    most_cells = cells_at_most(backend)
    if context is not None and most_cells is not None and len(context) > most_cells:
        raise prompt_too_long(len(context), most_cells, param="context")
    return generate


async def _load(
    backend: Backend, exchange: ApiExchange, form: OllamaForm, *, unloads: bool
) -> None:
    """Answer when the model is loaded; whoever asks for the opposite is told that, and no more."""
    if not unloads:
        await ask(backend, DescribeModel(), exchange)
    reason = "unload" if unloads else "load"
    await exchange.send_json(200, {**form.body(Said()), "done": True, "done_reason": reason})


# ------------------------------------------------------------------------------------ embeddings


async def embed_texts(backend: Backend, exchange: ApiExchange) -> None:
    """Answer ``/api/embed``."""
    values = await exchange.read_record(backend.limits, embed_record)
    backend = backend.routed(exchange, text_in(values, "model"))
    cuts = {} if values.get("truncate") is False else {"truncate_prompt_tokens": -1}
    embedded = Embedded(0, [])
    if values["input"] != []:
        given = {"input": values["input"], **cuts}
        embedded = await embed(backend, exchange, given, per_token=False)
    model = model_name(backend, exchange, text_in(values, "model"))
    pieces = _embed_pieces(embedded, exchange, model, values.get("dimensions"))
    await exchange.send_pieces(200, pieces, is_long=False)


def _embed_pieces(
    embedded: Embedded, exchange: ApiExchange, model: str, dimensions: object
) -> Iterator[bytes]:
    vectors = vectors_of(embedded, dimensions)
    beside = {
        "model": model,
        "total_duration": round((trio.current_time() - exchange.began_s) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": embedded.num_tokens,
    }

    def pieces() -> Iterator[bytes]:
        yield dumps(beside).removesuffix(b"}") + b',"embeddings":['
        for index, vector in enumerate(vectors):
            yield b"," * bool(index) + dumps_in_runs(vector.tolist())
        yield b"]}"

    return pieces()


async def embed_prompt(backend: Backend, exchange: ApiExchange) -> None:
    """Answer ``/api/embeddings``: one vector, of whatever length the model gives it."""
    values = await exchange.read_record(backend.limits, embeddings_record)
    backend = backend.routed(exchange, text_in(values, "model"))
    given = {"input": values["prompt"], "embd_normalize": -1, "truncate_prompt_tokens": -1}
    vectors: list[object] = []
    if values["prompt"]:
        embedded = await embed(backend, exchange, given, per_token=False)
        vectors = next(vectors_of(embedded, None)).tolist()
    await exchange.send_json(200, {"embedding": vectors})
