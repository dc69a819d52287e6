"""The panel's site of a real balancer: both APIs through it, for sessions and to the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import forked_processes
import httpx
import openai
import pytest
import trio
from fleet import Daemon, Fleet
from streams import Heard, listen, story
from trio_websocket import open_websocket_url

from no_tls import NO_TLS

PANEL = "--web-admin-panel-addr=127.0.0.1:0"
BALANCER = ("balancer", "--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0")


def panel_of(balancer: Daemon) -> str:
    addresses = balancer.wait_for_log("balancer up")["web_admin_panel"]
    assert isinstance(addresses, list)
    return f"http://{addresses[0]}"


def client() -> httpx.Client:
    return httpx.Client(trust_env=False, verify=NO_TLS, timeout=60)


@pytest.fixture(scope="module")
def panel_fleet() -> Iterator[Fleet]:
    """One agent; a panel on a port of its own, beside the one below the management port."""
    with Fleet.start(agents=1, balancer_options=[PANEL]) as fleet:
        yield fleet


@pytest.fixture(params=["own port", "management port"])
def base(request: pytest.FixtureRequest, panel_fleet: Fleet) -> str:
    if request.param == "own port":
        return panel_of(panel_fleet.balancer)
    return f"{panel_fleet.management_url}/panel"


def test_both_apis_answer_below_the_panel_as_on_their_ports(base: str, panel_fleet: Fleet) -> None:
    with client() as http:
        fleet = http.get(f"{base}/api/v2/agents").json()
        assert [agent["name"] for agent in fleet["agents"]] == ["a1"]
        with http.stream("GET", f"{base}/api/v2/agents/stream") as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        completion = http.post(f"{base}/inference/v1/chat/completions", json=chat)
        assert completion.json()["usage"]["completion_tokens"] == 4
        envelope = http.post(f"{base}/inference/v1/chat/completions", json={"messages": 1})
        assert envelope.status_code == 400
        assert "messages" in envelope.json()["error"]["message"]
        plain = http.put(f"{base}/api/v1/balancer_desired_state", json={})
        assert plain.status_code == 400
        assert plain.headers["content-type"].startswith("text/plain")
        info = http.get(f"{base}/info").json()
        assert info["addresses"]["management"] == [panel_fleet.management]
        assert info["join"]["needs_key"] is False
        assert "--management-addr 0.0.0.0:" in info["join"]["problem"]


def test_tokens_stream_and_sockets_open_through_the_panel(base: str) -> None:
    address, _, prefix = base.removeprefix("http://").partition("/")
    path = f"{'/' if prefix else ''}{prefix}/inference"

    async def main() -> None:
        heard = Heard()
        route = f"{path}/api/v1/continue_from_conversation_history"
        await listen(address, route, story(1, max_tokens=5), heard)
        assert heard.endings == ["Done"]
        with trio.fail_after(60):
            async with open_websocket_url(
                f"ws://{address}{path}/api/v1/inference_socket"
            ) as socket:
                request = {"ContinueFromConversationHistory": story(2, max_tokens=3)}
                await socket.send_message(json.dumps({"Request": {"id": "r", "request": request}}))
                assert '"r"' in await socket.get_message()

    trio.run(main)
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    refused = httpx.get(
        f"{base}/api/v1/agent_socket/evil", headers=upgrade, trust_env=False, timeout=60
    )
    assert refused.status_code == 403
    assert "management port" in refused.text


def test_an_official_client_works_with_the_panel_as_its_base(base: str) -> None:
    with openai.OpenAI(base_url=f"{base}/inference/v1", api_key="unused", max_retries=0) as sdk:
        stream = sdk.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=4,
            stream=True,
        )
        assert len(list(stream)) >= 4


def test_streams_of_the_panel_end_with_the_balancer() -> None:
    balancer = Daemon.start("balancer", [*BALANCER, PANEL, "--log-json"], {})
    try:
        base = panel_of(balancer)
        with client() as http, http.stream("GET", f"{base}/api/v2/agents/stream") as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            balancer.signal(signal.SIGTERM)
            assert not [line for line in lines if line.startswith("data: ")]  # it ends in order
        assert balancer.wait() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{base}/session", trust_env=False, timeout=60)
    finally:
        balancer.end()


def test_keys_are_made_used_and_revoked_through_the_panel(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = forked_processes.run("key", "new", "ops", "--scope", "management", "--file", str(file))
    ops = made.stdout.strip()
    options = [PANEL, f"--api-key-file={file}", "--log-json"]
    balancer = Daemon.start("balancer", [*BALANCER, *options], {})
    try:
        base = panel_of(balancer)
        with client() as http:
            assert http.get(f"{base}/api/v2/keys").status_code == 401
            session = http.post(f"{base}/session", json={"key": ops}).json()
            csrf = {"X-CSRF-Token": session["csrf"]}
            order = {"name": "shop", "scopes": ["inference"]}
            assert http.post(f"{base}/api/v2/keys", json=order).status_code == 403
            shop = http.post(f"{base}/api/v2/keys", json=order, headers=csrf).json()["key"]
            inference = balancer.wait_for_log("balancer up")["inference"]
            assert isinstance(inference, list)
            models = f"http://{inference[0]}/v1/models"
            with_key = {"Authorization": f"Bearer {shop}"}
            for headers, status in ({}, 401), (with_key, 200):  # guarded from now on
                answer = httpx.get(models, headers=headers, trust_env=False, timeout=60)
                assert answer.status_code == status
            assert http.get(f"{base}/inference/v1/models").status_code == 200  # as panel:ops
            listed = forked_processes.run("key", "list", "--file", str(file), "--json")
            assert [key["name"] for key in json.loads(listed.stdout)["keys"]] == ["ops", "shop"]
            order = {"name": "night", "scopes": ["management"]}
            night = http.post(f"{base}/api/v2/keys", json=order, headers=csrf).json()["key"]
            # a key that revokes itself is answered, and then its session is over
            assert http.delete(f"{base}/api/v2/keys/ops", headers=csrf).status_code == 204
            assert http.get(f"{base}/api/v2/keys").status_code == 401
            session = http.post(f"{base}/session", json={"key": night}).json()
            last = http.delete(
                f"{base}/api/v2/keys/night", headers={"X-CSRF-Token": session["csrf"]}
            )
            assert last.status_code == 409
        for secret in (ops, shop, night):
            assert secret not in balancer.tail(5000)
    finally:
        balancer.end()


def test_an_agent_started_as_the_panel_says_joins(tmp_path: Path) -> None:
    file, token = tmp_path / "keys.json", tmp_path / "management.key"
    made = forked_processes.run("key", "new", "ops", "--scope", "management", "--file", str(file))
    token.write_text(made.stdout)
    options = [PANEL, f"--api-key-file={file}", "--management-addr=0.0.0.0:0", "--log-json"]
    balancer = Daemon.start("balancer", [*BALANCER, *options], {})
    agent = None
    try:
        base = panel_of(balancer)
        with client() as http:
            assert http.get(f"{base}/info").status_code == 401
            http.post(f"{base}/session", json={"key": made.stdout.strip()})
            join = http.get(f"{base}/info").json()["join"]
            assert join["needs_key"] is True
            arguments = [f"--management-addr={join['address']}", "--slots=1", "--name=rack-7"]
            words = ["agent", *arguments, f"--token-file={token}", "--log-json"]
            agent = Daemon.start("rack-7", words, {"PADDLER_CACHE_DIR": str(tmp_path)})
            assert balancer.wait_for_log("agent joined")["agent"] == "rack-7"
    finally:
        balancer.end()
        if agent is not None:
            agent.end()
