"""The table of which endpoint answers which path of which API."""

from __future__ import annotations

from typing import Final, NamedTuple

from paddler_trio.balancer.apis.anthropic.anthropic_models import VERSION_HEADER
from paddler_trio.balancer.apis.anthropic.anthropic_routes import count_message_tokens, messages
from paddler_trio.balancer.apis.anthropic.anthropic_routes import envelope as anthropic_envelope
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.api_router import TAIL, ApiRouter, ApiRoutes, Dialect, Endpoint
from paddler_trio.balancer.apis.backend import ApiSettings, Backend
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.infill import infill
from paddler_trio.balancer.apis.llama_server.llama_completion import llama_completion
from paddler_trio.balancer.apis.llama_server.lora_adapters import lora_adapters
from paddler_trio.balancer.apis.llama_server.model_routes import (
    apply_template,
    count_input_tokens,
    detokenize,
    get_model,
    list_models,
    props,
    slots,
    tokenize,
)
from paddler_trio.balancer.apis.llama_server.rerank import rerank
from paddler_trio.balancer.apis.ollama.ollama_answers import envelope as ollama_envelope
from paddler_trio.balancer.apis.ollama.ollama_library import copy, create, delete, pull
from paddler_trio.balancer.apis.ollama.ollama_models import (
    greet,
    running,
    show,
    tags,
    version,
)
from paddler_trio.balancer.apis.ollama.ollama_routes import (
    chat,
    embed_prompt,
    embed_texts,
    generate,
)
from paddler_trio.balancer.apis.ollama.pulls import Pulls
from paddler_trio.balancer.apis.openai.chat import chat_completions
from paddler_trio.balancer.apis.openai.completions import completions
from paddler_trio.balancer.apis.openai.embeddings import embeddings, llama_embeddings
from paddler_trio.balancer.apis.openapi_document import document
from paddler_trio.balancer.apis.responses.responses_routes import Responses
from paddler_trio.balancer.apis.responses.responses_store import ResponseStore
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.fleet_routes import RolloutControl
from paddler_trio.net.server.asgi import without_body
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.settings.balancer_config import BalancerConfig

PREFIXES: Final = ("/v1", "")
"""llama-server answers most paths without the version as well."""
ANTHROPIC: Final = Dialect(
    anthropic_envelope,
    id_headers=(b"request-id", b"x-request-id"),
    above="/v1/messages",
    version_header=VERSION_HEADER,
)
OLLAMA: Final = Dialect(ollama_envelope, above="/api")
OLLAMA_PORT: Final = (ANTHROPIC, Dialect(above="/v1"), Dialect(ollama_envelope))
"""The APIs of a port where all is Ollama's that is not above ``/v1``."""
_TRANSCRIPTIONS = (
    "sounds are heard in conversations: send them as input_audio to /v1/chat/completions"
)
_UNSUPPORTED = {
    ("POST", "/props"): "settings are the operator's; change them on the management port",
    ("POST", "/slots/{slot...}"): (
        "slots are not saved, restored or erased by request; equal beginnings are found by their "
        "tokens, and cache_prompt: false keeps a prompt out"
    ),
    ("POST", "/lora-adapters"): (
        "adapters are not chosen by a request; the operator sets them for the whole fleet"
    ),
    ("GET", "/metrics"): "metrics are on the management port of the balancer, /metrics",
    ("POST", "/v1/audio/transcriptions"): _TRANSCRIPTIONS,
    ("POST", "/audio/transcriptions"): _TRANSCRIPTIONS,
    ("POST", "/v1/chat/completions/control"): (
        "a running answer is not steered; bound its reasoning with reasoning_budget_tokens, or "
        "close the connection"
    ),
}
"""Routes of llama-server that a fleet cannot serve, with the reason; llama-server refuses most of
these itself unless it was started with a flag for them."""

_OPERATORS = (
    "models are the operator's: `paddler-trio fleet apply` says which are served, from which "
    "files, and under which names"
)
_NO_ACCOUNTS = (
    "there are no accounts of ollama.com here; a key is sent as Authorization: Bearer KEY"
)
_OLLAMA_UNSUPPORTED = {
    ("POST", "/api/me"): _NO_ACCOUNTS,
    ("POST", "/api/signout"): _NO_ACCOUNTS,
    ("POST", "/api/push"): _OPERATORS,
    ("HEAD", "/api/blobs/{digest}"): _OPERATORS,
    ("POST", "/api/blobs/{digest}"): _OPERATORS,
}


class ApiRouters(NamedTuple):
    """All APIs, for the inference port; and what has a port for itself."""

    all: ApiRouter
    openai: ApiRouter
    ollama: ApiRouter


