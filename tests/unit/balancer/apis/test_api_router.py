"""Which API answers for which path."""

from __future__ import annotations

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.api_router import OPENAI, TAIL, ApiRouter, ApiRoutes
from paddler_trio.balancer.apis.api_routes import ANTHROPIC
from paddler_trio.balancer.apis.backend import Backend


async def endpoint(backend: Backend, exchange: ApiExchange) -> None:
    raise AssertionError("no test calls it")


def routed() -> ApiRouter:
    routes = ApiRoutes()
    routes.add("GET", "/v1/models", endpoint)
    routes.add("GET", f"/v1/models/{{{TAIL}...}}", endpoint)
    routes.add("POST", "/props", endpoint)
    return ApiRouter(None, routes, [ANTHROPIC])  # type: ignore[arg-type]  # for its routes alone


@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/batches", True),
        ("/v1/messages/batches/1/results", True),
        ("/v1/messages/count_tokens/" + "a/" * 4000, True),
        ("/v1/messagesother", False),
        ("/v1/models/a/messages", False),
        ("/v1/" + "a/" * 4000, False),
        ("/v1", False),
        ("", False),
    ],
)
def test_an_unknown_path_is_refused_in_the_dialect_of_the_api_above_it(
    path: str, is_anthropic: bool
) -> None:
    expected = ANTHROPIC if is_anthropic else OPENAI
    assert routed().dialect(exchange_for({"path": path})) is expected


@pytest.mark.parametrize(
    ("path", "serves"),
    [
        ("/v1/models", True),
        ("/v1/models/org/name", True),
        ("/v1/unknown", True),
        ("/props", True),
        ("/props/", False),
        ("/v1", False),
        ("/api/v1/agents", False),
    ],
)
def test_the_apis_answer_for_version_one_and_their_routes(path: str, serves: bool) -> None:
    assert routed().serves(path) is serves
