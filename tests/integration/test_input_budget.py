"""Requests that ask for far more than they send: refused with the limit's name, and nobody else
notices. Real processes; what is judged is memory, links and answers, never a time."""

from __future__ import annotations

import gzip
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import trio
from fleet import Daemon, Fleet
from trio_websocket import ConnectionClosed, open_websocket_url, wrap_client_stream

MIB = 1024 * 1024
PATIENCE_S = 60


@pytest.fixture(scope="module")
def images() -> Iterator[str]:
    """Where images of 20 MiB are."""
    with image_host() as host:
        yield host


@pytest.fixture(scope="module")
def fleet(images: str) -> Iterator[Fleet]:
    with Fleet.start(agents=2, balancer_options=[f"--image-host={images}"]) as fleet:
        yield fleet


def peak_mib(daemon: Daemon) -> int:
    """The most memory the process ever held."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def assert_nobody_noticed(fleet: Fleet) -> None:
    """Every agent is linked, was never unlinked, and answers."""
    assert len(fleet.view()["agents"]) == len(fleet.agents)
    for name in fleet.agents:
        assert not any('"no link to the balancer"' in line for line in fleet.agents[name].log)
    assert not any("agent is silent" in line for line in fleet.balancer.log)
    answer = post(fleet, b'{"prompt": "Once", "max_tokens": 2}')
    assert answer.status_code == 200, answer.text


def post(
    fleet: Fleet, body: bytes, *, path: str = "/v1/completions", encoding: str = "identity"
) -> httpx.Response:
    return httpx.post(
        fleet.inference_url + path,
        content=body,
        headers={"content-type": "application/json", "content-encoding": encoding},
        timeout=PATIENCE_S,
        trust_env=False,
    )


def filled(before: str, item: str, after: str, *, size_bytes: int) -> bytes:
    return (before + ",".join([item] * (size_bytes // (len(item) + 1))) + after).encode()


MANY = {
    "token ids": ('{"prompt":[', "1", "]}"),
    "empty objects": ('{"prompt":"x","user":[', "{}", "]}"),
    "an unknown field": ('{"prompt":"x","unknown":[', "[]", "]}"),
    "numbers that grow": ('{"prompt":"x","grammar":[', "1e15", "]}"),
}


@pytest.mark.parametrize("name", MANY)
def test_a_small_body_that_inflates_to_millions_of_values_is_refused(
    fleet: Fleet, name: str
) -> None:
    body = gzip.compress(filled(*MANY[name], size_bytes=30 * MIB))
    answer = post(fleet, body, encoding="gzip")
    assert answer.status_code == 413, answer.text
    assert "at most 100 bytes out of one" in answer.text
    assert peak_mib(fleet.balancer) < 700
    assert_nobody_noticed(fleet)


@pytest.mark.parametrize("name", MANY)
def test_millions_of_values_are_refused_before_they_are_decoded(fleet: Fleet, name: str) -> None:
    answer = post(fleet, filled(*MANY[name], size_bytes=30 * MIB))
    assert answer.status_code == 413, answer.text
    assert "the limit max_" in answer.text
    assert peak_mib(fleet.balancer) < 700
    assert_nobody_noticed(fleet)


def test_a_frame_of_an_agent_with_millions_of_values_ends_its_link_alone(fleet: Fleet) -> None:
    frame = filled('{"Trio":{"Report":[', "[]", "]}}", size_bytes=40 * MIB).decode()

    async def dial() -> int:
        host, port = fleet.management.split(":")
        with trio.fail_after(PATIENCE_S):
            async with (
                await trio.open_tcp_stream(host, int(port)) as stream,  # ours: closed in any case
                trio.open_nursery() as nursery,
            ):
                path = "/api/v1/agent_socket/evil"
                link = await wrap_client_stream(
                    nursery, stream, fleet.management, path, subprotocols=["paddler-trio.1"]
                )
                await link.get_message()
                await link.send_message(frame)
                with pytest.raises(ConnectionClosed) as closed:
                    await link.get_message()
        assert closed.value.reason is not None
        assert "max_containers" in str(closed.value.reason.reason)
        return int(closed.value.reason.code)

    assert trio.run(dial) == 1008
    assert peak_mib(fleet.balancer) < 700
    assert_nobody_noticed(fleet)


def test_a_frame_of_a_client_with_millions_of_values_is_refused_by_its_id(fleet: Fleet) -> None:
    head = '{"Request":{"id":"r1","request":{"ContinueFromRawPrompt":{"max_tokens":1,"raw_prompt":['
    frame = filled(head, "1", "]}}}}", size_bytes=40 * MIB).decode()

    async def dial() -> str:
        url = f"ws://{fleet.inference}/api/v1/inference_socket"
        with trio.fail_after(PATIENCE_S):
            async with open_websocket_url(url) as client:
                await client.send_message(frame)
                return str(await client.get_message())

    told = trio.run(dial)
    assert '"request_id":"r1"' in told
    assert '"code":413' in told
    assert "the limit max_values" in told
    assert_nobody_noticed(fleet)


def test_images_that_are_too_many_for_a_frame_cost_no_link(fleet: Fleet, images: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"http://{images}/a.png"}}
    body = {"messages": [{"role": "user", "content": [image] * 4}]}
    answer = post(fleet, json.dumps(body).encode(), path="/v1/chat/completions")
    assert answer.status_code in (413, 503), answer.text
    assert "are sent to an agent" in answer.text or "--input-memory" in answer.text
    assert_nobody_noticed(fleet)


def test_unfinished_bodies_hold_no_more_than_the_budget(fleet: Fleet) -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 33000000\r\n\r\n"
    )
    part = b'{"x":"' + bytes([ord("y")]) * (20 * MIB)
    host, port = fleet.inference.split(":")

    def send(client: socket.socket) -> None:
        with suppress(OSError):  # refused in the middle: its answer may be there nevertheless
            client.sendall(head + part)

    def answer_of(client: socket.socket) -> bytes:
        try:
            return client.recv(200)
        except OSError:
            return b""

    with ExitStack() as clients:
        each = [
            clients.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            for _ in range(60)
        ]
        senders = [threading.Thread(target=send, args=(client,)) for client in each]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        unanswered, told = set(each), [b""]
        while not any(answer.startswith(b"HTTP/1.1 503") for answer in told):
            answered, _, _ = select.select(unanswered, [], [], PATIENCE_S)
            assert answered, f"nobody was refused: {told}"
            unanswered -= set(answered)
            told += map(answer_of, answered)
        assert_nobody_noticed(fleet)
    assert peak_mib(fleet.balancer) < 700


def test_what_is_stored_is_read_again_within_the_budget(fleet: Fleet) -> None:
    """A hundred bytes ask for 20 MiB, and the client does not take them."""
    hidden = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "a" * 20 * MIB}
    body = {"input": [hidden, {"role": "user", "content": "hi"}], "max_output_tokens": 2}
    made = post(fleet, json.dumps(body).encode(), path="/v1/responses").raise_for_status().json()
    ask = f"GET /v1/responses/{made['id']}/input_items HTTP/1.1\r\nHost: {fleet.inference}\r\n\r\n"
    host, _, port = fleet.inference.rpartition(":")
    with ExitStack() as stack:
        statuses = []
        for _ in range(8):
            client = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            client.sendall(ask.encode())
            statuses.append(client.recv(12))
        assert statuses.count(b"HTTP/1.1 200") in range(1, 6)
        assert statuses.count(b"HTTP/1.1 200") + statuses.count(b"HTTP/1.1 503") == 8
    assert_nobody_noticed(fleet)


@contextmanager
def image_host() -> Iterator[str]:
    """Serves 20 MiB as an image, whatever is asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(20 * MIB))
            self.end_headers()
            with suppress(OSError):  # the balancer had enough
                self.wfile.write(bytes(20 * MIB))

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Once", "n_predict": 400, "n_probs": 100, "n": 32},
        {"prompt": ["Once"] * 64, "n_predict": 400, "n_probs": 100, "n": 32, "stream": True},
    ],
)
def test_choices_times_tokens_times_alternatives_are_refused_at_once(
    fleet: Fleet, fields: dict[str, object]
) -> None:
    answer = post(fleet, json.dumps(fields).encode(), path="/completion")
    assert answer.status_code == 400, answer.text
    assert "the limit max_logprobs is 1048576" in answer.text
    assert_nobody_noticed(fleet)


