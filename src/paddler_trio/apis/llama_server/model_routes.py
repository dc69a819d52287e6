"""What is served, and what only a loaded model can tell: models, tokens, rendered templates.

The paths and shapes are OpenAI's (``/v1/models``) and llama-server's (all others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from urllib.parse import parse_qs

import trio

from paddler_trio.apis.api_errors import ApiError, invalid
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.fields import Field, Record, accepted
from paddler_trio.apis.generation_settings import sampling_settings
from paddler_trio.apis.limits import SurfaceLimits
from paddler_trio.apis.model_names import (
    ServedModel,
    cluster_parameters,
    no_such_model,
    served_model,
)
from paddler_trio.apis.openai.chat_request import conversation_of
from paddler_trio.apis.prompts import MAX_INT32
from paddler_trio.apis.questions import ask
from paddler_trio.apis.shapes import Either, Flag, Integer, ListOf, Text
from paddler_trio.apis.surface import Surface
from paddler_trio.http.asgi import HttpProblem
from paddler_trio.wire.trio.generate import (
    DescribeModel,
    Detokenize,
    RenderPrompt,
    SamplingOverrides,
    Tokenize,
)

Json = dict[str, object]

DESCRIBE_S = 2.0
"""A list of models is not worth waiting longer for its figures."""
MAX_TEXTS = 1024
"""In one request to be tokenised: each is a question to an agent."""
MAX_SLOTS_TOLD = 65536
"""Of all agents together; each is an object in one answer."""

_META = {
    "vocab_type": "vocab_type",
    "n_vocab": "n_vocab",
    "n_ctx": "n_ctx",
    "n_ctx_train": "n_ctx_train",
    "n_embd": "n_embd",
    "n_params": "n_params",
    "size": "size_bytes",
}
"""llama-server's names of figures, and ours."""


# -------------------------------------------------------------------------------------- models


async def list_models(surface: Surface, exchange: Exchange) -> None:
    if exchange.is_exact:
        await _list_exactly(surface, exchange)
        return
    served = served_model(surface)
    stats = {} if served is None else await _stats(surface)
    models = [] if served is None else [_told_as_ollama_does(served, stats)]
    data = [] if served is None else [_told(surface, served, stats)]
    await exchange.send_json(200, {"object": "list", "data": data, "models": models})


async def _list_exactly(surface: Surface, exchange: Exchange) -> None:
    """As OpenAI's schema has it; no agent is asked for figures."""
    served = served_model(surface)
    data = [] if served is None else [_told_exactly(surface, served)]
    await exchange.send_json(200, {"object": "list", "data": data})


async def get_model(surface: Surface, exchange: Exchange) -> None:
    served = served_model(surface)
    if served is None or not served.is_called(exchange.tail):
        raise no_such_model(exchange.tail, served)
    if exchange.is_exact:
        await exchange.send_json(200, _told_exactly(surface, served))
    else:
        await exchange.send_json(200, _told(surface, served, await _stats(surface)))


def _told_exactly(surface: Surface, served: ServedModel) -> Json:
    return {
        "id": served.id,
        "object": "model",
        "created": surface.created_s,
        "owned_by": "paddler-trio",
    }


def _told(surface: Surface, served: ServedModel, stats: Mapping[str, object]) -> Json:
    return {
        **_told_exactly(surface, served),
        "aliases": list(served.aliases),
        "tags": [],
        "meta": {name: stats.get(own) for name, own in _META.items()} if stats else None,
    }


def _told_as_ollama_does(served: ServedModel, stats: Mapping[str, object]) -> Json:
    """The same in the shape of another API, which llama-server tells beside OpenAI's: clients look
    there for what a model can do."""
    capabilities = ["completion", "multimodal"] if stats.get("can_see") else ["completion"]
    texts = dict.fromkeys(("modified_at", "size", "digest", "description", "parameters"), "")
    details = dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), "")
    return {
        "name": served.id,
        "model": served.id,
        "type": "model",
        "tags": [""],
        "capabilities": capabilities,
        **texts,
        "details": {"format": "gguf", "families": [""], **details},
    }


async def _stats(surface: Surface) -> Mapping[str, object]:
    """What an agent says of the model; nothing while nobody can tell."""
    if surface.dispatcher.statistics().slots_total == 0:
        return {}
    with trio.move_on_after(DESCRIBE_S):
        try:
            return await ask(surface, DescribeModel())
        except (ApiError, HttpProblem):
            return {}
    return {}


# -------------------------------------------------------------------------------------- tokens


@lru_cache(maxsize=8)
def tokenize_record(limits: SurfaceLimits) -> Record:
    token = Integer(0, MAX_INT32)
    return Record(
        "TokenizeRequest",
        (
            Field(
                "content",
                Either((Text(), ListOf(Either((token, Text()))))),
                "The text; a list may mix texts and token ids.",
            ),
            Field("add_special", Flag(), "Begin as prompts do, with BOS if the model has one."),
            Field("parse_special", Flag(), "false: texts of special tokens are text."),
            Field("with_pieces", Flag(), "Tell the text of each token."),
            accepted("model", Text(512), "There is one model."),
        ),
    )


