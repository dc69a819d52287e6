"""What a credential opens, what opens without one, and what nobody gets without a key."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from joining_world import CLIENT, MANAGER, SOCKET, JoiningWorld, join_body
from trio.testing import MockClock

from paddler_trio.balancer.status.refused_agents import FORGOTTEN_S, MAX_ADDRESSES
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import new_secret

TRIO = [(b"sec-websocket-protocol", b"paddler-trio.1")]


@pytest.mark.parametrize(
    ("method", "path", "bare", "credential", "manager", "client"),
    [
        ("WS", SOCKET, 401, 101, 101, 403),
        ("WS", "/api/v2/feed", 401, 403, 403, 403),
        ("GET", "/api/v2/store/url/abc", 401, 200, 200, 403),
        ("HEAD", "/api/v2/store/blobs/sha256/a", 401, 200, 200, 403),
        ("PUT", "/api/v2/store/blobs/sha256/a", 401, 403, 200, 403),
        ("DELETE", "/api/v2/store/pins/a", 401, 403, 200, 403),
        ("GET", "/api/v2/storekeeper", 401, 403, 200, 403),
        ("GET", "/api/v2/agents", 401, 403, 200, 403),
        ("PUT", "/api/v1/balancer_desired_state", 401, 403, 200, 403),
        ("GET", "/api/v2/join-tokens", 401, 403, 200, 403),
        ("GET", "/api/v2/agent-credentials", 401, 403, 200, 403),
        ("GET", SOCKET, 401, 403, 400, 403),
        ("GET", "/health", 200, 200, 200, 200),
        ("GET", "/api/v2/join", 200, 200, 200, 200),
        ("DELETE", "/api/v2/join", 401, 403, 200, 403),
        ("POST", "/api/v2/join/", 401, 403, 200, 403),
    ],
)
async def test_who_opens_what(
    tmp_path: Path, method: str, path: str, bare: int, credential: int, manager: int, client: int
) -> None:
    world = JoiningWorld(tmp_path)
    shown = (await world.joined()).render()
    wanted = {None: bare, shown: credential, MANAGER: manager, CLIENT: client}
    found = {key: (await world.ask(method, path, key=key)).status for key in wanted}
    assert found == wanted
    in_other_header = await world.ask(method, path, headers=[(b"x-api-key", shown.encode())])
    assert in_other_header.status == credential


async def test_a_credential_that_is_none_is_refused_with_advice(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    shown = await world.joined()
    for text in (
        AgentCredential(shown.id, new_secret()).render(),
        AgentCredential("0" * 12, shown.secret).render(),
        "pta1.",
        "pta1." + "x" * 5000,
        shown.render() + "x",
        "pta1.\xff",
    ):
        answer = await world.ask("WS", SOCKET, headers=[(b"x-api-key", text.encode("latin-1"))])
        assert answer.status == 401
        assert "paddler-trio join" in answer.text
        assert shown.secret not in answer.text
    await world.registry.revoke("gpu")
    assert (await world.ask("WS", SOCKET, key=shown.render())).status == 401
    assert world.keys.refusals == 7


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("10.0.0.7", [], 101),
        ("::ffff:10.0.0.7", [], 101),
        ("fd00::7%eth0", [], 101),
        ("10.0.1.7", [], 401),
        ("unknown", [], 401),
        ("10.0.1.7", [(b"x-forwarded-for", b"10.0.0.7")], 401),
        ("10.0.1.7", [(b"forwarded", b"for=10.0.0.7")], 401),
        ("10.0.0.7", TRIO, 401),
        ("10.0.0.7", [(b"authorization", b"Bearer pt-wrong")], 401),
        ("10.0.0.7", [(b"x-api-key", b"pta1.wrong")], 401),
    ],
)
async def test_legacy_agents_come_from_their_networks_only(
    tmp_path: Path, address: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    world = JoiningWorld(tmp_path, legacy=("10.0.0.0/24", "fd00::/64"))
    assert (await world.ask("WS", SOCKET, headers=headers, address=address)).status == status


async def test_legacy_agents_get_nothing_else(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path, legacy=("10.0.0.0/24",))
    for method, path in (
        ("GET", "/api/v2/store"),
        ("GET", "/api/v1/agents"),
        ("POST", "/api/v2/join-tokens"),
        ("WS", "/api/v2/feed"),
    ):
        assert (await world.ask(method, path, address="10.0.0.7")).status == 401


async def test_without_a_management_key_no_token_is_made(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path, has_keys=False)
    answer = await world.ask("POST", "/api/v2/join-tokens", body={})
    assert answer.status == 409
    assert "paddler-trio key new" in answer.text
    listed = await world.ask("GET", "/api/v2/join-tokens")
    assert listed.json() == {"tokens": [], "problem": answer.text}


async def test_without_a_file_no_token_is_made(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    world.registry.path = None
    answer = await world.ask("POST", "/api/v2/join-tokens", key=MANAGER, body={})
    assert answer.status == 409
    assert "--agents-file" in answer.text


async def test_where_one_has_joined_agents_show_something_also_without_keys(tmp_path: Path) -> None:
    await JoiningWorld(tmp_path).joined()
    world = JoiningWorld(tmp_path, has_keys=False)  # as if started again without --api-key-file
    assert (await world.ask("WS", SOCKET)).status == 401
    assert (await world.ask("GET", "/api/v2/agents")).status == 200
    waived = JoiningWorld(tmp_path, is_waived=True)
    assert (await waived.ask("WS", SOCKET)).status == 101


async def test_insecure_management_decides_nothing_about_who_joins(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path, is_waived=True)
    for method, path in (
        ("POST", "/api/v2/join-tokens"),
        ("DELETE", "/api/v2/join-tokens/abc"),
        ("DELETE", "/api/v2/agent-credentials/gpu"),
    ):
        assert (await world.ask(method, path, body={})).status == 403
    await world.token()


async def test_revoking_over_the_api_ends_the_link(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    shown = await world.joined()
    listed = (await world.ask("GET", "/api/v2/agent-credentials", key=MANAGER)).json()
    (view,) = listed["credentials"]  # type: ignore[misc]
    assert set(view) == {
        *("name", "id", "created", "rotated", "last_seen", "address", "connected"),
        *("suspicious", "labels", "token", "expires"),
    }
    assert (view["name"], view["connected"], view["suspicious"]) == ("gpu", False, None)
    gone = trio.Event()

    async def hold() -> None:
        with world.registry.link(shown.id, "p", "127.0.0.1"):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        path = "/api/v2/agent-credentials/gpu"
        assert (await world.ask("DELETE", path, key=MANAGER)).status == 204
        assert (await world.ask("DELETE", path, key=MANAGER)).status == 404
        gone.set()
    assert gone.is_set()


async def test_bad_orders_are_refused_with_the_field(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    for order, problem in (
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 31 * 86_400}, "ttl_s"),
        ({"ttl_s": True}, "ttl_s"),
        ({"uses": 10_001}, "uses"),
        ({"uses": 2, "name": "gpu"}, "uses"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": {f"k{n}": "v" for n in range(33)}}, "labels"),
        ({"name": "no spaces"}, "name"),
        ({"address": "nowhere"}, "address"),
        ({"address": "https://a:1/path"}, "address"),
        ({"ttl": 5}, "must be an object of"),
        ([], "must be an object of"),
    ):
        answer = await world.ask("POST", "/api/v2/join-tokens", key=MANAGER, body=order)
        assert (answer.status, problem in answer.text) == (400, True), answer.text


async def test_failures_to_join_are_limited_by_address(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    _, token_id, secret, *_ = await world.token()
    wrong = join_body(token_id, new_secret(), new_secret())
    answers = [
        (await world.ask("POST", "/api/v2/join", body=wrong, address="10.0.0.1")).status
        for _ in range(12)
    ]
    assert answers == [401] * 10 + [429] * 2
    limited = await world.ask("POST", "/api/v2/join", body=wrong, address="10.0.0.1")
    assert any(name == b"retry-after" for name, _ in limited.headers)
    assert (await world.ask("POST", "/api/v2/join", body=wrong, address="10.0.0.2")).status == 401
    right = join_body(token_id, secret, new_secret())
    assert (await world.ask("POST", "/api/v2/join", body=right, address="10.0.0.1")).status == 201


async def test_a_machine_that_is_refused_is_named_until_it_may_come_in(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Nothing else shows one that waits for a key: it never becomes an agent."""
    world = JoiningWorld(tmp_path)
    credential = (await world.joined()).render()
    for _ in range(3):
        await world.ask("WS", SOCKET, address="10.0.0.9")
    await world.ask("WS", SOCKET, key="pt-agent.unknown.secret", address="10.0.0.7")
    await world.ask("GET", "/api/v2/agents", address="10.0.0.8")
    assert {each.address: (each.status, each.times) for each in world.refused.facts()} == {
        "10.0.0.9": (401, 3),
        "10.0.0.7": (401, 1),
    }
    await world.ask("WS", SOCKET, key=credential, address="10.0.0.9")
    await world.ask("WS", SOCKET, key=MANAGER, address="10.0.0.7")
    assert world.refused.facts() == []
    for number in range(2 * MAX_ADDRESSES):
        await world.ask("WS", SOCKET, address=f"10.0.1.{number}")
    assert len(world.refused.facts()) == MAX_ADDRESSES
    await trio.sleep(FORGOTTEN_S + 1)
    assert world.refused.facts() == [], "it does not try any more"
