"""What guards add to an exchange for those behind them is not there for those before them."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_accounts import KeyAccounts
from paddler_trio.balancer.keys.key_limiter import KeyLimiter
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.balancer.reverse_proxy.forwarding import Forwarding
from paddler_trio.balancer.reverse_proxy.reverse_proxy import UpstreamFront
from paddler_trio.balancer.reverse_proxy.server_pools import ServerPools
from paddler_trio.net.server.asgi import Message, send_text
from paddler_trio.net.server.exchange import Exchange, Identity, refuse_in_plain_text
from paddler_trio.nursery_tree.dispatcher import Dispatcher, DispatchLimits
from paddler_trio.scheduler.limits.key_limits import KeyLimits

BODY = b'{"model": "house"}'


@pytest.fixture
def limiter(tmp_path: Path) -> KeyLimiter:
    """The limits of one key, ``k``."""
    terms = KeyTerms(limits=KeyLimits(requests_per_minute=9))
    scopes = frozenset({KeyScope.INFERENCE})
    path = tmp_path / "keys.json"
    key = StoredKey.of("pt-k", name="k", scopes=scopes, created="", terms=terms)
    write_key_file(path, KeyFile().having(key))
    return KeyLimiter(KeyAccounts(KeyRing.read(path), lambda: 0.0))


async def unasked(exchange: Exchange) -> None:
    raise AssertionError("the server's model is named")


async def test_a_refusal_before_the_limits_has_no_fields_of_them(limiter: KeyLimiter) -> None:
    dispatcher = Dispatcher(DispatchLimits(max_buffered=1))
    dispatcher.pools.open_upstream("house")
    front = UpstreamFront(
        api=unasked,
        refuse=refuse_in_plain_text,
        limited=limiter,
        forwarding=Forwarding(dispatcher=dispatcher),
        pools=ServerPools(dispatcher),
        is_unserved=lambda: False,
    )
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    scope = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"x-paddler-agent", b"none")],
    }
    identity = Identity(account="k")
    await front(exchange_for(scope, receive, send, identity=identity, raw_response=object()))
    assert said[0]["status"] == 503
    assert b"no agent 'none' is connected" in said[1]["body"]
    assert [name for name, _ in said[0]["headers"] if b"ratelimit" in name.lower()] == []


async def test_a_request_within_limits_is_let_go_of_without_the_collector(
    limiter: KeyLimiter,
) -> None:
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def ok(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, "ok")

    exchange = exchange_for({"method": "POST"}, send=send, identity=Identity(account="k"))
    left = weakref.ref(exchange)
    gc.disable()
    try:
        await limiter(ok)(exchange)
        del exchange
        assert left() is None
    finally:
        gc.enable()
    assert any(b"ratelimit" in name.lower() for name, _ in said[0]["headers"])
