"""Orderly changes under load: a model swap, and the end of each daemon."""

from __future__ import annotations

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h11
import httpx
import trio
from fleet import BUNDLED_MODEL, Fleet
from streams import CONVERSATION, Heard, listen, story, until_first_tokens


def test_a_swap_lets_running_streams_finish_on_the_old_model_and_waiting_ones_get_the_new(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other.gguf"
    shutil.copyfile(BUNDLED_MODEL, other)
    options = ("--max-buffered-requests=100", "--buffered-request-timeout=60000")
    with Fleet.start(agents=1, slots=2, balancer_options=options) as fleet:
        running = [Heard() for _ in range(2)]
        waiting = [Heard() for _ in range(4)]
        engine_before = fleet.agents["a1"].engine_pid

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for number, heard in enumerate(running):
                    nursery.start_soon(
                        listen, fleet.inference, CONVERSATION, story(number, max_tokens=150), heard
                    )
                await until_first_tokens(running, 2)
                for number, heard in enumerate(waiting):
                    body = story(10 + number, max_tokens=20)
                    await nursery.start(ask, fleet, body, heard)
                await trio.to_thread.run_sync(fleet.desire, other)

        trio.run(run)
        assert [heard.endings for heard in running + waiting] == [["Done"]] * 6
        view = fleet.wait_serving()
        assert view["agents"][0]["model_path"] == str(other)
        assert fleet.agents["a1"].engine_pid != engine_before
        last_old = max(heard.first_token_s or 0.0 for heard in running)
        assert all((heard.first_token_s or 0.0) > last_old for heard in waiting)


def test_a_balancer_that_is_asked_to_stop_finishes_what_runs_and_refuses_what_waits() -> None:
    options = ("--drain-timeout=30000", "--agent-silence=30000")
    with Fleet.start(agents=1, slots=1, balancer_options=options) as fleet:
        running, waiting = Heard(), Heard()
        agent = fleet.agents["a1"]

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                agent.signal(signal.SIGSTOP)  # so that what runs cannot be over before we ask
                try:
                    await nursery.start(ask, fleet, story(1, max_tokens=150), running)
                    await nursery.start(ask, fleet, story(2), waiting)
                    fleet.balancer.signal(signal.SIGTERM)
                    await trio.to_thread.run_sync(
                        fleet.balancer.wait_for_log, "stopping: finishing what runs"
                    )
                finally:
                    agent.signal(signal.SIGCONT)

        trio.run(run)
        assert running.endings == ["Done"]
        assert waiting.endings == ["Error 503"]
        assert waiting.error == "balancer is shutting down"
        assert fleet.balancer.wait() == 0


def test_a_response_that_begins_after_the_signal_says_that_its_connection_ends() -> None:
    options = ("--drain-timeout=30000", "--agent-silence=30000")
    with (
        Fleet.start(agents=1, slots=1, balancer_options=options) as fleet,
        ThreadPoolExecutor(2) as clients,
    ):
        agent = fleet.agents["a1"]
        agent.signal(signal.SIGSTOP)
        try:
            running = clients.submit(complete, fleet)
            fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 1)
            waiting = clients.submit(complete, fleet)
            fleet.wait_until_buffered(1)
            fleet.balancer.signal(signal.SIGTERM)
            refused = waiting.result()
        finally:
            agent.signal(signal.SIGCONT)
        answered = running.result()
    assert (answered.status_code, refused.status_code) == (200, 503)
    assert [each.headers["connection"] for each in (answered, refused)] == ["close", "close"]


def complete(fleet: Fleet) -> httpx.Response:
    return httpx.post(
        f"{fleet.inference_url}/v1/completions",
        json={"model": "any", "prompt": "Once", "max_tokens": 4},
        trust_env=False,
        timeout=60,
    )


def test_a_terminal_that_goes_away_cuts_no_stream() -> None:
    """It says so twice, and to every daemon that was started there."""
    options = ("--drain-timeout=30000", "--agent-silence=30000")
    with Fleet.start(agents=1, slots=1, balancer_options=options) as fleet:
        running = Heard()
        agent = fleet.agents["a1"]

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                agent.signal(signal.SIGSTOP)  # so that what runs cannot be over before we ask
                try:
                    await nursery.start(ask, fleet, story(1, max_tokens=150), running)
                    for daemon in (agent, fleet.balancer):
                        daemon.signal(signal.SIGHUP)
                    stopping = "stopping: finishing what runs"
                    await trio.to_thread.run_sync(fleet.balancer.wait_for_log, stopping)
                    fleet.balancer.signal(signal.SIGHUP)
                finally:
                    agent.signal(signal.SIGCONT)
                await trio.to_thread.run_sync(agent.wait_for_log, stopping)
                agent.signal(signal.SIGHUP)

        trio.run(run)
        assert running.endings == ["Done"]
        assert fleet.balancer.wait() == 0
        assert agent.wait() == 0


def test_a_second_signal_ends_a_balancer_at_once() -> None:
    with Fleet.start(agents=1, slots=1, balancer_options=("--drain-timeout=60000",)) as fleet:
        heard = Heard()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_cut, fleet.inference, heard)
                await until_first_tokens([heard], 1)
                fleet.balancer.signal(signal.SIGTERM)
                await trio.to_thread.run_sync(
                    fleet.balancer.wait_for_log, "stopping: finishing what runs"
                )
                fleet.balancer.signal(signal.SIGTERM)

        trio.run(run)
        assert fleet.balancer.wait() == 0


async def ask(
    fleet: Fleet,
    body: object,
    heard: Heard,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    await listen(fleet.inference, CONVERSATION, body, heard, task_status=task_status)


async def _until_cut(address: str, heard: Heard) -> None:
    try:
        await listen(address, CONVERSATION, story(1, max_tokens=500), heard)
    except (h11.RemoteProtocolError, trio.BrokenResourceError):
        return


def test_an_agent_that_is_asked_to_stop_finishes_its_work_and_gets_none() -> None:
    options = ("--buffered-request-timeout=60000",)
    leaving = ("--drain-timeout=30000",)
    with Fleet.start(agents=2, slots=1, balancer_options=options, agent_options=leaving) as fleet:
        first = [Heard(), Heard()]
        later = [Heard() for _ in range(3)]

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for number, heard in enumerate(first):
                    nursery.start_soon(
                        listen, fleet.inference, CONVERSATION, story(number, max_tokens=150), heard
                    )
                await until_first_tokens(first, 2)
                fleet.agents["a1"].signal(signal.SIGTERM)
                await trio.to_thread.run_sync(
                    fleet.agents["a1"].wait_for_log, "stopping: finishing what runs"
                )
                for number, heard in enumerate(later):
                    body = story(10 + number, max_tokens=20)
                    await nursery.start(ask, fleet, body, heard)

        trio.run(run)
        assert [heard.endings for heard in first + later] == [["Done"]] * 5
        assert all(heard.generated_by == ["a2"] for heard in later)
        assert fleet.agents["a1"].wait() == 0
        view = fleet.view()
        assert [agent["name"] for agent in view["agents"]] == ["a2"]
