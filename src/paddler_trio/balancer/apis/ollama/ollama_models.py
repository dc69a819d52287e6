"""The models as Ollama lists and describes them.

A name without a tag is listed with ``:latest``, as Ollama has them: programs look for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    stats_of_all,
    template_of,
)
from paddler_trio.balancer.apis.ollama.ollama_fields import show_record
from paddler_trio.balancer.fleet.deployment import LATEST, Deployment
from paddler_trio.balancer.fleet.deployments import NoSuchModelError
from paddler_trio.wire.scalars import rfc3339
from paddler_trio.wire.trio.work import SamplingOverrides

VERSION: Final = "0.13.0"
"""The version of Ollama's API that this is: programs ask for at least some version."""
NEVER: Final = "2318-01-01T00:00:00Z"
"""The time at which a model is unloaded of which nobody knows it."""
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
    described = await _described(backend, served)
    await exchange.send_json(200, {"models": [each.listed() for each in described]})


async def running(backend: Backend, exchange: ApiExchange) -> None:
    """List the models that are loaded: ``/api/ps``."""
    served = [
        each
        for each in backend.deployments.visible(exchange.allowed_deployments)
        if backend.deployments.status(each)[0] == "loaded"
    ]
    described = await _described(backend, served)
    await exchange.send_json(200, {"models": [each.running() for each in described]})


async def show(backend: Backend, exchange: ApiExchange) -> None:
    """Describe one model."""
    values = await exchange.read_record(backend.limits, show_record)
    backend = named(backend, exchange, text_in(values, "model"))
    (model,) = await _described(backend, [backend.deployment])
    template = template_of(backend, model.stats) or ""
    settings = sampling_settings(cluster_parameters(backend), SamplingOverrides())
    parameters = [(name, settings[name]) for name in _PARAMETERS]
    if "n_ctx" in model.stats:
        parameters.append(("num_ctx", model.stats["n_ctx"]))
    modelfile = [f"FROM {model.name}", f'TEMPLATE """{template}"""']
    modelfile += [f"PARAMETER {name} {value}" for name, value in parameters]
    preset = backend.deployment.preset
    system = None if preset is None else preset.system
    if system is not None:
        modelfile.append(f'SYSTEM """{system}"""')
    text = model.metadata.get("general.license")
    body = {
        **({} if text is None else {"license": text}),
        **({} if system is None else {"system": system}),
        "modelfile": "\n".join(modelfile),
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters),
        "template": template,
        "details": model.details(),
        "model_info": model.info(),
        "capabilities": model.capabilities(),
        "modified_at": model.modified_at,
    }
    await exchange.send_json(200, body)


def named(
    backend: Backend, exchange: ApiExchange, asked: str | None, field: str = "model"
) -> Backend:
    """Return the backend of exactly this model; ApiError 400 without a name, 404."""
    if not asked:
        raise ApiError(400, f"{field} is required", param=field)
    try:
        served = backend.deployments.named(asked, exchange.allowed_deployments)
    except NoSuchModelError as error:
        raise no_such_model(error) from error
    return attrs.evolve(backend, routed_to=served)


# ---------------------------------------------------------------------------------- descriptions


async def _described(backend: Backend, served: Sequence[Deployment]) -> list[OllamaModel]:
    stats = await stats_of_all(backend, served)
    modified_at = rfc3339(datetime.fromtimestamp(backend.created_s, UTC))
    return [OllamaModel(each, stats[each.name], modified_at) for each in served]


@attrs.frozen
class OllamaModel:
    """One model; ``stats`` is how an agent describes it, empty while none has it loaded."""

    served: Deployment
    stats: Mapping[str, object]
    modified_at: str

    @property
    def name(self) -> str:
        own = self.served.id
        return own if ":" in own.rpartition("/")[2] else own + LATEST

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return what agents tell of the file; older ones tell nothing."""
        metadata = self.stats.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    def listed(self) -> object:
        return {**self._named(), "modified_at": self.modified_at}

    def running(self) -> object:
        """It is known whether layers are on a GPU, and not how many: then all are taken to be."""
        state = self.served.state
        is_on_gpu = state is not None and state.inference_parameters.n_gpu_layers != 0
        return {
            **self._named(),
            "expires_at": NEVER,
            "size_vram": self.stats.get("size_bytes", 0) if is_on_gpu else 0,
            "context_length": self.stats.get("n_ctx", 0),
        }

    def _named(self) -> Mapping[str, object]:
        return {
            "name": self.name,
            "model": self.name,
            "size": self.stats.get("size_bytes", 0),
            "digest": self.served.shown_digest,
            "details": self.details(),
        }

    def details(self) -> object:
        family = self.metadata.get("general.architecture", "")
        file_type = self.metadata.get("general.file_type", "")
        return {
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": [family] if family else [],
            "parameter_size": _in_words(self.stats.get("n_params", 0)),
            "quantization_level": _FILE_TYPES.get(file_type, "unknown"),
        }

    def info(self) -> object:
        """Return what the file says of itself; numbers as numbers, but for those that are names."""
        own = {name: _value(name, text) for name, text in self.metadata.items()}
        count = {"general.parameter_count": self.stats["n_params"]} if self.stats else {}
        return own | count

    def capabilities(self) -> list[str]:
        if not self.served.generates_tokens:
            return ["embedding"]
        more = {
            "vision": "can_see",
            "audio": "can_hear",
            "tools": "has_tools",
            "thinking": "has_thinking",
        }
        return ["completion", *(name for name, own in more.items() if self.stats.get(own) is True)]


def _in_words(number: object) -> str:
    """Return a number of parameters as Ollama writes it, such as ``3.2B``; empty for none."""
    if not isinstance(number, int):
        return ""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if unit in "TB" else f"{number / size:.2f}{unit}"
    return str(number) if number else ""


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
