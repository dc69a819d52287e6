"""The model that a request names is found, or the request is refused: no other one answers it."""

from __future__ import annotations

import gzip
import json

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.reverse_proxy.server_pools import forwarded_user, model_in
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import MIB, InputBudget

BODY = json.dumps({"model": "b", "user": "u", "prompt": list(range(50_000))}).encode()


def asked(budget: InputBudget, *headers: tuple[bytes, bytes]) -> Exchange:
    return exchange_for({"headers": list(headers)}, room=budget.reservation())


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_model_is_found_in_a_body_as_it_comes_and_nothing_is_kept_for_it(
    *, is_packed: bool
) -> None:
    budget = InputBudget(64 * MIB)
    headers = [(b"content-encoding", b"gzip")] if is_packed else []
    exchange = asked(budget, *headers)
    assert await model_in(exchange, gzip.compress(BODY) if is_packed else BODY) == "b"
    assert await model_in(exchange, b'{"model": 1}' if not is_packed else b"no gzip") is None
    assert budget.held_bytes == 0


async def test_without_room_to_look_the_request_is_refused_and_not_another_models() -> None:
    budget = InputBudget(MIB)
    with pytest.raises(HttpProblem) as caught:
        await model_in(asked(budget), BODY)
    assert caught.value.status == 503
    assert budget.held_bytes == 0


async def test_what_names_a_user_is_not_kept_either() -> None:
    budget = InputBudget(64 * MIB)
    assert await forwarded_user(asked(budget), BODY)
    assert budget.held_bytes == 0
