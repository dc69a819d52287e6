"""What a web page can do to a balancer that runs on its reader's machine: nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fleet import Daemon, Fleet

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
EVIL = "http://evil.example"
CROSS_SITE = [{"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
AGENT_SOCKET = "/api/v1/agent_socket/evil"
INFERENCE_SOCKET = "/api/v1/inference_socket"


@contextmanager
def balancer(*options: str) -> Iterator[dict[str, str]]:
    """Its base URLs on the loopback, by the name of the port."""
    started = Daemon.start(
        "balancer",
        [
            "balancer",
            "--inference-addr=127.0.0.1:0",
            "--management-addr=127.0.0.1:0",
            "--compat-openai-addr=127.0.0.1:0",
            "--compat-ollama-addr=127.0.0.1:0",
            "--log-json",
            *options,
        ],
        {},
    )
    try:
        up = started.wait_for_log("balancer up")
        ports = ("inference", "management", "compat_openai", "compat_ollama")
        addresses = {name: up[name] for name in ports}
        yield {
            name: f"http://127.0.0.1:{str(each[0]).rpartition(':')[2]}"
            for name, each in addresses.items()
            if isinstance(each, list)
        }
    finally:
        started.end()


def ask(url: str, method: str = "GET", **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60) as http:
        return http.request(method, url, headers=headers)


def upgrade(url: str, **headers: str) -> int:
    """The status of a handshake; 101 if the socket was accepted."""
    with (
        httpx.Client(trust_env=False, timeout=60) as http,
        http.stream("GET", url, headers={**UPGRADE, **headers}) as answer,
    ):
        return answer.status_code


def test_a_name_that_was_rebound_to_the_loopback_reaches_nothing() -> None:
    with balancer("--allowed-host=llm.example") as at:
        for path in ("/api/v1/balancer_desired_state", "/api/v2/agents", "/metrics", "/health"):
            refused = ask(at["management"] + path, Host="evil.example")
            assert refused.status_code == 403
            assert "--allowed-host evil.example" in refused.text
            for host in ("localhost:1", "127.0.0.1", "[::1]:8060", "llm.example:8060"):
                assert ask(at["management"] + path, Host=host).status_code == 200
        rebound = {"Host": "evil.example:8060", "Origin": "http://evil.example:8060"}
        assert upgrade(at["management"] + AGENT_SOCKET, **rebound) == 403
        assert upgrade(at["inference"] + INFERENCE_SOCKET, **rebound) == 403
        put = ask(at["management"] + "/api/v1/balancer_desired_state", "PUT", **rebound)
        assert put.status_code == 403
        for port in ("inference", "compat_openai"):
            refused = ask(at[port] + "/v1/models", Host="evil.example")
            assert refused.status_code == 403
            assert "--allowed-host evil.example" in refused.json()["error"]["message"]
            assert ask(at[port] + "/v1/models", Host="localhost").status_code == 200


def test_beyond_the_loopback_this_machine_and_private_names_are_served_too() -> None:
    beyond = ["--inference-addr=0.0.0.0:0", "--management-addr=0.0.0.0:0", "--insecure-management"]
    with balancer(*beyond, "--allowed-host=llm.example") as at:
        for url in (at["inference"] + "/v1/models", at["management"] + "/api/v2/agents"):
            for host in (
                socket.gethostname(),
                "10.1.2.3:8061",
                "balancer",
                "a.local",
                "llm.example",
            ):
                assert ask(url, Host=host).status_code == 200
            assert ask(url, Host="evil.example").status_code == 403
        assert ask(at["compat_openai"] + "/v1/models", Host="a.local").status_code == 403
        assert ask(at["compat_ollama"] + "/api/tags", Host="a.local").status_code == 403
        assert ask(at["compat_ollama"] + "/api/tags", Host="localhost").status_code == 200


@pytest.mark.parametrize("page", CROSS_SITE)
def test_pages_of_other_origins_change_nothing(page: dict[str, str]) -> None:
    with balancer() as at:
        management, plain = at["management"], {"Content-Type": "text/plain", **page}
        before = ask(management + "/api/v1/balancer_desired_state").content
        for method, url in [
            ("PUT", management + "/api/v1/balancer_desired_state"),
            ("POST", management + "/api/v2/agents/a/drain"),
            ("DELETE", management + "/api/v2/agents/a/drain"),
            ("POST", management + "/nowhere"),
            ("POST", at["inference"] + "/api/v1/continue_from_raw_prompt"),
        ]:
            refused = ask(url, method, **plain)
            assert refused.status_code == 403
            assert "cors-allowed-host" in refused.text
        for port in ("inference", "compat_openai"):
            refused = ask(at[port] + "/v1/chat/completions", "POST", **plain)
            assert refused.status_code == 403
            assert "--inference-cors-allowed-host" in refused.json()["error"]["message"]
        for port in ("inference", "compat_ollama"):
            refused = ask(at[port] + "/api/chat", "POST", **plain)
            assert refused.status_code == 403
            assert "--inference-cors-allowed-host" in refused.json()["error"]
        assert ask(at["inference"] + "/v1/messages", "POST", **plain).json()["type"] == "error"
        assert upgrade(management + AGENT_SOCKET, **page) == 403
        assert upgrade(at["inference"] + INFERENCE_SOCKET, **page) == 403
        assert ask(management + "/api/v1/balancer_desired_state", **page).content == before


def test_a_page_drains_no_agent_unless_its_origin_is_allowed() -> None:
    panel = "http://panel.example"
    options = [f"--management-cors-allowed-host={panel}"]
    with Fleet.start(agents=1, model=None, balancer_options=options) as fleet:
        fleet.wait_until(lambda view: view["agents"][0]["is_accepting"])
        url = f"{fleet.management_url}/api/v2/agents/{fleet.agent_view('a1')['id']}/drain"
        assert ask(url, "POST", Origin=EVIL).status_code == 403
        assert fleet.agent_view("a1")["is_accepting"]
        for page in ({"Origin": panel, "Sec-Fetch-Site": "cross-site"}, {}):
            assert ask(url, "POST", **page).is_success
            assert not fleet.agent_view("a1")["is_accepting"]
            assert ask(url, "DELETE", **page).is_success
            assert fleet.agent_view("a1")["is_accepting"]
