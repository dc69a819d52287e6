"""Extras of the desired state where Paddler's words end: its agents, its file, broken storage."""

from __future__ import annotations

from pathlib import Path

import httpx
from native_client import Json, RunningBalancer, running_balancer
from paddler_agent import serving_agent

UNIFIED = {"engine": {"unified": True}}
NOTHING: Json = {"engine": {}}


async def put_both(balancer: RunningBalancer, state: Json, extras: Json) -> httpx.Response:
    url = balancer.management_url("/api/v2/balancer_desired_state")
    return await balancer.http.put(url, json={"state": state, "extras": extras})


async def extras_of(balancer: RunningBalancer) -> Json:
    url = balancer.management_url("/api/v2/balancer_desired_state")
    return (await balancer.http.get(url)).json()["extras"]


async def test_paddlers_agents_hear_nothing_of_extras_and_go_on_serving() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        state = await balancer.desired_state()
        assert (await put_both(balancer, state, UNIFIED)).status_code == 204
        fleet = await balancer.http.get(balancer.management_url("/api/v2/agents"))
        assert [view["is_accepting"] for view in fleet.json()["agents"]] == [True]
        await balancer.put_parameters(temperature=0.25)
        changed = await agent.next_state()
        assert changed["inference_parameters"]["temperature"] == 0.25
        states = [f for f in agent.received if "SetState" in f.get("Notification", {})]
        assert len(states) == 2, "the one it joined with, and the one with another temperature"
        assert not any("Trio" in frame for frame in agent.received)
        assert await extras_of(balancer) == UNIFIED


async def test_extras_whose_state_cannot_be_stored_are_not_stored_either(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with running_balancer(state_database=f"file://{file}") as balancer:
        state = await balancer.desired_state()
        file.unlink()
        file.mkdir()  # nothing can take its place
        answer = await put_both(balancer, state, UNIFIED)
        assert answer.status_code == 500
        assert await extras_of(balancer) == NOTHING
        file.rmdir()
    async with running_balancer(state_database=f"file://{file}") as balancer:
        assert await extras_of(balancer) == NOTHING
