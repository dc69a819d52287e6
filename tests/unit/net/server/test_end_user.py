"""Who a request is for: from the header or the body, as nothing but a hash."""

from __future__ import annotations

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.front.end_user import MAX_USER_CHARS, user_in, user_of
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Exchange


def header(value: str) -> Exchange:
    return exchange_for({"headers": [(b"x-paddler-user", value.encode())]})


def test_one_user_is_one_hash_wherever_the_name_stands() -> None:
    hashed = user_of(header("anna@example.org"))
    assert "anna" not in hashed
    assert len(hashed) == 16
    assert user_of(header("  anna@example.org ")) == hashed
    for body in (
        {"user": "anna@example.org"},
        {"user": "ben", "safety_identifier": "anna@example.org"},
        {"metadata": {"user_id": "anna@example.org"}},
        {"user": "", "metadata": {"user_id": "anna@example.org"}},
    ):
        assert user_in(body) == hashed
    assert user_in({"user": "ben"}) != hashed


def test_without_a_name_there_is_no_user() -> None:
    assert user_of(exchange_for({})) == user_of(header("  ")) == ""
    for body in ({}, {"user": None}, {"metadata": {"user_id": 7}}, {"metadata": "anna"}):
        assert user_in(body) == ""


def test_a_name_is_bounded() -> None:
    longest = "u" * MAX_USER_CHARS
    assert user_of(header(longest)) == user_in({"user": longest})
    with pytest.raises(HttpProblem, match=r"X-Paddler-User has 513 characters, the limit is 512"):
        user_of(header(longest + "u"))
    with pytest.raises(HttpProblem, match=r"metadata\.user_id has 513 characters"):
        user_in({"metadata": {"user_id": longest + "u"}})
