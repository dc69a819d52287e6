"""Which web pages may use this surface, told to their browsers.

As on the native routes, the origins are those the operator listed; ``*`` among them is every one.
Beyond those routes, a page may send whatever headers it asks for: official clients that run in a
browser announce themselves in a dozen of their own. (``*`` as the answer would not do: browsers do
not count ``Authorization`` among what it covers.) Names are written as llama-server writes them:
there are clients that compare them letter by letter.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddler_trio.http.asgi import (
    App,
    Header,
    Message,
    Receive,
    Scope,
    Send,
    header,
    send_empty,
)

METHODS = b"GET, POST, DELETE, OPTIONS"
MAX_AGE_S = 3600
_READABLE = b"x-request-id, openai-processing-ms, retry-after, x-paddler-ignored-fields"
_VARY: Header = (b"vary", b"Origin, Access-Control-Request-Headers")


def cross_origin(app: App, allowed_origins: Iterable[str]) -> App:
    """``app`` with answers to browsers added; a preflight never reaches it."""
    allowed = frozenset(origin.encode() for origin in allowed_origins)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        origin = header(scope, b"origin")
        extra = [_VARY]
        if origin is not None and (origin in allowed or b"*" in allowed):
            extra.append((b"Access-Control-Allow-Origin", origin))
            extra.append((b"Access-Control-Expose-Headers", _READABLE))
            if origin in allowed:
                extra.append((b"Access-Control-Allow-Credentials", b"true"))
        asked = header(scope, b"access-control-request-method")
        if scope["method"] == "OPTIONS" and asked is not None:
            if len(extra) > 1:
                names = header(scope, b"access-control-request-headers") or b"*"
                extra.append((b"Access-Control-Allow-Methods", METHODS))
                extra.append((b"Access-Control-Allow-Headers", names))
                extra.append((b"Access-Control-Max-Age", b"%d" % MAX_AGE_S))
            await send_empty(send, 200, headers=extra)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer
