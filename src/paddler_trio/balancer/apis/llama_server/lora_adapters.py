"""``/lora-adapters``: what requests choose from, and what is always applied."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final
from urllib.parse import urlsplit

from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.llama_server.model_routes import queried_model
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    UrlModel,
)

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


async def lora_adapters(backend: Backend, exchange: ApiExchange) -> None:
    """Return the adapters that requests choose by their ids, and then those that the operator set
    for all requests, without the folders they lie in. Without a choice only these are applied."""
    extras = backend.routed(exchange, queried_model(exchange)).deployment.extras
    chosen = [(each.name, _file_of(each.source), each.scale, False) for each in extras.adapters]
    always = [_adapter(text) for text in extras.engine.lora or ()]
    entries = [*chosen, *((PurePath(path).stem, path, scale, True) for path, scale in always)]
    adapters: list[Json] = [
        {
            "id": number,
            "name": name,
            "path": PurePath(path).name,
            "scale": scale,
            "task_name": "",
            "prompt_prefix": "",
            "is_applied": is_applied,
        }
        for number, (name, path, scale, is_applied) in enumerate(entries)
    ]
    await exchange.send_json(200, adapters)


def _file_of(source: DesiredModel) -> str:
    """Return the path of an adapter's file, which may not be shown."""
    match source:
        case LocalToAgent(path):
            return path
        case UrlModel(url):
            return urlsplit(url).path
        case HuggingFaceModel(filename=filename):
            return filename
    return ""


def _adapter(text: str) -> tuple[str, float]:
    """Return the path and the scale of ``PATH`` or ``PATH=SCALE``."""
    path, equals, scale = text.rpartition("=")
    is_scaled = equals and _NUMBER.fullmatch(scale)
    return (path, float(scale)) if is_scaled else (text, 1.0)
