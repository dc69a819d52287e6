"""The models as Ollama lists and describes them, and what it does with them that is not done here.

A name without a tag is listed with ``:latest``, as Ollama has them: programs look for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Final

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, cluster_parameters, no_such_model
from paddler_trio.balancer.apis.fields import text_in
from paddler_trio.balancer.apis.generation_settings import sampling_settings
from paddler_trio.balancer.apis.llama_server.model_routes import (
    own_stats,
    stats_of_all,
    template_of,
)
from paddler_trio.balancer.apis.ollama.ollama_answers import NDJSON_HEADERS, line
from paddler_trio.balancer.apis.ollama.ollama_fields import pull_record, show_record
from paddler_trio.balancer.apis.ollama.ollama_routes import LATEST, plain_name
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.balancer.fleet.deployments import Deployment, NoSuchModelError
from paddler_trio.wire.scalars import rfc3339
from paddler_trio.wire.trio.work import SamplingOverrides

VERSION: Final = "0.13.0"
"""Of Ollama's API that this is: programs ask for at least some version of it."""
NEVER: Final = "2318-01-01T00:00:00Z"
"""When a model is unloaded of which nobody knows when."""
_FILE_TYPES: Final = dict(
    re.findall(
        r"(\d+)=(\S+)",
        "0=F32 1=F16 2=Q4_0 3=Q4_1 7=Q8_0 8=Q5_0 9=Q5_1 10=Q2_K 11=Q3_K_S 12=Q3_K_M 13=Q3_K_L "
        "14=Q4_K_S 15=Q4_K_M 16=Q5_K_S 17=Q5_K_M 18=Q6_K 19=IQ2_XXS 20=IQ2_XS 21=Q2_K_S "
        "22=IQ3_XS 23=IQ3_XXS 24=IQ1_S 25=IQ4_NL 26=IQ3_S 27=IQ3_M 28=IQ2_S 29=IQ2_M "
        "30=IQ4_XS 31=IQ1_M 32=BF16 36=TQ1_0 37=TQ2_0 38=MXFP4",
    )
)
"""llama.cpp's numbers for how most of a file is quantised."""
_PARAMETERS: Final = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty"),
)
"""Those of the settings that Ollama has too."""


async def version(backend: Backend, exchange: ApiExchange) -> None:
    await exchange.send_json(200, {"version": VERSION})


async def greet(backend: Backend, exchange: ApiExchange) -> None:
    """Answer ``/``, where programs look whether an Ollama is there."""
    body = b"Ollama is running"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await exchange.begin(200, headers)
    await exchange.send({"type": "http.response.body", "body": body, "more_body": False})


async def tags(backend: Backend, exchange: ApiExchange) -> None:
    """List the models."""
    served = backend.deployments.visible(exchange.allowed_deployments)
    stats = await stats_of_all(backend, served)
    models = [_model(backend, each, stats[each.name]) for each in served]
    await exchange.send_json(200, {"models": models})


async def running(backend: Backend, exchange: ApiExchange) -> None:
    """List the models that are loaded: ``/api/ps``."""
    served = [
        each
        for each in backend.deployments.visible(exchange.allowed_deployments)
        if backend.deployments.status(each)[0] == "loaded"
    ]
    stats = await stats_of_all(backend, served)
    models = [_running(backend, each, stats[each.name]) for each in served]
    await exchange.send_json(200, {"models": models})


async def show(backend: Backend, exchange: ApiExchange) -> None:
    """Describe one model."""
    values = await exchange.read_record(backend.limits, show_record)
    backend = _named(backend, exchange, text_in(values, "model"))
    served = backend.deployment
    stats = await own_stats(backend)
    template = template_of(backend, stats) or ""
    parameters = _parameters(backend, stats)
    metadata = _metadata(stats)
    modelfile = [f"FROM {_shown_name(served)}", f'TEMPLATE """{template}"""']
    modelfile += [f"PARAMETER {name} {value}" for name, value in parameters.items()]
    body: Json = {
        "modelfile": "\n".join(modelfile),
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": template,
        "details": _details(stats),
        "model_info": _model_info(stats),
        "capabilities": _capabilities(served, stats),
        "modified_at": _modified_at(backend),
    }
    if "general.license" in metadata:
        body["license"] = metadata["general.license"]
    await exchange.send_json(200, body)


