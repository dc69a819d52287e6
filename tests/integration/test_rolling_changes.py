"""A change goes from agent to agent, or back, under the streams of real processes."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet
from rollouts import apply, current, deployment, ends, follow, order
from streams import CONVERSATION, Heard, listen, story, until_first_tokens

AGENTS = 3
SLOTS = 8
OPTIONS = ("--max-buffered-requests=1000", "--buffered-request-timeout=100000")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three agents that serve the bundled model; each test begins and ends with that."""
    state = tmp_path_factory.mktemp("state") / "state.json"
    options = (*OPTIONS, f"--state-database=file://{state}")
    with Fleet.start(agents=AGENTS, slots=SLOTS, model=None, balancer_options=options) as running:
        revision = apply(running, deployment(BUNDLED_MODEL))
        follow(running, ends("complete", revision))
        yield running


def copy(folder: Path, name: str) -> Path:
    return shutil.copyfile(BUNDLED_MODEL, folder / name)


async def stream_while(
    fleet: Fleet, running: int, waiting: int, change: trio.Event, *, max_tokens: int = 60
) -> list[Heard]:
    """As many streams; ``change`` is set when the first of them run."""
    everything = [Heard() for _ in range(running + waiting)]
    with trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            for number, heard in enumerate(everything[:running]):
                body = story(number, max_tokens=max_tokens)
                nursery.start_soon(listen, fleet.inference, CONVERSATION, body, heard)
            await until_first_tokens(everything[:running], min(running, AGENTS * SLOTS))
            change.set()
            for number, heard in enumerate(everything[running:], running):
                body = story(number, max_tokens=max_tokens)
                nursery.start_soon(listen, fleet.inference, CONVERSATION, body, heard)
    return everything


def test_other_weights_roll_under_200_streams_and_none_is_lost(
    fleet: Fleet, tmp_path: Path
) -> None:
    other = copy(tmp_path, "other.gguf")
    serving: list[int] = []

    async def run() -> list[Heard]:
        change = trio.Event()
        async with trio.open_nursery() as nursery:

            async def swap() -> None:
                await change.wait()
                revision = await trio.to_thread.run_sync(apply, fleet, deployment(other))
                shown = await trio.to_thread.run_sync(follow, fleet, ends("complete", revision))
                serving.extend(
                    sum(agent["phase"] in ("serving", "waiting") for agent in each["agents"])
                    for each in shown
                    if each["to"] == revision
                )

            nursery.start_soon(swap)
            return await stream_while(fleet, 24, 176, change, max_tokens=30)

    streams = trio.run(run)
    assert {tuple(heard.endings) for heard in streams} == {("Done",)}
    assert min(serving) >= AGENTS - 1, "one agent at a time"
    view = fleet.wait_serving(AGENTS)
    assert {agent["model_path"] for agent in view["agents"]} == {str(other)}
    _back(fleet)


def test_a_file_that_is_missing_rolls_back_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    good = current(fleet)["revision"]
    revision = apply(fleet, deployment(tmp_path / "nowhere.gguf"), note="a typing mistake")
    shown = follow(fleet, ends("rolled_back", revision))
    assert "nowhere.gguf" in shown[-1]["reason"]
    view = fleet.wait_serving(AGENTS)
    assert {agent["model_path"] for agent in view["agents"]} == {str(BUNDLED_MODEL)}
    now = current(fleet)["revision"]
    assert now["state"] == good["state"]
    assert now["revision"] > revision
    assert "rolled back" in now["note"]


def test_a_template_that_does_not_compile_rolls_back_and_nothing_was_loaded(fleet: Fleet) -> None:
    engines = {name: daemon.engine_pids for name, daemon in fleet.agents.items()}
    revision = apply(fleet, deployment(BUNDLED_MODEL, template="{% if %}"))
    follow(fleet, ends("rolled_back", revision))
    fleet.wait_serving(AGENTS)
    assert {name: daemon.engine_pids for name, daemon in fleet.agents.items()} == engines


def test_an_agent_that_is_killed_in_a_rollout_costs_no_stream_and_the_rollout_goes_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    other = copy(tmp_path, "other.gguf")

    async def run() -> list[Heard]:
        change = trio.Event()
        async with trio.open_nursery() as nursery:

            async def swap() -> None:
                await change.wait()
                revision = await trio.to_thread.run_sync(apply, fleet, deployment(other))
                shown = await trio.to_thread.run_sync(
                    follow, fleet, lambda r: r["to"] == revision and _moving(r) is not None
                )
                victim = _moving(shown[-1])
                assert victim is not None
                fleet.agents[victim].signal(signal.SIGKILL)
                fleet.agents[victim].wait()
                await trio.to_thread.run_sync(lambda: fleet.start_agent(victim, slots=SLOTS))
                await trio.to_thread.run_sync(follow, fleet, ends("complete", revision))

            nursery.start_soon(swap)
            return await stream_while(fleet, 24, 24, change)

    streams = trio.run(run)
    assert {tuple(heard.endings) for heard in streams} == {("Done",)}
    view = fleet.wait_serving(AGENTS)
    assert {agent["model_path"] for agent in view["agents"]} == {str(other)}
    _back(fleet)


def test_pause_abort_and_undo(fleet: Fleet, tmp_path: Path) -> None:
    other = copy(tmp_path, "other.gguf")
    slow = deployment(other, rollout={"min_ready_s": 60})
    revision = apply(fleet, slow)
    follow(fleet, lambda r: r["to"] == revision and _phases(r).count("serving") == 1)
    assert order(fleet, "pause").status_code == 200
    follow(fleet, ends("paused", revision))
    assert order(fleet, "pause").status_code == 409
    assert order(fleet, "resume").status_code == 200
    assert order(fleet, "abort").status_code == 200
    fleet.wait_until(
        lambda view: {agent["model_path"] for agent in view["agents"]} == {str(BUNDLED_MODEL)}
    )
    assert order(fleet, "pause", "nothing").status_code == 404
    revision = apply(fleet, deployment(other))
    follow(fleet, ends("complete", revision))
    assert order(fleet, "undo").status_code == 200
    follow(fleet, ends("complete", revision + 1))
    view = fleet.wait_serving(AGENTS)
    assert {agent["model_path"] for agent in view["agents"]} == {str(BUNDLED_MODEL)}


def _phases(rollout: dict[str, object]) -> list[str]:
    agents = rollout["agents"]
    assert isinstance(agents, list)
    return [agent["phase"] for agent in agents]


def _moving(rollout: dict[str, object]) -> str | None:
    """The agent that drains or loads."""
    agents = rollout["agents"]
    assert isinstance(agents, list)
    for agent in agents:
        if agent["phase"] in ("draining", "loading", "probing"):
            name: str = agent["agent"]
            return name
    return None


def _back(fleet: Fleet) -> None:
    """To the bundled model."""
    revision = apply(fleet, deployment(BUNDLED_MODEL))
    follow(fleet, ends("complete", revision))
    fleet.wait_serving(AGENTS)
