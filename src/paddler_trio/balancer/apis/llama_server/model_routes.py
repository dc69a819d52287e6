"""The model that is served, and questions to it: tokens, rendered templates.

The paths and shapes are OpenAI's (``/v1/models``) and llama-server's (all others).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import islice
from urllib.parse import parse_qs

import attrs
import trio

from paddler_trio.balancer.agents.retry_advice import retry_later
from paddler_trio.balancer.apis.anthropic.anthropic_models import (
    anthropic_list,
    anthropic_model,
    is_anthropic,
)
from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, cluster_parameters, no_such_model
from paddler_trio.balancer.apis.fields import Field, Record, list_in, record, text_in
from paddler_trio.balancer.apis.generation_fields import MODEL
from paddler_trio.balancer.apis.generation_settings import sampling_settings
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.chat_request import conversation_of
from paddler_trio.balancer.apis.prompts import MAX_INT32
from paddler_trio.balancer.apis.questions import ask, tokens_of
from paddler_trio.balancer.apis.shapes import Either, Flag, Integer, Json, ListOf, Text
from paddler_trio.balancer.fleet.deployment import Deployment
from paddler_trio.balancer.fleet.deployments import MAX_NAME_CHARS, NoSuchModelError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.nursery_tree.request import Lease
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.trio.model_questions import DescribeModel, Detokenize, RenderPrompt, Tokenize
from paddler_trio.wire.trio.work import SamplingOverrides

DESCRIBE_S = 2.0
"""How long a list of models waits for an agent to describe the model."""
MAX_TEXTS = 1024
"""In one request to be tokenised: each is a question to an agent."""
PIECES_AT_ONCE = 2_048
"""Tokens whose texts are written in one step of a thread: a client that has left costs no more."""
MAX_SLOTS_LISTED = 65536
"""Of all agents together; each is an object in one answer."""

_SENSES = {"image": "can_see", "audio": "can_hear"}
_META = {
    "vocab_type": "vocab_type",
    "n_vocab": "n_vocab",
    "n_ctx": "n_ctx",
    "n_ctx_train": "n_ctx_train",
    "n_embd": "n_embd",
    "n_params": "n_params",
    "size": "size_bytes",
}
"""llama-server's names of a model's metadata, and ours."""


# -------------------------------------------------------------------------------------- models


async def list_models(backend: Backend, exchange: ApiExchange) -> None:
    """List the models as OpenAI's schema has them, or Anthropic's, for which no agent is asked; or
    with what agents describe."""
    served = backend.deployments.visible(exchange.allowed_deployments)
    if is_anthropic(exchange):
        await exchange.send_json(200, anthropic_list(served, backend.created_s))
        return
    if exchange.is_exact:
        data = [_exact_model(backend, each) for each in served]
        await exchange.send_json(200, {"object": "list", "data": data})
        return
    stats = await stats_of_all(backend, served)
    models = [_ollama_model(each, stats[each.name]) for each in served]
    data = [_model(backend, each, stats[each.name]) for each in served]
    await exchange.send_json(200, {"object": "list", "data": data, "models": models})


async def get_model(backend: Backend, exchange: ApiExchange) -> None:
    try:
        served = backend.deployments.named(exchange.tail, exchange.allowed_deployments)
    except NoSuchModelError as error:
        raise no_such_model(error) from error
    if is_anthropic(exchange):
        await exchange.send_json(200, anthropic_model(served, backend.created_s))
    elif exchange.is_exact:
        await exchange.send_json(200, _exact_model(backend, served))
    else:
        stats = await own_stats(attrs.evolve(backend, routed_to=served))
        await exchange.send_json(200, _model(backend, served, stats))


def _exact_model(backend: Backend, served: Deployment) -> Json:
    return {
        "id": served.id,
        "object": "model",
        "created": backend.created_s,
        "owned_by": "paddler-trio",
    }


def _model(backend: Backend, served: Deployment, stats: Mapping[str, object]) -> Json:
    value, has_failed = backend.deployments.status(served)
    return {
        **_exact_model(backend, served),
        "aliases": list(served.aliases),
        "tags": [],
        "status": {"value": value, **({"failed": True} if has_failed else {})},
        "meta": {name: stats.get(own) for name, own in _META.items()} if stats else None,
        "architecture": {
            "input_modalities": [
                "text",
                *(name for name, own in _SENSES.items() if stats.get(own)),
            ],
            "output_modalities": ["text"],
        },
    }


def _ollama_model(served: Deployment, stats: Mapping[str, object]) -> Json:
    """Return a model as Ollama lists it, which llama-server adds: clients look there for
    capabilities."""
    capabilities = [
        "completion",
        *(["multimodal"] if any(map(stats.get, _SENSES.values())) else []),
    ]
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


async def stats_of_all(
    backend: Backend, served: Sequence[Deployment]
) -> Mapping[str, Mapping[str, object]]:
    """Return the description of each, by its name; all are asked for at the same time."""
    stats: dict[str, Mapping[str, object]] = {}

    async def ask_one(deployment: Deployment) -> None:
        stats[deployment.name] = await own_stats(attrs.evolve(backend, routed_to=deployment))

    async with trio.open_nursery() as nursery:
        for deployment in {each.name: each for each in served}.values():
            nursery.start_soon(ask_one, deployment, name=f"description of {deployment.name}")
    return stats


async def own_stats(backend: Backend) -> Mapping[str, object]:
    """Return an agent's description of the desired model; empty while the one before it answers."""
    is_loaded = backend.deployments.status(backend.deployment)[0] == "loaded"
    return await _stats(backend) if is_loaded else {}


