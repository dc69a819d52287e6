"""Which endpoint answers which path; the one place where the surface is put together."""

from __future__ import annotations

from paddler_trio.apis.anthropic.anthropic import count_message_tokens, messages
from paddler_trio.apis.anthropic.anthropic_response import envelope as anthropic_envelope
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.limits import SurfaceLimits
from paddler_trio.apis.llama_server.llama_completion import llama_completion
from paddler_trio.apis.llama_server.llama_routes import add_unsupported_routes
from paddler_trio.apis.llama_server.model_routes import (
    apply_template,
    count_input_tokens,
    detokenize,
    get_model,
    list_models,
    props,
    slots,
    tokenize,
)
from paddler_trio.apis.llama_server.rerank import rerank
from paddler_trio.apis.openai.chat import chat_completions
from paddler_trio.apis.openai.completions import completions
from paddler_trio.apis.openai.embeddings import embeddings, llama_embeddings
from paddler_trio.apis.openapi_document import document
from paddler_trio.apis.responses.responses import Responses
from paddler_trio.apis.responses.responses_store import ResponseStore
from paddler_trio.apis.surface import Surface, SurfaceSettings
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.config import BalancerConfig
from paddler_trio.nursery_tree.dispatcher import Dispatcher

PREFIXES = ("/v1", "")
"""llama-server answers most paths without the version as well."""


def openai_surface(
    config: BalancerConfig, dispatcher: Dispatcher, states: DesiredStateKeeper
) -> Surface:
    """The whole surface; ConfigurationError for a limit that does not exist or cannot be."""
    settings = SurfaceSettings(
        image_hosts=frozenset(config.image_hosts),
        strict_model_names=config.strict_model_names,
        strict_fields=config.strict_openai_fields,
        limits=SurfaceLimits.parse(config.openai_limits),
    )
    surface = Surface(dispatcher, states, settings)
    _add_openai(surface)
    _add_llama_server(surface)
    return surface


def _add_openai(surface: Surface) -> None:
    for prefix in PREFIXES:
        surface.add("POST", prefix + "/chat/completions", chat_completions)
        surface.add("POST", prefix + "/chat/completions/input_tokens", count_input_tokens)
        surface.add("GET", prefix + "/models", list_models)
        surface.add("GET", prefix + "/models/*", get_model)
    surface.add("POST", "/v1/completions", completions)
    surface.add("POST", "/v1/embeddings", embeddings)
    for path in ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking"):
        surface.add("POST", path, rerank)
    surface.add("GET", "/openapi.json", document)
    _add_responses(surface)
    _add_anthropic(surface)


def _add_responses(surface: Surface) -> None:
    limits = surface.limits
    store = ResponseStore(limits.max_stored_responses, limits.max_stored_bytes)
    responses = Responses(store)
    for prefix in PREFIXES:
        surface.add("POST", prefix + "/responses", responses.create)
        surface.add("POST", prefix + "/responses/input_tokens", responses.count_tokens)
        surface.add("GET", prefix + "/responses/*", responses.get)
        surface.add("DELETE", prefix + "/responses/*", responses.delete)


def _add_anthropic(surface: Surface) -> None:
    surface.add("POST", "/v1/messages", messages, envelope=anthropic_envelope)
    surface.add(
        "POST", "/v1/messages/count_tokens", count_message_tokens, envelope=anthropic_envelope
    )


def _add_llama_server(surface: Surface) -> None:
    """Its paths without the version, where OpenAI's shapes are not meant."""
    surface.add("GET", "/v1/health", health)
    for path in ("/completion", "/completions"):
        surface.add("POST", path, llama_completion)
    for path in ("/embedding", "/embeddings"):
        surface.add("POST", path, llama_embeddings)
    for prefix in PREFIXES:
        surface.add("POST", prefix + "/tokenize", tokenize)
        surface.add("POST", prefix + "/detokenize", detokenize)
        surface.add("POST", prefix + "/apply-template", apply_template)
    surface.add("GET", "/props", props)
    surface.add("GET", "/slots", slots)
    add_unsupported_routes(surface)


async def health(surface: Surface, exchange: Exchange) -> None:
    """Liveness, in llama-server's words."""
    await exchange.send_json(200, {"status": "ok"})
