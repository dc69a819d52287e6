"""Tunnels that are dialled before they are needed, since later they would be another process's."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator

import attrs
import pytest
import trio

from paddler_trio.errors import LinkError
from paddler_trio.net.tunnels import Tunnels
from paddler_trio.wire.trio.tunnel_frames import body_frames


@attrs.define(eq=False)
class Dialler:
    """An agent that dials at once, as often as it may."""

    most: int
    ends: list[socket.socket] = attrs.field(factory=list)
    tunnels: Tunnels = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tunnels = Tunnels("a1", self.dial, lambda: self.most)

    def dial(self, frame: bytes) -> None:
        secret = json.loads(frame)["Trio"]["OpenTunnel"]["secret"]
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        assert self.tunnels.dialled(secret, ours)

    def close(self) -> None:
        self.tunnels.close_all()
        for end in self.ends:
            end.close()


@pytest.fixture
async def dialler() -> AsyncIterator[Dialler]:
    agent = Dialler(most=4)
    yield agent
    agent.close()


async def test_spare_ones_are_dialled_up_to_what_an_agent_may_have(dialler: Dialler) -> None:
    used = await dialler.tunnels.take()
    await dialler.tunnels.dial_spare(2)
    assert len(dialler.ends) == 3
    await dialler.tunnels.dial_spare(9)
    assert len(dialler.ends) == 4
    dialler.tunnels.close(used)
    await dialler.tunnels.dial_spare(1)
    assert len(dialler.ends) == 4, "there are more idle ones already"


async def test_when_none_is_dialled_any_more_idle_ones_are_used_and_then_it_fails_at_once(
    dialler: Dialler,
) -> None:
    await dialler.tunnels.dial_spare(2)
    dialler.tunnels.dial_no_more()
    first, _ = [await dialler.tunnels.take() for _ in range(2)]
    assert dialler.tunnels.are_used
    with trio.fail_after(1), pytest.raises(LinkError, match="has taken over the agent a1: ask"):
        await dialler.tunnels.take()
    dialler.tunnels.give_back(first)
    assert await dialler.tunnels.take() is first


async def test_idle_ones_are_not_used(dialler: Dialler) -> None:
    assert not dialler.tunnels.are_used
    await dialler.tunnels.dial_spare(2)
    assert not dialler.tunnels.are_used
    tunnel = await dialler.tunnels.take()
    assert dialler.tunnels.are_used
    dialler.tunnels.give_back(tunnel)
    assert not dialler.tunnels.are_used


async def test_very_many_small_frames_are_taken_in_small_portions(dialler: Dialler) -> None:
    tunnel = await dialler.tunnels.take()
    data = body_frames(b"x") * 20_000

    async def send() -> None:
        ours = trio.socket.from_stdlib_socket(dialler.ends[0].dup())
        with ours:
            left = memoryview(data)
            while left:
                left = left[await ours.send(left) :]

    sizes: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while sum(sizes) < 20_000:
            sizes.append(len(await tunnel.receive()))
    assert max(sizes[2:]) <= 4096 // 6 + 1