async def _stats(backend: Backend) -> Mapping[str, object]:
    """Return an agent's description of the model that answers; empty while none does, since asking
    would be a demand to load it."""
    if not backend.deployments.is_answered(backend.deployment):
        return {}
    with trio.move_on_after(DESCRIBE_S):
        try:
            return await ask(backend, DescribeModel())
        except (ApiError, HttpProblem):
            return {}
    return {}


# -------------------------------------------------------------------------------------- tokens


@lru_cache(maxsize=8)
def tokenize_record(limits: ApiLimits) -> Record:
    token = Integer(0, MAX_INT32)
    return record(
        "TokenizeRequest",
        Field(
            "content",
            Either((Text(), ListOf(Either((token, Text()))))),
            "The text; a list may mix texts and token ids.",
        ),
        Field("add_special", Flag(), "Begin as prompts do, with BOS if the model has one."),
        Field("parse_special", Flag(), "false: texts of special tokens are text."),
        Field("with_pieces", Flag(), "Tell the text of each token."),
        MODEL,
    )


@lru_cache(maxsize=8)
def detokenize_record(limits: ApiLimits) -> Record:
    return record(
        "DetokenizeRequest",
        Field("tokens", ListOf(Integer(0, MAX_INT32)), "Ids of tokens."),
        MODEL,
    )


async def tokenize(backend: Backend, exchange: ApiExchange) -> None:
    values = await exchange.read_record(backend.limits, tokenize_record)
    backend = backend.routed(exchange, text_in(values, "model"))
    content = values.get("content", "")
    parts = content if isinstance(content, list) else [content]
    num_texts = sum(isinstance(part, str) for part in parts)
    if num_texts > MAX_TEXTS:
        raise invalid(f"content has {num_texts} texts, the limit is {MAX_TEXTS}", "content")
    tokens: list[object] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            question = Tokenize(
                text=part,
                add_special=values.get("add_special") is True and index == 0,
                parse_special=values.get("parse_special") is not False,
            )
            tokens += await tokens_of(backend, question, exchange)
        else:
            tokens.append(part)
    if values.get("with_pieces") is True:
        await _send_with_pieces(backend, exchange, tokens)
    else:
        await exchange.send_json(200, {"tokens": tokens})


async def _send_with_pieces(
    backend: Backend, exchange: ApiExchange, tokens: Sequence[object]
) -> None:
    """Answer with each token and its text, in one question however many there are."""
    ids = tuple(token for token in tokens if isinstance(token, int))
    pieces = (await ask(backend, Detokenize(tokens=ids, with_pieces=True), exchange))["pieces"]
    assert isinstance(pieces, list)
    entries = zip(ids, pieces, strict=True)

    def portions() -> Iterator[bytes]:
        """An object for each of a million tokens at once would be half a gigabyte."""
        yield b'{"tokens":['
        for start in range(0, len(ids), PIECES_AT_ONCE):
            portion = islice(entries, PIECES_AT_ONCE)
            entries_json = dumps([{"id": token, "piece": piece} for token, piece in portion])
            yield b"," * bool(start) + entries_json[1:-1]
        yield b"]}"

    await exchange.send_pieces(200, portions(), is_long=len(ids) > PIECES_AT_ONCE)


async def detokenize(backend: Backend, exchange: ApiExchange) -> None:
    values = await exchange.read_record(backend.limits, detokenize_record)
    backend = backend.routed(exchange, text_in(values, "model"))
    tokens = tuple(list_in(values, "tokens"))
    answer = await ask(backend, Detokenize(tokens=tokens), exchange)
    await exchange.send_json(200, {"content": answer["text"]})


