"""A balancer takes over from a running one, and nobody outside notices."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import attrs
import httpx
import pytest
import trio
from fleet import END_S, Daemon, Fleet
from streams import RAW, Heard, listen, song, until_first_tokens
from trio_websocket import ConnectionClosed, wrap_client_stream

from no_tls import NO_TLS
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

SLACK_S = 0.05
"""The agent notes the end of a request after the balancer has heard of it."""


@attrs.define
class Pings:
    """Requests over new connections, one after the other."""

    answered: int = 0
    failures: list[str] = attrs.field(factory=list)

    async def run(self, address: str, path: str, *, pause_s: float = 0.01) -> None:
        """Until cancelled."""
        host, _, port = address.rpartition(":")
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        while True:
            answer = b""
            try:
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    await stream.send_all(request.encode())
                    async for data in stream:
                        answer += data
            except (OSError, trio.BrokenResourceError) as error:
                self.failures.append(repr(error))
            if answer.startswith(b"HTTP/1.1 200 "):
                self.answered += 1
            else:
                self.failures.append(answer[:100].decode())
            await trio.sleep(pause_s)


def most_at_once(agent: Daemon) -> int:
    """How many requests the agent worked on at a time, by its own log."""
    events: list[tuple[float, int]] = []
    for line in list(agent.log):
        record = json.loads(line)
        if record.get("event") == "request ended":
            ended_s = seconds(record["timestamp"])
            began_s = ended_s - record["took_s"]
            if record["took_s"] > SLACK_S:
                events += [(began_s + SLACK_S, 1), (ended_s, -1)]
    running = most = 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    return most


def seconds(text: str) -> float:
    """Of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()


def count(daemon: Daemon, event: str) -> int:
    return sum(json.loads(line).get("event") == event for line in list(daemon.log))


def get(fleet: Fleet, path: str) -> object:
    return answer_of(fleet, path).json()


def metrics(fleet: Fleet) -> str:
    return answer_of(fleet, "/metrics").text


def answer_of(fleet: Fleet, path: str) -> httpx.Response:
    url = f"{fleet.management_url}{path}"
    answer = httpx.get(url, trust_env=False, verify=NO_TLS, timeout=END_S)
    return answer.raise_for_status()


async def streams_over_restarts(
    fleet: Fleet, *, streams: int, tokens: int, restarts: int, slots: int
) -> list[Heard]:
    """Streams that begin before, between and after restarts; pings and watchers meanwhile."""
    heard = [Heard() for _ in range(streams)]
    inference, management = Pings(), Pings()
    before: list[Daemon] = []
    async with trio.open_nursery() as pinging:
        pinging.start_soon(inference.run, fleet.inference, "/livez")
        pinging.start_soon(management.run, fleet.management, "/livez")
        async with trio.open_nursery() as clients:
            await clients.start(_sing_over_a_socket, fleet, tokens)
            await clients.start(_watch_agents, fleet)
            shares = [heard[number :: restarts + 1] for number in range(restarts + 1)]
            for number, share in enumerate(shares):
                for each in share:
                    clients.start_soon(listen, fleet.inference, RAW, song(max_tokens=tokens), each)
                await until_first_tokens(heard, min(number + 1, slots - 1))
                if number < restarts:
                    before.append(await trio.to_thread.run_sync(fleet.take_over))
        for daemon in before:
            assert await trio.to_thread.run_sync(daemon.wait) == 0
        pinging.cancel_scope.cancel()
    for pings in (inference, management):
        assert pings.failures == []
        assert pings.answered > 10 * restarts
    return heard


async def _sing_over_a_socket(
    fleet: Fleet, tokens: int, *, task_status: trio.TaskStatus[None]
) -> None:
    """The balancer ends a client's socket when its request has ended, and not before."""
    work = {"ContinueFromRawPrompt": song(max_tokens=tokens)}
    heard = Heard()
    host, _, port = fleet.inference.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream, trio.open_nursery() as nursery:
        path = "/api/v1/inference_socket"
        client = await wrap_client_stream(nursery, stream, fleet.inference, path)
        await client.send_message(json.dumps({"Request": {"id": "r", "request": work}}))
        reason = None
        while reason is None:
            try:
                heard.take(await client.get_message())
            except ConnectionClosed as closed:
                reason = closed.reason
            if heard.tokens == 1:
                task_status.started()
        assert reason.code == 1001
    assert (heard.tokens, heard.endings) == (tokens, ["Done"])


async def _watch_agents(fleet: Fleet, *, task_status: trio.TaskStatus[None]) -> None:
    """An operator's stream ends in an orderly way when another process has the port."""
    url = f"{fleet.management_url}/api/v2/agents/stream"
    operator = httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=END_S)
    async with operator, operator.stream("GET", url) as answer:
        task_status.started()
        async for _ in answer.aiter_lines():
            pass


