"""Begin every chunk of an answer of OpenAI's APIs, under the name of what wrote it."""

from __future__ import annotations

import secrets
import time

import attrs

from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, fingerprint, model_name
from paddler_trio.balancer.apis.shapes import Json


@attrs.define(kw_only=True)
class Heading:
    """Begin every chunk of one answer alike. ``created`` is in seconds since 1970; the
    names are of what answers, and right from the first token on."""

    model: str
    fingerprint: str
    created: int
    id: str = attrs.field(factory=lambda: "chatcmpl-" + secrets.token_urlsafe(21))

    def fields(self, kind: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def heading_of(
    backend: Backend, exchange: ApiExchange, asked: str | None, *, prefix: str = "chatcmpl-"
) -> Heading:
    """Return the heading of an answer to this request, with an id that begins with ``prefix``."""

    def name() -> None:
        heading.model = model_name(backend, exchange, asked)
        heading.fingerprint = fingerprint(backend, exchange)

    heading = Heading(
        model=model_name(backend, exchange, asked),
        fingerprint=fingerprint(backend, exchange),
        created=int(time.time()),
        id=prefix + secrets.token_urlsafe(21),
    )
    exchange.on_revision = name
    return heading