def api_routers(
    config: BalancerConfig,
    dispatcher: Dispatcher,
    states: FleetKeeper,
    deployments: Deployments,
    rollouts: RolloutControl | None = None,
) -> ApiRouters:
    """Return the APIs of each port.

    Errors:
      ConfigurationError: a limit that does not exist, or cannot have its value.
    """
    settings = ApiSettings(
        image_hosts=frozenset(config.image_hosts),
        strict_model_names=config.strict_model_names,
        strict_fields=config.strict_openai_fields,
        normalises_prompts=config.normalise_prompts,
        limits=ApiLimits.parse(config.openai_limits),
    )
    pulls = None if rollouts is None else Pulls(rollouts)
    backend = Backend(dispatcher, states, settings, deployments, pulls=pulls)
    everything, openai, ollama = ApiRoutes(), ApiRoutes(), ApiRoutes()
    responses = Responses(
        ResponseStore(settings.limits.max_stored_responses, settings.limits.max_stored_bytes)
    )
    for routes in (everything, openai, ollama):
        _add_openai(routes)
        _add_responses(routes, responses)
        _add_anthropic(routes)
    for routes in (everything, openai):
        _add_llama_server(routes)
    for routes in (everything, ollama):
        _add_ollama(routes)
    ollama.add("GET", "/", greet)
    ollama.add("HEAD", "/", _head(greet))
    return ApiRouters(
        ApiRouter(backend, everything, [ANTHROPIC, OLLAMA]),
        ApiRouter(backend, openai, [ANTHROPIC], is_exact=True),
        ApiRouter(backend, ollama, OLLAMA_PORT),
    )


def _add_openai(routes: ApiRoutes) -> None:
    for prefix in PREFIXES:
        routes.add("POST", prefix + "/chat/completions", chat_completions)
        routes.add("POST", prefix + "/chat/completions/input_tokens", count_input_tokens)
        routes.add("GET", prefix + "/models", list_models)
        routes.add("GET", f"{prefix}/models/{{{TAIL}...}}", get_model)
    routes.add("POST", "/v1/completions", completions)
    routes.add("POST", "/v1/embeddings", embeddings)
    for path in ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"):
        routes.add("POST", path, rerank)
    routes.add("GET", "/openapi.json", document)


def _add_responses(routes: ApiRoutes, responses: Responses) -> None:
    for prefix in PREFIXES:
        routes.add("POST", prefix + "/responses", responses.create)
        routes.add("POST", prefix + "/responses/input_tokens", responses.count_tokens)
        routes.add("GET", f"{prefix}/responses/{{{TAIL}}}", responses.get)
        routes.add("GET", f"{prefix}/responses/{{{TAIL}}}/input_items", responses.list_items)
        routes.add("DELETE", f"{prefix}/responses/{{{TAIL}}}", responses.delete)


def _add_anthropic(routes: ApiRoutes) -> None:
    routes.add("POST", "/v1/messages", messages)
    routes.add("POST", "/v1/messages/count_tokens", count_message_tokens)


def _add_llama_server(routes: ApiRoutes) -> None:
    """Add llama-server's paths without the version, where OpenAI's schemas are not meant."""
    routes.add("GET", "/v1/health", health)
    for path in ("/completion", "/completions"):
        routes.add("POST", path, llama_completion)
    routes.add("POST", "/infill", infill)
    for path in ("/embedding", "/embeddings"):
        routes.add("POST", path, llama_embeddings)
    for prefix in PREFIXES:
        routes.add("POST", prefix + "/tokenize", tokenize)
        routes.add("POST", prefix + "/detokenize", detokenize)
        routes.add("POST", prefix + "/apply-template", apply_template)
    routes.add("GET", "/props", props)
    routes.add("GET", "/slots", slots)
    routes.add("GET", "/lora-adapters", lora_adapters)
    for (method, path), why in _UNSUPPORTED.items():
        routes.add(method, path, _refusing(method, path.partition("/{")[0], why))


def _add_ollama(routes: ApiRoutes) -> None:
    routes.add("POST", "/api/chat", chat)
    routes.add("POST", "/api/generate", generate)
    routes.add("POST", "/api/embed", embed_texts)
    routes.add("POST", "/api/embeddings", embed_prompt)
    routes.add("POST", "/api/show", show)
    for path, endpoint in (("create", create), ("copy", copy), ("pull", pull)):
        routes.add("POST", f"/api/{path}", endpoint)
    routes.add("DELETE", "/api/delete", delete)
    routes.add("GET", "/api/ps", running)
    for path, endpoint in (("/api/tags", tags), ("/api/version", version)):
        routes.add("GET", path, endpoint)
        routes.add("HEAD", path, _head(endpoint))
    for (method, path), why in _OLLAMA_UNSUPPORTED.items():
        routes.add(method, path, _refusing(method, path.partition("/{")[0], why))


def _head(endpoint: Endpoint) -> Endpoint:
    """Answer as ``endpoint`` does, without the body."""

    async def head(backend: Backend, exchange: ApiExchange) -> None:
        exchange.http.send = without_body(exchange.http.send)
        await endpoint(backend, exchange)

    return head


async def health(backend: Backend, exchange: ApiExchange) -> None:
    """Answer liveness, in llama-server's words."""
    await exchange.send_json(200, {"status": "ok"})


def _refusing(method: str, path: str, why: str) -> Endpoint:
    async def refuse(backend: Backend, exchange: ApiExchange) -> None:
        raise ApiError(501, f"{method} {path} is not supported: {why}")

    return refuse