async def pull(backend: Backend, exchange: ApiExchange) -> None:
    """Succeed for a model that is served; another one is for the operator to bring."""
    values = await exchange.read_record(backend.limits, pull_record)
    name = text_in(values, "model")
    try:
        _named(backend, exchange, name)
    except ApiError as error:
        raise ApiError(
            501,
            f"{error.message}; models are fetched by the operator, with `paddler-trio model set` "
            "or `paddler-trio fleet apply`, and not by request",
        ) from error
    success = {"status": "success"}
    if values.get("stream") is False:
        await exchange.send_json(200, success)
        return
    await exchange.begin(200, NDJSON_HEADERS)
    body = line({"status": "pulling manifest"}) + line(success)
    await exchange.send({"type": "http.response.body", "body": body, "more_body": False})


def _named(backend: Backend, exchange: ApiExchange, asked: str | None) -> Backend:
    """Return the backend of exactly this model; ApiError 400 without a name, 404."""
    if asked is None:
        raise ApiError(400, "model is required", param="model")
    name = plain_name(backend, asked)
    try:
        served = backend.deployments.named(name, exchange.allowed_deployments)
    except NoSuchModelError as error:
        raise no_such_model(error) from error
    return attrs.evolve(backend, routed_to=served)


# ---------------------------------------------------------------------------------- descriptions


def _shown_name(served: Deployment) -> str:
    return served.id if ":" in served.id.rpartition("/")[2] else served.id + LATEST


def _modified_at(backend: Backend) -> str:
    return rfc3339(datetime.fromtimestamp(backend.created_s, UTC))


def _model(backend: Backend, served: Deployment, stats: Mapping[str, object]) -> Json:
    name = _shown_name(served)
    return {
        "name": name,
        "model": name,
        "modified_at": _modified_at(backend),
        "size": stats.get("size_bytes", 0),
        "digest": served.digest,
        "details": _details(stats),
    }


def _running(backend: Backend, served: Deployment, stats: Mapping[str, object]) -> Json:
    """Return a model that is loaded. It is known whether layers are on a GPU, and not how many:
    then all are taken to be."""
    model = _model(backend, served, stats)
    del model["modified_at"]
    state = served.state
    is_on_gpu = state is not None and state.inference_parameters.n_gpu_layers != 0
    return {
        **model,
        "expires_at": NEVER,
        "size_vram": model["size"] if is_on_gpu else 0,
        "context_length": stats.get("n_ctx", 0),
    }


def _metadata(stats: Mapping[str, object]) -> Mapping[str, str]:
    """Return what agents tell of the file; older ones tell nothing."""
    metadata = stats.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _details(stats: Mapping[str, object]) -> Json:
    metadata = _metadata(stats)
    family = metadata.get("general.architecture", "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _in_words(stats.get("n_params", 0)),
        "quantization_level": _FILE_TYPES.get(metadata.get("general.file_type", ""), "unknown"),
    }


def _in_words(number: object) -> str:
    """Return a number of parameters as Ollama writes it, such as ``3.2B``; empty for none."""
    if not isinstance(number, int):
        return ""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if unit in "TB" else f"{number / size:.2f}{unit}"
    return str(number) if number else ""


def _model_info(stats: Mapping[str, object]) -> Json:
    """Return what the file says of itself; numbers as numbers, but for those that are names."""
    info: Json = {name: _value(name, text) for name, text in _metadata(stats).items()}
    if "n_params" in stats:
        info["general.parameter_count"] = stats["n_params"]
    return info


def _value(name: str, text: str) -> object:
    if name.startswith("general.") and name not in _GENERAL_NUMBERS:
        return text
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            value = kind(text) if len(text) <= MAX_DIGITS else None
        except ValueError:
            continue
        if value is not None and isfinite(value):
            return value
    return text


_GENERAL_NUMBERS: Final = frozenset({"general.file_type", "general.quantization_version"})
MAX_DIGITS: Final = 32


def _parameters(backend: Backend, stats: Mapping[str, object]) -> Json:
    settings = sampling_settings(cluster_parameters(backend), SamplingOverrides())
    chosen = {name: settings[name] for name in _PARAMETERS}
    return {**chosen, "num_ctx": stats["n_ctx"]} if "n_ctx" in stats else chosen


def _capabilities(served: Deployment, stats: Mapping[str, object]) -> list[str]:
    if not served.generates_tokens:
        return ["embedding"]
    more = {"vision": "can_see", "tools": "has_tools", "thinking": "has_thinking"}
    return ["completion", *(name for name, own in more.items() if stats.get(own) is True)]
