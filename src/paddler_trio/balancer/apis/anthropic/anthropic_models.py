"""The list of models as Anthropic's API has it, for clients that send ``anthropic-version``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.balancer.fleet.deployment import Deployment

VERSION_HEADER: Final = b"anthropic-version"


def is_anthropic(exchange: ApiExchange) -> bool:
    """The official clients name the version of the API with every request."""
    return exchange.http.header(VERSION_HEADER) is not None


def anthropic_list(served: Sequence[Deployment], created_s: int) -> Json:
    """Return all of them on one page: there are no more than a page may have."""
    return {
        "data": [anthropic_model(each, created_s) for each in served],
        "has_more": False,
        "first_id": served[0].id if served else None,
        "last_id": served[-1].id if served else None,
    }


def anthropic_model(served: Deployment, created_s: int) -> Json:
    return {
        "type": "model",
        "id": served.id,
        "display_name": served.id,
        "created_at": datetime.fromtimestamp(created_s, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
    }