@lru_cache(maxsize=8)
def detokenize_record(limits: SurfaceLimits) -> Record:
    return Record(
        "DetokenizeRequest",
        (
            Field("tokens", ListOf(Integer(0, MAX_INT32)), "Ids of tokens."),
            accepted("model", Text(512), "There is one model."),
        ),
    )


async def tokenize(surface: Surface, exchange: Exchange) -> None:
    values = await exchange.read_record(surface.limits, tokenize_record)
    content = values.get("content", "")
    parts = content if isinstance(content, list) else [content]
    num_texts = sum(isinstance(part, str) for part in parts)
    if num_texts > MAX_TEXTS:
        raise invalid(f"content has {num_texts} texts, the limit is {MAX_TEXTS}", "content")
    with_pieces = values.get("with_pieces") is True
    tokens: list[object] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            question = Tokenize(
                text=part,
                add_special=values.get("add_special") is True and index == 0,
                parse_special=values.get("parse_special") is not False,
            )
            told = (await ask(surface, question, exchange))["tokens"]
            assert isinstance(told, list)
            tokens += told
        else:
            tokens.append(part)
    if with_pieces:
        tokens = await _with_pieces(surface, exchange, tokens)
    await exchange.send_json(200, {"tokens": tokens})


async def _with_pieces(
    surface: Surface, exchange: Exchange, tokens: Sequence[object]
) -> list[object]:
    """Each token with its text, in one question however many there are."""
    ids = tuple(token for token in tokens if isinstance(token, int))
    told = (await ask(surface, Detokenize(tokens=ids, with_pieces=True), exchange))["pieces"]
    assert isinstance(told, list)
    pieces = zip(ids, told, strict=True)
    return await exchange.run(lambda: [{"id": token, "piece": piece} for token, piece in pieces])


async def detokenize(surface: Surface, exchange: Exchange) -> None:
    values = await exchange.read_record(surface.limits, detokenize_record)
    tokens = values.get("tokens", [])
    assert isinstance(tokens, list)
    answer = await ask(surface, Detokenize(tokens=tuple(tokens)), exchange)
    await exchange.send_json(200, {"content": answer["text"]})


async def apply_template(surface: Surface, exchange: Exchange) -> None:
    rendered = await ask(surface, await _render(surface, exchange), exchange)
    await exchange.send_json(200, {"prompt": rendered["prompt"]})


async def count_input_tokens(surface: Surface, exchange: Exchange) -> None:
    rendered = await ask(surface, await _render(surface, exchange), exchange)
    told = {"object": "response.input_tokens", "input_tokens": rendered["num_tokens"]}
    await exchange.send_json(200, told)


async def _render(surface: Surface, exchange: Exchange) -> RenderPrompt:
    return RenderPrompt(prompt=await exchange.read(surface.limits, conversation_of))


# --------------------------------------------------------------------------- llama-server's own


async def props(surface: Surface, exchange: Exchange) -> None:
    """The settings that requests start from, as far as they exist here."""
    served = served_model(surface)
    stats = await _stats(surface)
    template = _template(surface, stats)
    await exchange.send_json(
        200,
        {
            "default_generation_settings": {
                "n_ctx": stats.get("n_ctx"),
                "params": {
                    **sampling_settings(cluster_parameters(surface), SamplingOverrides()),
                    "n_predict": -1,
                    "max_tokens": -1,
                    "n_probs": 0,
                    "stream": False,
                    "timings_per_token": False,
                },
            },
            "total_slots": surface.dispatcher.statistics().slots_total,
            "model_alias": None if served is None else served.id,
            "model_path": "" if served is None else next(iter(served.aliases), served.id),
            "modalities": {
                "vision": stats.get("can_see") is True,
                "video": False,
                "audio": False,
            },
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": False,
            **({} if template is None else {"chat_template": template}),
            **{name: stats[name] for name in ("bos_token", "eos_token") if name in stats},
            "build_info": f"paddler-trio {version('paddler-trio')}",
            "is_sleeping": False,
        },
    )


def _template(surface: Surface, stats: Mapping[str, object]) -> str | None:
    """The chat template that holds; None if nobody tells the model's own."""
    applicable = surface.states.applicable
    override = None if applicable is None else applicable.chat_template_override
    own = stats.get("chat_template")
    return override.content if override is not None else str(own) if own is not None else None


async def slots(surface: Surface, exchange: Exchange) -> None:
    """One entry for each slot of the fleet, up to ``MAX_SLOTS_TOLD``; which of an agent's slots is
    busy is its own affair.

    ``?fail_on_no_slot=1`` asks for 503 where all of them are busy.
    """
    stats = await _stats(surface)
    told: list[Json] = []
    for agent in list(surface.dispatcher.agents.values()):
        busy = surface.dispatcher.slots_processing(agent.key)
        for number in range(min(agent.status.slots_total, MAX_SLOTS_TOLD - len(told))):
            slot: Json = {"id": len(told), "n_ctx": stats.get("n_ctx")}
            told.append(slot | {"is_processing": number < busy})
    query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
    if query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in told):
        raise ApiError(503, "no slot is free", headers=[(b"retry-after", b"1")])
    await exchange.send_json(200, told)