@pytest.mark.parametrize(
    ("streams", "tokens", "restarts", "slots"),
    [(5, 300, 2, 4), pytest.param(100, 250, 10, 100, marks=pytest.mark.slow)],
)
def test_streams_go_on_and_no_connection_is_refused_while_balancers_take_over(
    tmp_path: Path, streams: int, tokens: int, restarts: int, slots: int
) -> None:
    options = [
        f"--state-database=file://{tmp_path}/state.json",
        "--buffered-request-timeout=100000",
        "--inference-item-timeout=200000",  # a hundred grammars on a busy machine
        "--max-buffered-requests=100",
    ]
    with Fleet.start(agents=1, slots=slots, model=None, balancer_options=options) as fleet:
        fleet.desire(BUNDLED_MODEL, temperature=0.0, context_size=512 * slots)
        fleet.wait_serving()
        rubbish = tmp_path / "rubbish.json"
        rubbish.write_text("[]")  # found when the state has passed already
        failed = fleet.start_successor(f"--agents-file={rubbish}")
        assert failed.wait() == 1
        fleet.balancer.wait_for_log("not handed over: this balancer goes on")
        revision = get(fleet, "/api/v2/fleet/history")
        digest = fleet.desire(BUNDLED_MODEL, temperature=0.0, context_size=512 * slots, top_k=9)
        fleet.wait_serving()
        history = get(fleet, "/api/v2/fleet/history")
        assert history != revision, "it writes its state again"
        fleet.agents["a1"].wait_for_log("engine up")
        [agent] = fleet.view()["agents"]
        run = partial(
            streams_over_restarts,
            fleet,
            streams=streams,
            tokens=tokens,
            restarts=restarts,
            slots=slots,
        )
        heard = trio.run(run)
        assert [each.error for each in heard if each.endings != ["Done"]] == []
        for each in heard:
            assert (each.tokens, each.lines_after_ending) == (tokens, 0)
        texts = {each.text for each in heard}
        assert len(texts) == 1, "greedy answers to one prompt are the same, token for token"
        assert most_at_once(fleet.agents["a1"]) <= slots
        assert count(fleet.agents["a1"], "engine up") == 1, "nothing was loaded again"
        assert count(fleet.agents["a1"], "no link to the balancer") == 0
        assert get(fleet, "/api/v2/fleet/history") == history
        view = fleet.wait_serving()
        assert view["desired_state_digest"] == digest
        assert view["agents"][0]["id"] == agent["id"]
        assert view["agents"][0]["slots_total"] == slots


def echo_over_websocket(listener: socket.socket) -> None:
    """A server that switches protocols when it is asked to, and sends back what comes then; until
    the listener is closed."""

    def answer(connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := connection.recv(4096)):
                    return
                head += data
            if b"upgrade: websocket" not in head.lower():  # the agent asks how it is
                status = b"200 OK" if b" /health " in head else b"404 Not Found"
                connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)
                return
            connection.sendall(
                b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            )
            while data := connection.recv(4096):
                connection.sendall(data)

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=[connection], daemon=True).start()


def test_websockets_to_servers_stay_open_while_another_balancer_takes_over(tmp_path: Path) -> None:
    options = [f"--state-database=file://{tmp_path}/state.json", "--reverseproxy-addr=127.0.0.1:0"]
    ask = (
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )

    def switched(address: tuple[str, int]) -> socket.socket:
        stream = socket.create_connection(address, timeout=END_S)
        stream.sendall(ask)
        head = b""
        while b"\r\n\r\n" not in head:
            data = stream.recv(4096)
            assert data, head
            head += data
        assert head.startswith(b"HTTP/1.1 101 "), head
        return stream

    def echoes(stream: socket.socket) -> bool:
        stream.sendall(b"still here")
        return stream.recv(4096) == b"still here"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo_over_websocket, args=[listener], daemon=True).start()
        server = "http://{}:{}".format(*listener.getsockname())
        with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
            fleet.start_agent("server", slots=2, options=[f"--upstream={server}"])
            ready = {"is_accepting": True, "slots_total": 2}
            fleet.wait_until(
                lambda view: (
                    [agent for agent in view["agents"] if ready.items() <= agent.items()] != []
                ),
                what="the server offers its slots",
                nobody_ends=True,
            )
            up = fleet.balancer.wait_for_log("balancer up")
            [port] = cast("list[str]", up["reverse_proxy"])
            host, _, number = port.rpartition(":")
            address = (host, int(number))
            with switched(address) as before:
                predecessor = fleet.balancer
                successor = fleet.start_successor()
                predecessor.wait_for_log("handing over: agents first")
                with switched(address) as between:  # of the predecessor, if this test is quick
                    fleet.balancer = successor
                    successor.wait_for_log("balancer up")
                    with switched(address) as after:
                        assert all(echoes(each) for each in (before, between, after))
                        assert predecessor.process.poll() is None
                        before.close()
                        between.close()
                        assert predecessor.wait() == 0
                        assert echoes(after)


