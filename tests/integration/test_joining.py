"""Machines join, are known again, get other secrets and are cut off: with real daemons."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path

import forked_processes
import httpx
import pytest
import trio
from fleet import Daemon
from joining_place import PATIENCE_S, Place, place
from trio_websocket import open_websocket_url

from cli_in_process import invoke
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.wire.paddler.messages import RegisterAgent, render

SOURCES = Path(__file__).parents[2] / "src" / "paddler_trio"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def secrets_of(place: Place, tokens: Sequence[str]) -> list[str]:
    files = [*place.folder.glob("*/credential"), place.folder / "key"]
    texts = [file.read_text().strip().rpartition(".")[2] for file in files]
    return [*texts, *(token.split(".")[2] for token in tokens)]


def test_a_machine_joins_is_known_again_and_is_cut_off(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        token = here.token("--uses=2", "--label=gpu=yes", "--label=rack=7")
        assert here.get("/api/v2/join-tokens")["tokens"][0]["uses_left"] == 2
        assert "gpu=yes" in here.join(token, "one", "--name=gpu-1")
        assert "joined already" in here.join(token, "one", code=1)
        assert "joined already" in here.join(token, "two", "--name=gpu-1", code=1)
        here.join(token, "two", "--name=gpu-2")
        assert "opens nothing here" in here.join(token, "three", "--name=gpu-3", code=1)
        assert (tmp_path / "one" / "credential").stat().st_mode & 0o777 == 0o600

        one, two = here.agent("one", "--label=gpu=no", "--label=own=yes"), here.agent("two")
        here.wait(lambda: len(here.agents()) == 2, "two agents are here")
        assert here.agents()["gpu-1"]["labels"] == {"gpu": "yes", "rack": "7", "own": "yes"}
        refused = forked_processes.run("agent", "--slots=1", f"--state-dir={tmp_path / 'one'}")
        assert (refused.returncode, "another agent" in refused.stderr) == (1, True)

        here.restart()  # the agents find it again, with what they have
        here.wait(lambda: len(here.agents()) == 2, "two agents are here again")
        assert all(each["connected"] for each in here.credentials().values())

        assert "is cut off" in here.run("agents", "revoke", "gpu-2")
        two.wait_for_line("paddler-trio join-token new", within_s=PATIENCE_S)
        assert set(here.agents()) == {"gpu-1"}
        assert set(here.credentials()) == {"gpu-1"}
        assert "gpu-1" in here.run("agents", "credentials")
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
        audited = {each["action"] for each in here.get("/api/v2/audit")["entries"]}
        assert "agent revoked" in audited
        logs = "\n".join(line for daemon in here.logs for line in daemon.log)
        stored = (tmp_path / "state.json.agents.json").read_text()
        for secret in secrets_of(here, [token]):
            assert secret not in logs
            assert secret not in stored


@pytest.mark.slow
def test_a_secret_is_replaced_whenever_the_agent_is_killed(tmp_path: Path) -> None:
    """The file's time makes it two days old; then the agent is killed a little later each time."""
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        file = tmp_path / "one" / "credential"
        seen = {file.read_text()}
        for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02):
            two_days_ago = time.time() - 2 * 86_400
            os.utime(file, (two_days_ago, two_days_ago))
            agent = here.agent("one")
            agent.wait_for_log("linked to the balancer")
            threading.Event().wait(delay_s)
            agent.end()
            if delay_s == 0.005:
                here.restart()
            seen.add(file.read_text())
        agent = here.agent("one")
        agent.wait_for_log("linked to the balancer")
        two_days_ago = time.time() - 2 * 86_400
        agent.end()
        os.utime(file, (two_days_ago, two_days_ago))
        agent = here.agent("one")
        agent.wait_for_log("this agent's secret was replaced")
        seen.add(file.read_text())
        agent.end()
        here.agent("one").wait_for_log("linked to the balancer")
        (credential,) = here.credentials().values()
        assert credential["suspicious"] is None
        assert len(seen) > 1


