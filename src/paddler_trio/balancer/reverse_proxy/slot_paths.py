"""Tell which requests to a server take one of its slots: those that its model works on.

Everything else (models, tokens of a text, properties, the web page, what nobody knows here) is
answered by its HTTP threads at once, and waits for no slot.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from paddler_trio.balancer.keys.key_limiter import WORK_METHODS

_WITH_AND_WITHOUT_VERSION: Final = (
    "chat/completions",
    "completions",
    "embeddings",
    "rerank",
    "reranking",
    "responses",
    "messages",
    "score",
    "classify",
    "pooling",
    "audio/transcriptions",
    "audio/translations",
    "audio/speech",
    "images/generations",
    "images/edits",
)
_LLAMA_SERVER: Final = ("/completion", "/infill", "/embedding", "/predict")
"""The last one where it serves as Google Cloud wants it, with ``AIP_MODE=PREDICTION``."""
_OLLAMA: Final = ("/api/generate", "/api/chat", "/api/embed", "/api/embeddings")
_LM_STUDIO: Final = ("/api/v0/chat/completions", "/api/v0/completions", "/api/v0/embeddings")
_TGI: Final = ("/generate", "/generate_stream", "/embed")
_VLLM: Final = ("/v2/rerank", "/v2/embed", "/invocations")
SLOT_PATHS: Final = frozenset(
    {
        *(f"/v1/{path}" for path in _WITH_AND_WITHOUT_VERSION),
        *(f"/{path}" for path in _WITH_AND_WITHOUT_VERSION),
        *_LLAMA_SERVER,
        *_OLLAMA,
        *_LM_STUDIO,
        *_TGI,
        *_VLLM,
    }
)
WEBSOCKET_SLOT_PATHS: Final = SLOT_PATHS | {"/v1/realtime", "/realtime"}
"""WebSockets through which a model is worked with: they have a slot as long as they are open."""
_ONE_SLOT: Final = re.compile(r"/slots/(\d{1,9})", re.ASCII)
_ID_SLOT: Final = re.compile(rb'"id_slot"\s*:\s*(\d{1,9})\s*[,}]')
_LOOK_AT_BYTES: Final = 1_048_576


def takes_slot(method: str, path: str, *, upgrades: bool = False) -> bool:
    """``path`` is percent-decoded; ``upgrades``: a WebSocket is asked for.

    A path that a server may take for one of these, because it overlooks slashes, dots and the case
    of letters, is one: else it would be a way past the queue.
    """
    path = plain_path(path).lower()
    if upgrades:
        return path in WEBSOCKET_SLOT_PATHS
    return method in WORK_METHODS and path in SLOT_PATHS


def plain_path(path: str) -> str:
    """Without the slashes and dots that a server may overlook."""
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + posixpath.normpath(path).lstrip("/")
    return path


def slot_of(path: str, body: bytes | bytearray) -> int | None:
    """Return the number of the slot that llama-server shall use for this request, if it names one:
    it means a slot of one server, and its number is one of every server."""
    found = _ONE_SLOT.fullmatch(path)
    if found is not None:
        return int(found[1])
    if b'"id_slot"' not in body[:_LOOK_AT_BYTES]:
        return None
    named = _ID_SLOT.search(body, 0, _LOOK_AT_BYTES)
    return None if named is None else int(named[1])
