"""Orders of an operator to real agents: unload, load, restart an engine, and read logs.

The tests are one story, in this order: each begins where the one before it ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, Fleet, children, is_engine
from rollouts import apply, deployment, ends, follow
from streams import CONVERSATION, Heard, count, counted, listen, until_first_tokens

from cli_in_process import Ended, invoke
from no_tls import NO_TLS

CLIENTS = 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    state = tmp_path_factory.mktemp("state") / "state.json"
    options = [f"--state-database=file://{state}", "--buffered-request-timeout=60000"]
    with Fleet.start(agents=2, slots=2, model=None, balancer_options=options) as fleet:
        follow(fleet, ends("complete", apply(fleet, deployment(BUNDLED_MODEL))))
        fleet.wait_serving(2)
        yield fleet


def ask(fleet: Fleet, method: str, path: str, **more: Any) -> httpx.Response:
    url = f"{fleet.management_url}/api/v2/{path}"
    return httpx.request(method, url, verify=NO_TLS, timeout=60, **more)


def run(fleet: Fleet, *words: object) -> Ended:
    return invoke(*words, "--management-addr", fleet.management)


def state(fleet: Fleet, name: str) -> dict[str, Any]:
    agents = ask(fleet, "GET", "agents").json()["agents"]
    return next(each["state"] for each in agents if each["name"] == name)


def truth(fleet: Fleet) -> dict[str, Any]:
    return ask(fleet, "GET", "fleet").json()["deployments"][0]["state"]


def heard_during(fleet: Fleet, order: Any) -> list[Heard]:
    """What clients hear of answers that run when an order is given, which is done in a thread."""
    all_heard = [Heard() for _ in range(CLIENTS)]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, heard in enumerate(all_heard):
                nursery.start_soon(
                    partial(listen, fleet.inference, CONVERSATION, count(number), heard)
                )
            await until_first_tokens(all_heard, CLIENTS)
            await trio.to_thread.run_sync(order)

    trio.run(main)
    return all_heard


def assert_whole(all_heard: list[Heard]) -> None:
    for number, heard in enumerate(all_heard):
        assert heard.endings == ["Done"], heard
        assert heard.text == counted(number)


def test_an_engine_is_restarted_and_no_answer_is_lost(fleet: Fleet) -> None:
    agent = fleet.agents["a1"]
    before = agent.engine_pid

    def restart() -> None:
        ended = run(fleet, "agents", "restart", "a1")
        assert ended.exit_code == 0, ended.output
        assert ended.stdout == "a1, default: serving\n"

    assert_whole(heard_during(fleet, restart))
    fleet.wait_serving(2)
    assert agent.engine_pid != before
    agents = ask(fleet, "GET", "agents").json()["agents"]
    restarts = [(each["engine"] or {}).get("restarts", 0) for each in agents]
    assert restarts == [0, 0], "it did not crash"
    assert ask(fleet, "GET", "rollout").json()["rollouts"][0]["phase"] == "complete"
    (record,) = ask(fleet, "GET", "audit").json()["entries"][-1:]
    assert (record["action"], record["target"]) == ("engine restarted", "a1")


def test_unloading_frees_the_memory_keeps_the_agent_and_loses_no_answer(fleet: Fleet) -> None:
    agent = fleet.agents["a1"]

    def unload() -> None:
        ended = run(fleet, "agents", "unload", "a1")
        assert ended.exit_code == 0, ended.output
        assert ended.stdout.startswith("a1, default: unloaded: an operator unloaded it at 2")

    assert_whole(heard_during(fleet, unload))
    assert [pid for pid in children(agent.pid) if is_engine(pid)] == []
    assert agent.process.poll() is None
    shown = state(fleet, "a1")
    assert (shown["state"], shown["word"], shown["severity"]) == ("unloaded", "unloaded", "quiet")
    assert "an operator unloaded it at" in shown["sentence"]
    assert ask(fleet, "GET", "problems").json()["problems"][0]["id"] == "deployment:default"
    again = json.loads(run(fleet, "agents", "unload", "a1", "--json").stdout)
    assert again["agents"][0]["phase"] == "unloaded"
    refused = run(fleet, "agents", "restart", "a1")
    assert refused.exit_code == 1
    assert "let it be loaded again first" in refused.stderr


def test_a_change_goes_around_it_and_it_stays_unloaded(fleet: Fleet) -> None:
    revision = apply(fleet, deployment(BUNDLED_MODEL, context_size=768))
    follow(fleet, ends("complete", revision))
    assert state(fleet, "a1")["word"] == "unloaded"
    assert state(fleet, "a2")["word"] == "serving"
    fleet.restart_balancer()
    both = ["serving", "unloaded"]
    fleet.wait_until(lambda view: sorted(str(a["phase"]) for a in view["agents"]) == both)
    assert state(fleet, "a1")["word"] == "unloaded", "the agent keeps it, not the balancer"


def test_where_all_are_unloaded_the_deployment_says_so_and_requests_wait(fleet: Fleet) -> None:
    assert run(fleet, "agents", "unload", "a2").exit_code == 0
    shown = truth(fleet)
    assert shown["word"] == "unloaded"
    assert "operators unloaded it on all of its agents" in shown["sentence"]
    assert "requests wait" in shown["follows"]
    heard = Heard()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(listen, fleet.inference, CONVERSATION, count(7), heard))
            await trio.to_thread.run_sync(partial(fleet.wait_until_buffered, 1))
            await trio.to_thread.run_sync(partial(run, fleet, "agents", "load", "a2"))

    trio.run(main)
    assert heard.text == counted(7)


def test_it_loads_what_is_desired_by_now(fleet: Fleet) -> None:
    ended = run(fleet, "agents", "load", "a1")
    assert ended.exit_code == 0, ended.output
    assert ended.stdout == "a1, default: serving\n"
    view = fleet.wait_serving(2)
    assert len({agent["served_state"] for agent in view["agents"]}) == 1
    assert ask(fleet, "GET", "problems").json()["problems"] == []
    actions = [each["action"] for each in ask(fleet, "GET", "audit").json()["entries"]]
    assert actions[-3:] == ["agent unloaded", "agent loaded", "agent loaded"]


def test_any_orders_one_after_the_other_lose_no_answer(fleet: Fleet) -> None:
    """Orders that meet a model which is drained, loaded, proved or gone; the other agent serves."""
    chance = random.Random(46)
    orders = [chance.choice(["unload", "load", "restart_engine"]) for _ in range(24)]

    def give_them() -> None:
        for order in [*orders, "load"]:
            answer = ask(fleet, "POST", f"agents/a1/{order}")
            assert answer.status_code in (200, 409), f"{order}: {answer.text}"

    assert_whole(heard_during(fleet, give_them))
    view = fleet.wait_serving(2)
    assert all(agent["slots_processing"] == 0 for agent in view["agents"])
    assert_whole(heard_during(fleet, lambda: None))
    assert len(fleet.agents["a1"].engine_pids) == 1


def test_orders_that_cannot_be_carried_out_are_refused(fleet: Fleet) -> None:
    assert ask(fleet, "POST", "agents/nobody/unload").status_code == 404
    unknown = ask(fleet, "GET", "agents/a1/logs", params={"source": "balancer"})
    assert unknown.status_code == 400
    assert "'balancer' is no log: one of agent, engine" in unknown.text
    for params, words in (
        ({"lines": "100000"}, "lines"),
        ({"after": "-1"}, "after is '-1', must be a number"),
        ({"colour": "red"}, "unknown parameter 'colour'"),
    ):
        answer = ask(fleet, "GET", "agents/a1/logs", params=params)
        assert answer.status_code == 400
        assert words in answer.text


# --------------------------------------------------------------------------------------- logs


def test_the_last_lines_of_both_logs_are_shown(fleet: Fleet) -> None:
    shown = run(fleet, "logs", "a1").stdout.splitlines()
    assert any("an operator restarts the engine" in line for line in shown)
    assert any("linked to the balancer" in line for line in shown)
    last = json.loads(run(fleet, "logs", "a1", "--lines", 1, "--json").stdout)
    assert last["n"] >= len(shown) - 1
    engine = run(fleet, "logs", "a1", "--engine").stdout
    assert f"starts with {BUNDLED_MODEL}" in engine
    pid = fleet.agents["a1"].engine_pid
    assert f"[{pid}] " in engine, "each line says which process wrote it"


def test_pages_go_on_where_the_one_before_ended(fleet: Fleet) -> None:
    first = ask(fleet, "GET", "agents/a1/logs", params={"lines": 5}).json()
    assert [line["n"] for line in first["lines"]] == list(
        range(first["last"] - 4, first["last"] + 1)
    )
    earlier = {"lines": 3, "after": first["last"] - 5, "life": first["life"]}
    page = ask(fleet, "GET", "agents/a1/logs", params=earlier).json()
    assert page["lines"] == first["lines"][:3]
    assert (page["last"], page["missed"]) == (first["lines"][2]["n"], 0)
    another = {"lines": 2, "after": first["last"] + 10_000, "life": "another"}
    anew = ask(fleet, "GET", "agents/a1/logs", params=another).json()
    assert len(anew["lines"]) == 2, "another life's numbers mean nothing"


def test_new_lines_are_followed_and_a_lost_agent_is_waited_for(fleet: Fleet) -> None:
    command = [sys.executable, "-P", "-m", "paddler_trio", "logs", "a2", "-f", "-n", "1"]
    with subprocess.Popen(
        [*command, "--management-addr", fleet.management],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            assert run(fleet, "agents", "restart", "a2").exit_code == 0
            while "an operator restarts the engine" not in process.stdout.readline():
                pass
            fleet.agents["a2"].signal(signal.SIGKILL)
            assert "tried again until Ctrl-C" in process.stderr.readline()
            fleet.start_agent("a2", slots=2)
            while "started anew" not in process.stderr.readline():
                pass
            while "linked to the balancer" not in process.stdout.readline():
                pass
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    fleet.wait_serving(2)