@pytest.mark.slow
def test_a_copied_credential_is_noticed(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        copy = (tmp_path / "one" / "credential").read_text()
        here.agent("one").wait_for_log("linked to the balancer")
        old = time.time() - 2 * 86_400
        here.logs[-1].end()
        os.utime(tmp_path / "one" / "credential", (old, old))
        here.agent("one").wait_for_log("this agent's secret was replaced")
        here.logs[-1].end()
        here.agent("one").wait_for_log("linked to the balancer")
        # with it ends the time in which the old secret is still good
        here.restart(is_orderly=True)
        thief = tmp_path / "thief"
        thief.write_text(copy)
        stolen = Daemon.start(
            "thief",
            [
                *("agent", "--slots=1", f"--management-addr={here.address}", "--log-json"),
                f"--credential-file={thief}",
            ],
            {},
        )
        here.logs.append(stolen)
        stolen.wait_for_line("(401)")
        assert "shown again" in here.credentials()["gpu"]["suspicious"]
        assert "agents revoke gpu" in here.run("agents", "credentials")
        assert copy.strip().rpartition(".")[2] not in "\n".join(here.balancer.log)


@pytest.mark.slow
def test_a_credential_that_two_machines_use_at_once_is_noticed(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.join(here.token(), "one", "--name=gpu")
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        one, two = here.agent("one"), here.agent("two")
        one.wait_for_log("linked to the balancer")
        two.wait_for_log("linked to the balancer")
        here.balancer.wait_for_line("processes use it at once")
        assert "SUSPICIOUS" in here.run("agents", "credentials")
        assert len(here.get("/api/v2/agents")["agents"]) == 2  # to cut one could cut the right one
        here.run("agents", "revoke", "gpu")
        one.wait_for_line("(401)")
        two.wait_for_line("(401)")
        here.join(here.token(), "one", "--name=gpu", "--replace")
        here.wait(lambda: "gpu" in here.agents(), "it is back, without a restart")


def paths_in_the_sources() -> list[str]:
    """Every path that a source file mentions, with a value for each parameter."""
    found = set()
    for file in SOURCES.rglob("*.py"):
        for path in re.findall(
            r'"(/(?:api|v1|metrics|panel|livez|readyz|health)[^"\s]*)"', file.read_text()
        ):
            found.add(re.sub(r"\{[^}]*\}|<[^>]*>", "a", path))
    return sorted(found)


def test_without_a_key_there_are_probes_and_joining_and_nothing_else(tmp_path: Path) -> None:
    paths = paths_in_the_sources()
    assert len(paths) > 60
    with (
        place(tmp_path) as here,
        httpx.Client(
            base_url=f"http://{here.address}", trust_env=False, timeout=PATIENCE_S
        ) as client,
    ):
        opened = {
            (method, path)
            for path in paths
            for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")
            if client.request(method, path).status_code not in (401, 404)
        }
        sockets = {
            path
            for path in paths
            if client.get(path, headers=UPGRADE).status_code not in (401, 403, 404)
        }
    pins = {"/api/v2/join/pin", "/api/v2/join/pin/confirm"}
    assert {path for _, path in opened} - {"/api/v2/join", *pins} <= {
        *("/health", "/livez", "/readyz", "/panel/", "/panel"),
    }
    assert {method for method, path in opened if path in pins} == {"POST"}
    assert {method for method, path in opened if path == "/api/v2/join"} == {"GET", "POST"}
    assert sockets <= {"/health", "/livez", "/readyz", "/panel/", "/panel", "/api/v2/join"}


async def test_an_agent_of_paddlers_is_admitted_from_its_network_only(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        path = "/api/v1/agent_socket/old"
        with httpx.Client(
            base_url=f"http://{here.address}", trust_env=False, timeout=PATIENCE_S
        ) as client:
            refused = await trio.to_thread.run_sync(lambda: client.get(path, headers=UPGRADE))
        assert refused.status_code == 401
        here.restart("--legacy-agents=127.0.0.0/8")
        async with open_websocket_url(f"ws://{here.address}{path}") as link:
            assert "version" in (await link.get_message()).lower()
            status = AgentStatus(1).snapshot()
            await link.send_message(render(RegisterAgent("old", status)).decode())
            joined = here.balancer.wait_for_log
            assert (await trio.to_thread.run_sync(joined, "agent joined"))["agent"] == "old"
        with httpx.Client(
            base_url=f"http://{here.address}", trust_env=False, timeout=PATIENCE_S
        ) as client:
            denied = await trio.to_thread.run_sync(client.get, "/api/v1/agents")
        assert denied.status_code == 401


def test_what_operators_see_and_what_is_refused(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        assert "no join token is in force" in here.run("join-token", "list")
        assert "no agent has joined" in here.run("agents", "credentials")
        made = json.loads(here.run("join-token", "new", "--name=gpu-7", "--ttl=90s", "--json"))
        assert set(made) == {"id", "token", "command", "expires", "address"}
        listed = here.run("join-token", "list")
        assert made["id"] in listed
        assert made["token"].split(".")[2] not in listed
        printed = here.run("join-token", "new")
        assert "only this machine reaches" in printed
        assert "good once until" in printed
        elsewhere = here.run("join-token", "new", "--address=192.0.2.1:8060")
        assert "leads to 192.0.2.1:8060" in elsewhere
        assert "there is no TLS" in elsewhere
        assert "is worthless" in here.run("join-token", "revoke", made["id"])
        assert "there is no join token" in here.run("join-token", "revoke", made["id"], code=1)
        assert "opens nothing here" in here.join(made["token"], "one", code=1)
        assert "no agent has joined under" in here.run("agents", "revoke", "gpu-7", code=1)
        for option in ("--ttl=soon", "--ttl=0", "--label=x", "--uses=0"):
            here.run("join-token", "new", option, code=2)
        assert "ttl_s" in here.run("join-token", "new", "--ttl=31d", code=1)
        ran = invoke("join", f"--state-dir={tmp_path / 'x'}", stdin="pt-secret\n")
        assert (ran.exit_code, "no join token" in ran.stderr) == (1, True)
        assert "pt-secret" not in ran.stderr
        assert "no join token on standard input" in here.join("", "x", code=1)


def test_a_credential_reads_what_is_desired_and_writes_nothing(tmp_path: Path) -> None:
    store = (f"--model-store={tmp_path / 'store'}", "--model-store-size=1GB")
    with place(tmp_path, *store) as here:
        here.join(here.token(), "one", "--name=gpu")
        credential = (tmp_path / "one" / "credential").read_text().strip()
        headers = {"Authorization": f"Bearer {credential}"}
        base = f"http://{here.address}/api/v2/store"
        here.balancer.wait_for_log("model store up")
        with httpx.Client(headers=headers, trust_env=False, timeout=PATIENCE_S) as client:
            sources = [f"http://127.0.0.1:1/{name}.gguf".encode() for name in "ab"]
            wanted, other = (f"{base}/url/{urlsafe_b64encode(each).decode()}" for each in sources)
            refusals = {client.get(url).text for url in (base, wanted, other)}
            assert len(refusals) == 1, "it tells nothing apart"
            manager = {"Authorization": f"Bearer {(tmp_path / 'key').read_text().strip()}"}
            state_url = f"http://{here.address}/api/v1/balancer_desired_state"
            state = client.get(state_url, headers=manager).json()
            state["model"] = {"Url": {"url": "http://127.0.0.1:1/a.gguf"}}
            assert client.put(state_url, headers=manager, json=state).is_success
            answers = [client.get(url) for url in (base, wanted, other)]
            assert [answer.status_code for answer in answers] == [403, 504, 403]
            assert "port" not in answers[1].text
            assert client.get(base, headers=manager).status_code == 200
            assert client.put(f"{base}/blobs/sha256/{'0' * 64}", content=b"x").status_code == 403
            assert client.delete(f"{base}/pins/a").status_code == 403
            here.run("agents", "revoke", "gpu")
            assert client.get(base).status_code == 401
            assert httpx.get(base, trust_env=False, timeout=PATIENCE_S).status_code == 401


@pytest.mark.slow
def test_one_pasted_line_makes_a_running_agent(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        made = json.loads(here.run("join-token", "new", "--json"))
        command = made["command"].replace("paddler-trio", f"{sys.executable} -m paddler_trio", 1)
        pasted = Daemon(
            "pasted",
            subprocess.Popen(
                ["bash", "-c", command],
                env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ),
        )
        here.logs.append(pasted)
        here.balancer.wait_for_log("agent joined")
        (agent,) = here.get("/api/v2/agents")["agents"]
        assert agent["desired_slots_total"] == 4
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:
                continue  # it has ended
            if b"bash\0-c\0" not in line:  # the paste itself: a shell that people type into
                assert made["token"].encode() not in line
