"""Tell which requests to a server take one of its slots: those that its model works on.

Everything else (models, tokens of a text, properties, the web page, what nobody knows here) is
answered by its HTTP threads at once, and waits for no slot.

WebSockets that hold slots of servers, and which of them gives its slot up where others wait.

A WebSocket has no end of its own, so the fair queue alone would never come to the next client.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.balancer.keys.key_limiter import WORK_METHODS
from paddler_trio.net.networks import household
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.nursery_tree.request import Buffered, Request
from paddler_trio.nursery_tree.request_endings import Failure

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


PATIENCE_S: Final = 1.0
"""The wait for a slot before a request asks for one that a WebSocket holds, and asks again."""
SILENCE_S: Final = 10.0
"""A WebSocket over which nothing but pings came for so long gives way to any other request."""
GAVE_WAY: Final = Failure(503, "Others wait, and this WebSocket was one of many or silent")


@attrs.define(eq=False)
class HeldSlot:
    """One WebSocket in a slot.

    Args:
      holder: the name of the API key, or the address, of IPv6 the household.
      give_up: ends it.
      heard_s: when something came last, either way.
    """

    pool: str
    holder: str
    give_up: Callable[[Failure], None]
    heard_s: float = attrs.field(factory=trio.current_time)

    def heard(self) -> None:
        """Note that something came, other than pings."""
        self.heard_s = trio.current_time()


@attrs.define(eq=False)
class SlotHolders:
    """All WebSockets of a balancer that hold slots."""

    _held: dict[HeldSlot, None] = attrs.field(factory=dict, init=False)

    async def turn(self, request: Request, exchange: Exchange, pool: str) -> None:
        """Wait until the request has a slot, or is over."""
        while True:
            with trio.move_on_after(PATIENCE_S):
                await request.left_phase(Buffered)
                return
            self.make_room(pool, exchange)

    @contextmanager
    def held(self, request: Request, exchange: Exchange, pool: str) -> Iterator[Callable[[], None]]:
        """Yield what notes that something came. A WebSocket counts here while the block lasts, and
        may have to give its slot up."""
        assert request.lease is not None
        progressed = request.lease.progressed
        if exchange.upgrade is None:
            yield progressed
            return
        held = HeldSlot(pool, holder_of(exchange), request.abort)

        def heard() -> None:
            held.heard()
            progressed()

        self._held[held] = None
        try:
            yield heard
        finally:
            del self._held[held]

    def make_room(self, pool: str, exchange: Exchange) -> None:
        """Have the one end that was silent longest, of those that have to give way to this request:
        of whom holds most, if that is at least two more than its own client holds; else of all that
        have been silent for ``SILENCE_S``."""
        held = [each for each in self._held if each.pool == pool]
        counts = Counter(each.holder for each in held)
        most = max(counts.values(), default=0)
        if most >= counts[holder_of(exchange)] + 2:
            held = [each for each in held if counts[each.holder] == most]
        else:
            long_ago_s = trio.current_time() - SILENCE_S
            held = [each for each in held if each.heard_s <= long_ago_s]
        if held:
            min(held, key=lambda each: each.heard_s).give_up(GAVE_WAY)


def holder_of(exchange: Exchange) -> str:
    """Return whose share it counts in: what anybody may say of himself counts for nothing."""
    return exchange.identity.key_name or household(exchange.client[0])