@pytest.mark.parametrize("has_servers", [False, True])
def test_what_waits_for_an_agent_at_a_takeover_is_told_to_come_again(
    tmp_path: Path, has_servers: bool
) -> None:
    options = [f"--state-database=file://{tmp_path}/state.json"]
    if has_servers:
        options.append("--reverseproxy-addr=127.0.0.1:0")
    body = {"content": "a", "messages": [{"role": "user", "content": "a"}]}
    with (
        Fleet.start(agents=0, model=None, balancer_options=options) as fleet,
        ThreadPoolExecutor() as clients,
    ):
        up = fleet.balancer.wait_for_log("balancer up")
        [port] = cast("list[str]", up["reverse_proxy" if has_servers else "inference"])
        post = partial(httpx.post, json=body, trust_env=False, verify=NO_TLS, timeout=END_S)
        answers = [
            clients.submit(post, f"http://{port}{path}")
            for path in ("/tokenize", "/v1/chat/completions")
        ]
        deployment = "upstream" if has_servers else "default"
        both_wait = f'paddler_deployment_requests_buffered{{deployment="{deployment}"}} 2'
        give_up_s = time.monotonic() + END_S
        while both_wait not in (shown := metrics(fleet)):
            assert time.monotonic() < give_up_s, shown
        predecessor = fleet.take_over()
        for each in answers:
            answer = each.result(END_S)
            assert answer.status_code == 503
            assert "has taken over from this balancer: send it again" in answer.text
            assert int(answer.headers["retry-after"]) >= 0
        assert predecessor.wait() == 0


@pytest.fixture
def notifications() -> Iterator[tuple[str, socket.socket]]:
    """The name of a notification socket as of systemd, and the end that systemd holds."""
    address = f"@paddler-trio-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + address[1:])
        end.settimeout(END_S)
        yield address, end


def until_said(end: socket.socket, word: str) -> str:
    """The first message with this word in it, and no earlier ones."""
    while word not in (said := end.recv(4096).decode()):
        pass
    return said


def test_a_balancer_starts_its_own_successor_and_names_it_to_systemd(
    tmp_path: Path, notifications: tuple[str, socket.socket]
) -> None:
    address, systemd = notifications
    arguments = [
        "balancer",
        "--inference-addr=127.0.0.1:0",
        "--management-addr=127.0.0.1:0",
        f"--state-database=file://{tmp_path}/state.json",
        "--log-json",
    ]
    balancer = Daemon.start_command("balancer", arguments, {"NOTIFY_SOCKET": address})
    try:
        until_said(systemd, "READY=1")
        balancer.signal(signal.SIGUSR2)
        successor = int(until_said(systemd, "MAINPID=").partition("=")[2])
        end = os.pidfd_open(successor)
        try:
            assert until_said(systemd, "READY=1").startswith("READY=1\nSTATUS=inference on 127.")
            assert balancer.wait() == 0
            os.kill(successor, signal.SIGTERM)
            until_said(systemd, "STOPPING=1")
            assert select.select([end], [], [], END_S)[0], "the successor ends when it is asked to"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended, and was waited for
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
    finally:
        balancer.end()


def test_a_balancer_that_is_asked_to_stop_leaves_no_successor_that_begins_behind_it(
    tmp_path: Path,
) -> None:
    arguments = [
        "balancer",
        "--inference-addr=127.0.0.1:0",
        "--management-addr=127.0.0.1:0",
        f"--state-database=file://{tmp_path}/state.json",
        "--log-json",
    ]
    balancer = Daemon.start_command("balancer", arguments, {})
    try:
        balancer.wait_for_log("balancer up")
        balancer.signal(signal.SIGUSR2)
        successor = cast("int", balancer.wait_for_log("a successor was started")["process"])
        end = os.pidfd_open(successor)
        try:
            signal.pidfd_send_signal(end, signal.SIGSTOP)  # before it has asked for anything
            balancer.signal(signal.SIGTERM)
            assert balancer.wait() == 0
            with contextlib.suppress(ProcessLookupError):  # its group has no parent, and goes on
                signal.pidfd_send_signal(end, signal.SIGCONT)
            assert select.select([end], [], [], 20)[0], "it serves in the place of its predecessor"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended, and was waited for
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
    finally:
        balancer.end()
