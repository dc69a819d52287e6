"""The OpenAPI document of the APIs, made from the tables that read their requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version

from paddler_trio.balancer.apis.anthropic.anthropic_fields import (
    count_tokens_record,
    messages_record,
)
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.fields import Record
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.infill import infill_record
from paddler_trio.balancer.apis.llama_server.model_routes import detokenize_record, tokenize_record
from paddler_trio.balancer.apis.llama_server.rerank import rerank_record
from paddler_trio.balancer.apis.ollama import ollama_fields as ollama
from paddler_trio.balancer.apis.openai.chat_fields import chat_record
from paddler_trio.balancer.apis.openai.completion_request import (
    completion_record,
    llama_completion_record,
)
from paddler_trio.balancer.apis.openai.embeddings import embeddings_record, llama_embeddings_record
from paddler_trio.balancer.apis.responses.responses_fields import (
    input_tokens_record,
    responses_record,
)
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.codec import dumps

OLLAMA = "/api/"
ERROR_STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 499, 500, 501, 502, 503, 504)


def records(limits: ApiLimits) -> dict[tuple[str, str], Record]:
    """Return the body of every route that takes one, by path and a sentence on what it is for."""
    return {
        ("/v1/chat/completions", "Answer a conversation"): chat_record(limits),
        ("/v1/chat/completions/input_tokens", "Count a conversation's tokens"): chat_record(limits),
        ("/v1/completions", "Continue a text"): completion_record(limits),
        ("/completion", "Continue a text, llama-server's way"): llama_completion_record(limits),
        ("/infill", "Fill the gap between two texts"): infill_record(limits),
        ("/v1/responses", "Answer an input"): responses_record(limits),
        ("/v1/responses/input_tokens", "Count an input's tokens"): input_tokens_record(limits),
        ("/v1/messages", "Answer a conversation, Anthropic's way"): messages_record(limits),
        ("/v1/messages/count_tokens", "Count a conversation's tokens, Anthropic's way"): (
            count_tokens_record(limits)
        ),
        ("/v1/embeddings", "Embed texts"): embeddings_record(limits),
        ("/embedding", "Embed texts, llama-server's way"): llama_embeddings_record(limits),
        ("/v1/rerank", "Rank documents for a query"): rerank_record(limits),
        ("/tokenize", "Tokens of a text"): tokenize_record(limits),
        ("/detokenize", "Text of tokens"): detokenize_record(limits),
        ("/apply-template", "The prompt of a conversation"): chat_record(limits),
        ("/api/chat", "Answer a conversation, Ollama's way"): ollama.chat_record(limits),
        ("/api/generate", "Answer a prompt, Ollama's way"): ollama.generate_record(limits),
        ("/api/embed", "Embed texts, Ollama's way"): ollama.embed_record(limits),
        ("/api/embeddings", "Embed a text, Ollama's way"): ollama.embeddings_record(limits),
        ("/api/show", "Describe a model, Ollama's way"): ollama.show_record(limits),
        ("/api/pull", "Whether a model is served"): ollama.pull_record(limits),
        ("/api/create", "Make a preset, Ollama's way"): ollama.create_record(limits),
        ("/api/copy", "Make a preset of another model, Ollama's way"): ollama.copy_record(limits),
    }


GETS = {
    "/v1/health": "Liveness",
    "/v1/models": "What is served",
    "/models": "What is served",
    "/props": "The settings that requests start from",
    "/slots": "Every slot of the fleet",
    "/lora-adapters": "The adapters of the fleet",
    "/api/tags": "What is served, Ollama's way",
    "/api/ps": "What is loaded, Ollama's way",
    "/api/version": "The version of Ollama's API",
    "/openapi.json": "This document",
}


@lru_cache(maxsize=8)
def openapi(limits: ApiLimits, *, is_strict: bool = False, is_exact: bool = False) -> Json:
    """Return the whole document, OpenAPI 3.1; ``is_strict``: fields that are not described are
    refused. ``is_exact``: of the port that does not have Ollama's API."""
    schemas: Json = {**_ERRORS}
    paths: Json = {}
    for (path, summary), record in records(limits).items():
        schema = record.schema()
        schemas[record.name] = closed(schema) if is_strict else schema
        paths[path] = {"post": _operation(path, summary, record)}
    for path, summary in GETS.items():
        paths[path] = {"get": _operation(path, summary, None)}
    if is_exact:
        paths = {path: each for path, each in paths.items() if not path.startswith(OLLAMA)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "paddler-trio: OpenAI-compatible surface",
            "version": version("paddler-trio"),
            "description": "Fields that are not described are "
            + ("refused by name." if is_strict else "ignored, and reported in a header."),
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {name: _error_response(name) for name in _ERRORS},
        },
    }


def closed(schema: object) -> object:
    """Return a JSON Schema whose objects have no other members than those described."""
    match schema:
        case dict():
            inner = {name: closed(each) for name, each in schema.items()}
            has_members = isinstance(schema.get("properties"), dict)
            return {**inner, "additionalProperties": False} if has_members else inner
        case list():
            return [closed(each) for each in schema]
    return schema


def _error_response(schema: str) -> Json:
    return {
        "description": "Refused or failed; the message names the field to blame.",
        "headers": {"x-request-id": {"schema": {"type": "string"}}},
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _operation(path: str, summary: str, record: Record | None) -> Json:
    answer: Json = {"application/json": {"schema": {}}}
    if record is not None and "stream" in {field.name for field in record}:
        kind = "application/x-ndjson" if path.startswith(OLLAMA) else "text/event-stream"
        answer[kind] = {"schema": {"type": "string"}}
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    error = "OllamaError" if path.startswith(OLLAMA) else error
    refusal = {"$ref": f"#/components/responses/{error}"}
    operation: Json = {
        "operationId": path.strip("/").replace("/", "_").replace("-", "_").replace(".", "_"),
        "summary": summary,
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": {"x-request-id": {"schema": {"type": "string"}}},
                "content": answer,
            },
            **{str(status): refusal for status in ERROR_STATUSES},
        },
    }
    if record is not None:
        schema = {"$ref": f"#/components/schemas/{record.name}"}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _object(**properties: object) -> Json:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_ERRORS: Mapping[str, Json] = {
    "Error": _object(
        error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
    ),
    "OllamaError": _object(error=_TEXT),
    "AnthropicError": _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)),
}


@lru_cache(maxsize=8)
def _written(limits: ApiLimits, *, is_strict: bool, is_exact: bool) -> bytes:
    """Anybody may ask for it, and it takes longer to write than most requests to answer."""
    return dumps(openapi(limits, is_strict=is_strict, is_exact=is_exact))


async def document(backend: Backend, exchange: ApiExchange) -> None:
    body = _written(
        backend.limits, is_strict=backend.settings.strict_fields, is_exact=exchange.is_exact
    )
    await exchange.send_written(200, body)
