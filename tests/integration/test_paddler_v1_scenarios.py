"""What Paddler 1.x promised in front of running llama-servers, kept by our processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs
import httpx
from counting_server import CountingServer
from fleet import END_S, Fleet
from person_at_terminal import person

from no_tls import NO_TLS


@attrs.define(eq=False)
class Client:
    """One request for a completion, on its way since it was made."""

    url: str
    prompt: str
    answer: httpx.Response | None = attrs.field(default=None, init=False)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def ends(self) -> httpx.Response:
        self._thread.join(END_S)
        assert self.answer is not None, f"{self.prompt} was not answered"
        return self.answer

    def _ask(self) -> None:
        body = {"prompt": self.prompt}
        self.answer = httpx.post(
            f"{self.url}/completion", json=body, trust_env=False, verify=NO_TLS, timeout=END_S
        )


@attrs.define(eq=False)
class Proxied:
    """A balancer with the port of 1.x, and agents in front of servers."""

    fleet: Fleet
    url: str
    stack: ExitStack

    @classmethod
    @contextmanager
    def start(cls, *options: str) -> Iterator[Proxied]:
        proxy = "--reverseproxy-addr=127.0.0.1:0"
        with ExitStack() as stack:
            fleet = stack.enter_context(
                Fleet.start(agents=0, model=None, balancer_options=[proxy, *options])
            )
            addresses = fleet.balancer.wait_for_log("balancer up")["reverse_proxy"]
            assert isinstance(addresses, list)
            yield cls(fleet, f"http://{addresses[0]}", stack)

    def add(
        self, name: str, *options: str, slots: int = 1, env: Mapping[str, str] | None = None
    ) -> CountingServer:
        """One more server with an agent that offers its slots."""
        server = self.stack.enter_context(CountingServer.start(slots))
        command = [f"--upstream={server.url}", "--monitoring-interval=0.1", *options]
        self.fleet.start_agent(name, slots=slots, options=command, env=env)
        number = len(self.fleet.agents)
        self.fleet.wait_until(
            lambda view: sum(agent["is_accepting"] for agent in view["agents"]) == number,
            what=f"{name} offers its slots",
            nobody_ends=True,
        )
        return server

    def asks(self, prompt: str, *, at: CountingServer | None = None, number: int = 1) -> Client:
        """One more client; with ``at``, once its request is the one of this number there."""
        client = Client(self.url, prompt)
        if at is not None:
            at.wait_arrived(number)
        return client

    def agents(self, path: str = "/compat/v1/agents") -> dict[str, dict[str, object]]:
        """As Paddler 1.x would show them, by name."""
        url = f"{self.fleet.management_url}{path}"
        listed = httpx.get(url, trust_env=False, verify=NO_TLS, timeout=END_S).json()["agents"]
        return {agent["agent_name"]: agent for agent in listed}


class InstanceMetadata(BaseHTTPRequestHandler):
    """What an instance of EC2's says of itself."""

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def do_PUT(self) -> None:
        self._send("token")

    def do_GET(self) -> None:
        assert self.headers["X-aws-ec2-metadata-token"] == "token"
        items = {"local-ipv4": "10.0.3.17", "instance-id": "i-0abc"}
        self._send(items[self.path.removeprefix("/latest/meta-data/")])

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def instance_metadata() -> Iterator[dict[str, str]]:
    """The environment of a machine that has it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), InstanceMetadata) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        yield {"AWS_EC2_METADATA_SERVICE_ENDPOINT": address}
        server.shutdown()
        thread.join()


def test_without_patience_each_request_is_placed_at_once_or_refused_with_504() -> None:
    with Proxied.start("--buffered-request-timeout=0") as proxied:
        assert proxied.asks("nobody is here").ends().status_code == 504

        one, other = proxied.add("one", slots=2), proxied.add("other", slots=2)
        held = []
        for number in (1, 2):  # alternating: each goes where more slots are idle
            before = len(one.arrived), len(other.arrived)
            assert before == (number - 1, number - 1)
            held.append(proxied.asks("p"))
            held.append(proxied.asks("p"))
            one.wait_arrived(number)
            other.wait_arrived(number)
        refused = proxied.asks("no slot is idle").ends()
        assert refused.status_code == 504
        assert "timed out" in refused.json()["error"]["message"]

        one.let_go()
        other.let_go()
        by = [client.ends().json()["content"].rpartition(" ")[2] for client in held]
        assert sorted(by) == sorted([str(one.port), str(other.port)] * 2)


def test_a_third_request_waits_for_a_slot_and_what_does_not_fit_the_queue_gets_429() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd,
        instance_metadata() as machine,
    ):
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(END_S)
        options = [
            "--max-buffered-requests=1",
            "--statsd-addr={}:{}".format(*statsd.getsockname()),
            "--statsd-prefix=paddler.",
            "--statsd-v1-names",
            "--statsd-reporting-interval=20",
        ]
        with Proxied.start(*options) as proxied:
            told = "--upstream-external-addr=aws:metadata:local-ipv4:8088"
            name = "--name=aws:metadata:instance-id"
            one = proxied.add("i-0abc", told, name, env=machine)
            other = proxied.add("other")
            shut = proxied.stack.enter_context(CountingServer.start(1, key="secret"))
            proxied.fleet.start_agent("shut", slots=1, options=[f"--upstream={shut.url}"])
            held = [proxied.asks("p"), proxied.asks("p")]
            one.wait_arrived(1)
            other.wait_arrived(1)
            third = proxied.asks("third")
            report = {b"slots_idle:0", b"slots_processing:2", b"requests_buffered:1"}
            while {statsd.recv(2000)[8:-2] for _ in range(3)} != report:
                pass  # a report has three datagrams

            overflow = proxied.asks("fourth").ends()
            assert overflow.status_code == 429
            assert int(overflow.headers["retry-after"]) >= 1
            assert overflow.json()["error"]["code"] == 429
            body = {"prompt": "fifth", "model": "upstream"}
            url = f"{proxied.fleet.inference_url}/completion"
            native = httpx.post(url, json=body, trust_env=False, verify=NO_TLS, timeout=END_S)
            assert native.status_code == 503  # as Paddler 4.1 on that port

            proxied.fleet.wait_until(
                lambda view: any("wants a key" in (a["detail"] or "") for a in view["agents"])
            )
            locked = proxied.agents()["shut"]
            assert (locked["is_authorized"], locked["slots_idle"]) == (False, 0)
            assert "--upstream-key-file" in str(locked["error"])
            agents = {n: each for n, each in proxied.agents().items() if n != "shut"}
            assert agents["i-0abc"]["external_llamacpp_addr"] == "10.0.3.17:8088"
            assert agents["other"]["external_llamacpp_addr"] == f"127.0.0.1:{other.port}"
            for agent in agents.values():
                assert (agent["slots_idle"], agent["slots_processing"]) == (0, 1)
                assert (agent["is_authorized"], agent["is_slots_endpoint_enabled"]) == (True, True)
                assert (agent["error"], agent["quarantined_until"]) == (None, None)
            assert first_event(proxied) == {
                each["agent_id"]: each["slots_processing"] for each in (*agents.values(), locked)
            }
            with person("dashboard", "--management-addr", proxied.fleet.management) as operator:
                screen = operator.reads("10.0.3.17:8088")
                (row,) = (line for line in screen.splitlines() if line.startswith("shut"))
                assert "it wants a key" in row
                for keys, name in (("d", "i-0abc"), ("kd", "shut"), ("jd", "i-0abc")):
                    operator.press(keys)  # the first and the last are neighbours
                    operator.reads(f"drain {name}?")
                    operator.press("n")
                operator.press("q")
                assert operator.waits_for_end() == 0
                assert operator.is_restored

            one.let_go()
            other.let_go()
            assert [client.ends().status_code for client in (*held, third)] == [200] * 3
            assert sorted(one.arrived + other.arrived) == ["p", "p", "third"]


def first_event(proxied: Proxied) -> dict[str, object]:
    """Busy slots by agent, as the stream of Paddler 1.x begins."""
    url = f"{proxied.fleet.management_url}/compat/v1/agents/stream"
    with httpx.stream("GET", url, trust_env=False, verify=NO_TLS, timeout=END_S) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    listed = json.loads(line.removeprefix("data: "))["agents"]
    return {agent["agent_id"]: agent["slots_processing"] for agent in listed}
