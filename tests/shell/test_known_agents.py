"""Agents that were here stay known: through losses, goodbyes and restarts of the balancer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.balancer.status.known_agents import (
    BACK_S,
    MAX_KNOWN,
    NOT_SEEN,
    AgentIsHereError,
    KnownAgents,
)


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def lose(here: World, peer: Peer, *, said_goodbye: bool = False) -> None:
    peer.connection.said_goodbye = said_goodbye
    here.dispatcher.leave(peer.connection)


async def test_one_that_is_lost_is_offline_until_it_is_back(autojump_clock: MockClock) -> None:
    async with world() as here:
        known = KnownAgents(here.dispatcher)
        first, second = here.agent(name="a1"), here.agent(name="a2")
        assert (known.num_here, known.shown()) == (2, [])
        lose(here, first)
        lose(here, second, said_goodbye=True)
        assert [(each.name, each.state.word) for each in known.shown()] == [
            ("a1", "offline"),
            ("a2", "stopped"),
        ]
        assert known.offline("default") == 1, "one that was stopped is not missed"
        here.agent(name="a1")
        with pytest.raises(AgentIsHereError):
            known.forget("a1")
        assert list(known.gone) == ["a2"]
        assert known.forget("a2") is not None
        assert known.forget("a2") is None
        assert known.offline("default") == 0


async def test_nobody_is_lost_because_the_balancer_ends(autojump_clock: MockClock) -> None:
    async with world() as here:
        known = KnownAgents(here.dispatcher)
        peer = here.agent(name="a1")
        known.follow()
        here.dispatcher.drain()
        lose(here, peer)
        assert known.shown() == []


async def test_a_restart_expects_those_that_were_here_and_misses_those_that_do_not_come(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "known.json"
    async with world() as here, trio.open_nursery() as nursery:
        known = KnownAgents(here.dispatcher, path)
        nursery.start_soon(known.run)
        peers = [here.agent(name=name) for name in ("a1", "a2", "a3")]
        await wait_all_tasks_blocked()
        lose(here, peers[0])
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    stored = {each["name"]: each["left"] for each in json.loads(path.read_text())["agents"]}
    assert stored.keys() == {"a1", "a2", "a3"}
    assert stored["a1"] is not None
    assert stored["a2"] is None
    async with world() as here, trio.open_nursery() as nursery:
        known = KnownAgents(here.dispatcher, path)
        nursery.start_soon(known.run)
        await known.changed.wait_beyond(0)
        assert list(known.gone) == ["a1"], "the others may be on their way"
        here.agent(name="a2")
        began_s, ordinal = trio.current_time(), 0
        while "a3" not in known.gone:
            ordinal = await known.changed.wait_beyond(ordinal)
        assert trio.current_time() >= began_s + BACK_S / 2
        assert list(known.gone) == ["a1", "a3"]
        assert known.gone["a3"].reason == NOT_SEEN
        assert known.gone["a1"].left == stored["a1"]
        nursery.cancel_scope.cancel()


async def test_a_file_that_is_none_costs_only_what_was_in_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    path = tmp_path / "known.json"
    path.write_text('{"version": 9}')
    async with world() as here, trio.open_nursery() as nursery:
        known = KnownAgents(here.dispatcher, path)
        nursery.start_soon(known.run)
        here.agent(name="a1")
        await trio.sleep(10)
        assert known.num_here == 1
        nursery.cancel_scope.cancel()
    assert json.loads(path.read_text())["version"] == 1


async def test_there_is_a_most_of_those_that_are_gone(autojump_clock: MockClock) -> None:
    async with world() as here:
        known = KnownAgents(here.dispatcher)
        for number in range(MAX_KNOWN + 5):
            lose(here, here.agent(name=f"a{number}"))
            known.follow()
        assert len(known.gone) == MAX_KNOWN
        assert next(iter(known.gone)) == "a5"
