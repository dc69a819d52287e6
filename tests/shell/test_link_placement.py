"""What a link of an agent tells its balancer before it registers, and which lists it heeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_connection import BalancerConnection
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.errors import LinkError
from paddler_trio.wire.trio.trio_link import (
    SUBPROTOCOL,
    Extension,
    Instances,
    InstanceWanted,
    Placement,
    render_extension,
)

FIRST = Placement(host="h", deployment="default", labels={"gpu": "yes"})
CODER = Placement(host="h", deployment="coder", labels={"gpu": "yes"})


@attrs.define(eq=False)
class Socket:
    """The balancer's end: what it was sent, and what it sends."""

    subprotocol: str | None
    sent: list[Any] = attrs.field(factory=list)
    to_agent: trio.MemorySendChannel[str] = attrs.field(init=False)
    _from_balancer: trio.MemoryReceiveChannel[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.to_agent, self._from_balancer = trio.open_memory_channel[str](10)

    async def send_message(self, text: str) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(json.loads(text))

    async def get_message(self) -> str:
        return await self._from_balancer.receive()

    async def ping(self) -> None:
        await trio.lowlevel.checkpoint()


def connection(
    socket: Socket, placement: Placement | None, heard: list[Sequence[InstanceWanted]] | None
) -> BalancerConnection:
    status = AgentStatus(2)
    return BalancerConnection(
        cast("Any", socket),
        "a1",
        status,
        cast("ModelServer", None),
        AgentRequests(status),
        placement=placement,
        on_instances=None if heard is None else heard.append,
    )


async def exchange(
    *frames: Extension,
    placement: Placement | None,
    subprotocol: str | None = SUBPROTOCOL,
    heard: list[Sequence[InstanceWanted]] | None = None,
) -> list[Any]:
    """Everything that the agent sent, until it had read these frames."""
    socket = Socket(subprotocol)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection(socket, placement, heard).run, lambda: None)
        for frame in frames:
            socket.to_agent.send_nowait(render_extension(frame).decode())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return socket.sent


async def test_the_placement_comes_before_the_registration() -> None:
    first, second, *_ = await exchange(placement=CODER)
    assert first == {
        "Trio": {"Placement": {"host": "h", "deployment": "coder", "labels": {"gpu": "yes"}}}
    }
    assert "RegisterAgent" in json.dumps(second)


async def test_a_host_without_labels_registers_at_once() -> None:
    first, *_ = await exchange(placement=None)
    assert "RegisterAgent" in json.dumps(first)


async def test_paddlers_balancer_hears_of_no_labels() -> None:
    sent = await exchange(placement=FIRST, subprotocol=None)
    assert "RegisterAgent" in json.dumps(sent[0])
    assert "Trio" not in json.dumps(sent)


async def test_an_instance_does_not_register_where_there_are_no_deployments() -> None:
    socket = Socket(None)
    with pytest.raises(LinkError, match="it has no deployment 'coder'"):
        await connection(socket, CODER, None).run(lambda: None)
    assert socket.sent == []


async def test_the_first_link_hears_which_instances_there_shall_be() -> None:
    heard: list[Sequence[InstanceWanted]] = []
    wanted = (InstanceWanted(deployment="coder", slots=2), InstanceWanted(deployment="chat"))
    await exchange(
        Instances(instances=wanted), Instances(instances=()), placement=None, heard=heard
    )
    assert heard == [wanted, ()]


async def test_the_link_of_an_instance_is_no_place_for_a_list() -> None:
    with capture_logs() as records:
        await exchange(Instances(instances=()), placement=CODER)
    (reason,) = (each["reason"] for each in records if "understood" in each["event"])
    assert reason == "instances are listed on a host's first link @ $.Trio"
