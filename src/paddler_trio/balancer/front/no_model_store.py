"""``/api/v2/store`` on a balancer that was started without a model store."""

from __future__ import annotations

from paddler_trio.net.server.asgi import send_text
from paddler_trio.net.server.exchange import Exchange

ADVICE = (
    "this balancer has no model store: start it with --model-store DIR --model-store-size 200GB"
)


async def no_model_store(exchange: Exchange) -> None:
    """Answer what to do, whatever was asked."""
    await send_text(exchange.send, 501, ADVICE)
