"""Routes of llama-server that a fleet cannot serve: each is answered with the reason.

llama-server answers most of these so itself unless it was started with a flag for them. Where it
would list what there is, and there can be none, the list is empty.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.api_router import ApiRoutes, Endpoint
from paddler_trio.apis.backend import Backend
from paddler_trio.apis.exchange import Exchange

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_UNSUPPORTED = {
    ("POST", "/props"): "settings are the operator's; change them on the management port",
    ("POST", "/slots/{slot...}"): (
        "slots are not saved, restored or erased by request; equal beginnings are found by their "
        "tokens, and cache_prompt: false keeps a prompt out"
    ),
    ("POST", "/lora-adapters"): (
        "adapters are not chosen by a request; the operator sets them for the whole fleet"
    ),
    ("POST", "/infill"): "infill is not supported; write the prompt with the model's own markers",
    ("GET", "/metrics"): "metrics are on the management port of the balancer, /metrics",
    ("POST", "/v1/audio/transcriptions"): "the model hears nothing",
    ("POST", "/audio/transcriptions"): "the model hears nothing",
    ("POST", "/v1/chat/completions/control"): (
        "a running answer is not steered; bound its reasoning with reasoning_budget_tokens, or "
        "close the connection"
    ),
}


def add_unsupported_routes(routes: ApiRoutes) -> None:
    """501 with a sentence on every route of llama-server that nothing else answers."""
    for (method, path), why in _UNSUPPORTED.items():
        routes.add(method, path, _refusing(method, path.partition("/{")[0], why))
    routes.add("GET", "/lora-adapters", lora_adapters)


def _refusing(method: str, path: str, why: str) -> Endpoint:
    async def refuse(backend: Backend, exchange: Exchange) -> None:
        raise ApiError(501, f"{method} {path} is not supported: {why}")

    return refuse


async def lora_adapters(backend: Backend, exchange: Exchange) -> None:
    """The adapters that the operator set for all agents, without the folders they lie in."""
    adapters: list[dict[str, object]] = []
    for number, adapter in enumerate(backend.states.extras.engine.lora or ()):
        path, scale = _adapter(adapter)
        adapters.append({"id": number, "path": PurePath(path).name, "scale": scale})
    await exchange.send_json(200, adapters)


def _adapter(text: str) -> tuple[str, float]:
    """The path and the scale of ``PATH`` or ``PATH=SCALE``."""
    path, equals, scale = text.rpartition("=")
    is_scaled = equals and _NUMBER.fullmatch(scale)
    return (path, float(scale)) if is_scaled else (text, 1.0)
