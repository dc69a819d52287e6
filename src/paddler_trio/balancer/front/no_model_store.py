"""``/api/v2/store`` on a balancer that was started without a model store."""

from __future__ import annotations

from paddler_trio.net.server.asgi import Receive, Scope, Send, send_text

ADVICE = (
    "this balancer has no model store: start it with --model-store DIR --model-store-size 200GB"
)


async def no_model_store(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what to do, whatever was asked."""
    await send_text(send, 501, ADVICE)
