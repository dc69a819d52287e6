"""Who takes a turn in the queue, of requests whose programs know nothing of it."""

from __future__ import annotations

import json

import pytest

from exchanges import exchange_for
from paddler_trio.balancer.front.end_user import user_in
from paddler_trio.balancer.reverse_proxy.server_pools import forwarded_client, forwarded_user
from paddler_trio.net.server.exchange import Exchange, Identity
from paddler_trio.scheduler.dispatch.fair_order import Priority


def asked(*headers: tuple[bytes, bytes], address: str = "10.0.0.7", key: str = "") -> Exchange:
    scope = {"headers": list(headers), "client": (address, 4711)}
    return exchange_for(scope, identity=Identity(key))


def client(*headers: tuple[bytes, bytes], address: str = "10.0.0.7", key: str = "") -> str:
    return forwarded_client(asked(*headers, address=address, key=key))[0]


SHOWN = (b"authorization", b"Bearer sk-mine")


def test_a_name_goes_before_a_key_that_is_for_the_server_and_that_before_the_address() -> None:
    named = (b"x-paddler-client", b"batch")
    assert client(named, SHOWN, key="team") == "team"
    assert client(named, SHOWN) == "batch"
    assert client(SHOWN) == client(SHOWN, address="10.0.0.8")
    assert client() == "10.0.0.7"
    assert forwarded_client(asked((b"x-paddler-priority", b"low")))[1] is Priority.LOW


@pytest.mark.parametrize("field", [b"authorization", b"x-api-key", b"api-key"])
def test_a_key_tells_clients_apart_and_stands_nowhere(field: bytes) -> None:
    one, another = client((field, b"sk-one")), client((field, b"sk-another"))
    assert one != another
    assert "sk-one" not in one
    assert len(one) == len("key 12345678")


@pytest.mark.parametrize(
    "body",
    [
        {"user": "anna"},
        {"safety_identifier": "anna"},
        {"metadata": {"user_id": "anna"}},
    ],
)
async def test_the_user_is_who_the_body_says_unless_the_header_does(body: dict[str, str]) -> None:
    text = json.dumps(body).encode()
    assert await forwarded_user(asked(), text) == user_in({"user": "anna"})
    header = (b"x-paddler-user", b"ben")
    assert await forwarded_user(asked(header), text) == user_in({"user": "ben"})


@pytest.mark.parametrize("at", ["beginning", "end"])
async def test_a_long_body_names_its_user_where_it_begins_or_ends(at: str) -> None:
    user, rest = b'"user": "anna"', b'"prompt": "' + 10_000_000 * b"a" + b'"'
    members = [user, rest] if at == "beginning" else [rest, user]
    text = b"{%b, %b}" % tuple(members)
    assert await forwarded_user(asked(), text) == user_in({"user": "anna"})


@pytest.mark.parametrize(
    "text",
    [
        b'{"messages": [{"role": "user", "content": "hello"}]}',
        b'{"user": 7}',
        b'{"user": "anna"',
        b'["user": ]',
        b'{"user": "' + 513 * b"a" + b'"}',
        b"",
    ],
)
async def test_a_body_that_names_no_user_is_for_the_server_to_judge(text: bytes) -> None:
    assert await forwarded_user(asked(), text) == ""