def test_log_probabilities_of_a_whole_answer_take_little_until_it_is_sent(fleet: Fleet) -> None:
    """As objects, those of a token with a hundred alternatives take 70 KB."""
    fields = {"prompt": "Once", "n_predict": 200, "n_probs": 100, "n": 8, "ignore_eos": True}
    few = {**fields, "n": 1, "n_predict": 8}
    assert post(fleet, json.dumps(few).encode(), path="/completion").status_code == 200
    Path(f"/proc/{fleet.balancer.pid}/clear_refs").write_text("5")  # forgets the peak
    before = peak_mib(fleet.balancer)
    answer = post(fleet, json.dumps(fields).encode(), path="/completion")
    assert answer.status_code == 200, answer.text
    choices = answer.json()
    assert [len(choice["completion_probabilities"]) for choice in choices] == [200] * 8
    assert all(len(each["top_logprobs"]) == 100 for each in choices[7]["completion_probabilities"])
    assert peak_mib(fleet.balancer) - before < 40, "of 110 as objects"
    assert_nobody_noticed(fleet)


def test_an_answer_that_grows_over_the_limit_ends_for_its_client_alone() -> None:
    limit = "--openai-limit=max_answer_bytes=100000"
    with Fleet.start(agents=1, balancer_options=[limit]) as fleet:
        fields = {"prompt": "Once", "n_predict": 400, "n_probs": 100, "ignore_eos": True}
        answer = post(fleet, json.dumps(fields).encode(), path="/completion")
        assert answer.status_code == 400, answer.text
        assert "max_answer_bytes (100000)" in answer.text
        assert_nobody_noticed(fleet)
