"""``/v1/embeddings`` and llama-server's ``/embedding``."""

from __future__ import annotations

from collections.abc import Mapping

from paddler_trio.apis.api_errors import ApiError, unsupported
from paddler_trio.apis.backend import Backend
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.model_names import model_name
from paddler_trio.apis.openai.embeddings_io import (
    Embedded,
    embed_works,
    embeddings_record,
    llama_body,
    llama_embeddings_record,
    openai_body,
)
from paddler_trio.apis.prompts import Prompt, read_prompts
from paddler_trio.apis.questions import token_ids
from paddler_trio.apis.run_requests import gather
from paddler_trio.wire.trio.work import EmbedInput, TextInput, TokenInput


async def embeddings(backend: Backend, exchange: Exchange) -> None:
    values = await exchange.read_record(backend.limits, embeddings_record)
    model = _model(backend, values)
    embedded = await _embed(backend, exchange, values, normalize="l2", per_token=False)
    await exchange.send_json(200, openai_body(embedded, model=model, values=values))


async def llama_embeddings(backend: Backend, exchange: Exchange) -> None:
    values = await exchange.read_record(backend.limits, llama_embeddings_record)
    _model(backend, values)
    norm = values.get("embd_normalize", 2)
    if norm not in {2, -1}:
        raise unsupported("embd_normalize", f"2 and -1 are (it is {norm})")
    normalize = "l2" if norm == 2 else "none"
    embedded = await _embed(backend, exchange, values, normalize=normalize, per_token=True)
    await exchange.send_json(200, llama_body(embedded))


def _model(backend: Backend, values: Mapping[str, object]) -> str:
    asked = values.get("model")
    return model_name(backend, str(asked) if asked else None)


async def _embed(
    backend: Backend,
    exchange: Exchange,
    values: Mapping[str, object],
    *,
    normalize: str,
    per_token: bool,
) -> Embedded:
    prompts = (
        await exchange.run(lambda: read_prompts(values["input"], backend.limits, param="input"))
    ).prompts
    applicable = backend.states.applicable
    if applicable is not None and not applicable.inference_parameters.enable_embeddings:
        raise ApiError(
            501,
            "embeddings are not enabled in the cluster's inference parameters; set "
            "enable_embeddings with `paddler-trio model set`",
            code="embeddings_disabled",
        )
    batch_size = 256 if applicable is None else applicable.inference_parameters.embedding_batch_size
    works, starts = embed_works(
        [await _native(backend, prompt) for prompt in prompts],
        agents=len(backend.dispatcher.agents),
        batch_size=max(1, batch_size),
        normalize=normalize,
        oversize="truncate" if "truncate_prompt_tokens" in values else "report",
    )
    embedded = Embedded(len(prompts), starts, per_token=per_token)
    await gather(backend, exchange, works, embedded.take)
    return embedded


async def _native(backend: Backend, prompt: Prompt) -> EmbedInput:
    if isinstance(prompt, str):
        return TextInput(text=prompt)
    return TokenInput(tokens=await token_ids(backend, prompt, param="input"))
