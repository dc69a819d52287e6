"""Extras of the desired state where Paddler's words end: its agents, its file, broken storage."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import httpx
import pytest
from native_client import Json, RunningBalancer, running_balancer
from paddler_agent import serving_agent

from paddler_trio.balancer import state_database
from paddler_trio.balancer.state_database import open_state_database
from paddler_trio.errors import StateDatabaseError
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.trio.desired_state_extras import EngineOverrides, Extras

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
    beside = json.loads((tmp_path / "state.json.v2.json").read_text())
    assert beside == {"extras": NOTHING, "version": "2"}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"extras": {}, "version": "3"}',
        '{"extras": {"engine": {"max_drafts": 65}}, "version": "2"}',
        '{"version": "2"}',
    ],
)
async def test_a_broken_extras_file_is_named_and_left_as_it_is(
    tmp_path: Path, content: str
) -> None:
    beside = tmp_path / "state.json.v2.json"
    beside.write_text(content)
    database = open_state_database(f"file://{tmp_path}/state.json")
    with pytest.raises(StateDatabaseError, match=r"state\.json\.v2\.json holds no valid extras"):
        await database.read()
    assert beside.read_text() == content


async def test_a_crash_between_the_two_files_leaves_extras_that_fit_the_state(
    tmp_path: Path,
) -> None:
    """What was written until then is on the disk; whatever ended the process did not clean up."""
    file, beside = tmp_path / "state.json", tmp_path / "state.json.v2.json"
    url = f"file://{file}"
    first, second = (Extras(engine=EngineOverrides(max_drafts=n)) for n in (1, 2))
    old = BalancerDesiredState.default()
    new = attrs.evolve(old, use_chat_template_override=True)
    database = open_state_database(url)
    await database.read()
    await database.write(old, first)
    state_before = file.read_text()
    seen: list[str] = []
    replace = state_database._replace

    def watched(path: Path, document: object) -> None:
        replace(path, document)
        seen.append(beside.read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_database, "_replace", watched)
        await database.write(new, second)
    state_after = file.read_text()
    (before_the_state, after_the_state, settled) = seen
    assert before_the_state == after_the_state != settled
    for on_disk, extras_file, expected in (
        (state_before, before_the_state, (old, first)),
        (state_after, after_the_state, (new, second)),
        (state_after, settled, (new, second)),
    ):
        file.write_text(on_disk)
        beside.write_text(extras_file)
        again = open_state_database(url)
        assert await again.read() == expected
        assert "replaced" not in json.loads(beside.read_text())
        # what follows changes the state alone, and the extras stay
        await again.write(old, expected[1])
        assert await open_state_database(url).read() == (old, expected[1])