async def apply_template(backend: Backend, exchange: ApiExchange) -> None:
    backend, question = await _render(backend, exchange)
    rendered = await ask(backend, question, exchange)
    await exchange.send_json(200, {"prompt": rendered["prompt"]})


async def count_input_tokens(backend: Backend, exchange: ApiExchange) -> None:
    backend, question = await _render(backend, exchange)
    rendered = await ask(backend, question, exchange)
    body = {"object": "response.input_tokens", "input_tokens": rendered["num_tokens"]}
    await exchange.send_json(200, body)


async def _render(backend: Backend, exchange: ApiExchange) -> tuple[Backend, RenderPrompt]:
    counted = await exchange.read(backend.limits, conversation_of)
    return backend.routed(exchange, counted.model), RenderPrompt(prompt=counted.prompt)


# --------------------------------------------------------------------------- llama-server's own


async def props(backend: Backend, exchange: ApiExchange) -> None:
    """Return the settings that requests start from, as far as they exist here; ``?model=NAME`` of
    that one."""
    backend = backend.routed(exchange, queried_model(exchange))
    served = backend.deployment
    stats = await _stats(backend)
    template = template_of(backend, stats)
    await exchange.send_json(
        200,
        {
            "default_generation_settings": {
                "n_ctx": stats.get("n_ctx"),
                "params": {
                    **sampling_settings(cluster_parameters(backend), SamplingOverrides()),
                    "n_predict": -1,
                    "max_tokens": -1,
                    "n_probs": 0,
                    "stream": False,
                    "timings_per_token": False,
                },
            },
            "total_slots": sum(max(0, agent.status.slots_total) for agent in backend.agents),
            "model_alias": None if not served.is_served else served.id,
            "model_path": "" if not served.is_served else next(iter(served.aliases), served.id),
            "modalities": {
                "vision": stats.get("can_see") is True,
                "video": False,
                "audio": stats.get("can_hear") is True,
            },
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": False,
            **({} if template is None else {"chat_template": template}),
            "chat_template_caps": stats.get("chat_template_caps", {}),
            **{name: stats[name] for name in ("bos_token", "eos_token") if name in stats},
            "build_info": f"paddler-trio {version('paddler-trio')}",
            "is_sleeping": False,
        },
    )


def template_of(backend: Backend, stats: Mapping[str, object]) -> str | None:
    """Return the chat template in force; None if it is the model's own and no agent describes
    it."""
    state = backend.deployment.state
    override = None if state is None else state.chat_template_override
    own = stats.get("chat_template")
    return override.content if override is not None else str(own) if own is not None else None


async def slots(backend: Backend, exchange: ApiExchange) -> None:
    """Return one entry for each slot of a deployment, up to ``MAX_SLOTS_LISTED``.

    Of an agent, only the number of busy slots is known, not which they are: its requests are in
    the first ones, in the order in which they came.

    ``?fail_on_no_slot=1`` asks for 503 where all of them are busy.
    """
    backend = backend.routed(exchange, queried_model(exchange))
    stats = await _stats(backend)
    entries: list[Json] = []
    for agent in backend.agents:
        busy = backend.dispatcher.slots_processing(agent.key)
        leases = agent.leases()
        for number in range(min(agent.status.slots_total, MAX_SLOTS_LISTED - len(entries))):
            slot: Json = {"id": len(entries), "n_ctx": stats.get("n_ctx"), "speculative": False}
            counts = _counts(leases[number] if number < len(leases) else None)
            entries.append(slot | {"is_processing": number < busy} | counts)
    query = parse_qs(exchange.http.query.decode("latin-1"))
    if query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in entries):
        advice = retry_later(backend.dispatcher.pools, backend.deployment.name)
        raise ApiError(503, "no slot is free", headers=advice)
    await exchange.send_json(200, entries)


def _counts(lease: Lease | None) -> Json:
    """Return what is known of the request of a slot, under llama-server's names."""
    prompt = None if lease is None else lease.prompt
    tokens, cached = (0, 0) if prompt is None else (prompt.tokens, prompt.cached)
    num_sampled = 0 if lease is None else len(lease.request.tokens)
    return {
        "id_task": -1 if lease is None else lease.request.key,
        "n_prompt_tokens": tokens,
        "n_prompt_tokens_processed": tokens - cached,
        "n_prompt_tokens_cache": cached,
        "next_token": [{"has_next_token": lease is not None, "n_decoded": num_sampled}],
    }


def queried_model(exchange: ApiExchange) -> str | None:
    query = parse_qs(exchange.http.query.decode("latin-1"))
    return query.get("model", [""])[-1][:MAX_NAME_CHARS] or None
