"""What a token costs on its way through the balancer: fake agents, raw clients, real processes.

    .venv/bin/python benchmarks/balancer.py [--paddler PATH] [--streams 64] [--rounds 3] [--json]

One balancer process at a time, with agents (fake_agents.py) in a process of their own and clients
in this one. *Flood*: agents send as fast as the balancer reads; streamed tokens per second of the
balancer's processor time. *Paced*: each stream gets 30 tokens a second, each stamped with the
moment at which it was sent; how late they arrive, and how much later than from agents that
clients are connected to themselves (*direct*). ``--paddler`` is the binary of Paddler's own
balancer, measured in turn with ours over the link and the routes that both have.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import httpx
import trio

AGENTS = 4
START_S = 30.0
WARM_S = 1.5
STAMP = re.compile(rb'"(\d{12,})"')
STATE = {
    "chat_template_override": None,
    "inference_parameters": None,
    "model": {"LocalToAgent": "/m"},
    "multimodal_projection": "None",
    "use_chat_template_override": False,
}
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Contestant:
    """A balancer, the link its agents speak, and the route of its clients.

    Without a ``command`` there is none: clients are connected to the agents.
    """

    name: str
    command: Sequence[str]
    is_ours: bool
    route: str


@attrs.frozen
class Figures:
    """``tokens_per_cpu_s`` of the balancer alone (of the agents where there is none); latencies in
    milliseconds."""

    tokens_per_s: float
    tokens_per_cpu_s: float
    rss_mib: float
    late_p50_ms: float | None = None
    late_p99_ms: float | None = None
    ttft_p50_ms: float | None = None


BODIES = {
    "ndjson": ("/api/v1/continue_from_raw_prompt", {"raw_prompt": "x", "max_tokens": 1000}),
    "sse": ("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1000, "stream": True}),
}


@attrs.define(eq=False)
class Tally:
    """What all clients have read."""

    tokens: int = 0
    late_ns: list[int] = attrs.field(factory=list)
    ttft_s: list[float] = attrs.field(factory=list)
    is_on: bool = False

    def take(self, data: bytes, route: str) -> None:
        if not self.is_on:
            return
        marker = b'"text":"' if route == "sse" else b'"ContentToken"'
        self.tokens += data.count(marker)
        now_ns = time.monotonic_ns()
        for stamp in STAMP.findall(data):
            self.late_ns.append(now_ns - int(stamp))


async def client(address: str, route: str, tally: Tally) -> None:
    """One answer after the other over one connection, for ever."""
    if route == "websocket":
        await websocket_client(address, tally)
        return
    host, _, port = address.rpartition(":")
    path, body = BODIES[route]
    text = json.dumps(body).encode()
    request = (
        b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (path.encode(), address.encode(), len(text))
    ) + text
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        while True:
            sent_s = trio.current_time()
            await stream.send_all(request)
            is_first, tail = True, b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await stream.receive_some()
                if not data:
                    raise SystemExit(f"the connection ended: {tail!r}")
                if is_first and (b"ontentToken" in data or b'"text"' in data):
                    is_first = False
                    if tally.is_on:
                        tally.ttft_s.append(trio.current_time() - sent_s)
                if not tail and not data.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"refused: {data[:300]!r}")
                tally.take(data, route)
                tail = (tail + data)[-16:]


async def websocket_client(address: str, tally: Tally) -> None:
    from fake_agents import masked

    host, _, port = address.rpartition(":")
    work = {"ContinueFromRawPrompt": {"raw_prompt": "x", "max_tokens": 1000, "grammar": None}}
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(
            b"GET /api/v1/inference_socket HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % address.encode()
        )
        await stream.receive_some()
        number = 0
        while True:
            number += 1
            frame = json.dumps({"Request": {"id": f"r{number}", "request": work}}).encode()
            await stream.send_all(masked(frame))
            tail = b""
            while b'"Done"' not in tail:
                data = await stream.receive_some()
                if not data:
                    raise SystemExit("the connection ended")
                tally.take(data, "websocket")
                tail = data


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with tempfile.TemporaryFile() as log, contextlib.ExitStack() as stack:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(child.wait)
        stack.callback(child.kill)
        try:
            yield child
        except BaseException:
            log.seek(0)
            sys.stderr.buffer.write(log.read()[-4000:])
            raise


def wait_until(what: str, is_so: object) -> None:
    give_up_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(httpx.HTTPError, KeyError):
            if is_so():  # type: ignore[operator]
                return
        if time.monotonic() > give_up_s:
            raise SystemExit(f"not in {START_S:g} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def serving(
    who: Contestant, *, streams: int, rate: float, tokens: int
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address for clients, and the process that is measured."""
    inference, management = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    slots = -(-streams // AGENTS)

    def agents(
        address: str, *how: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return process(
            [
                sys.executable,
                str(Path(__file__).with_name("fake_agents.py")),
                f"--address={address}",
                f"--agents={AGENTS}",
                f"--slots={slots}",
                f"--rate={rate}",
                f"--tokens={tokens}",
                *how,
            ]
        )

    if not who.command:
        with agents(inference, "--direct") as child:
            wait_until("the agents listen", lambda: is_listening(inference))
            yield inference, child
        return
    addresses = [f"--inference-addr={inference}", f"--management-addr={management}"]
    http = httpx.Client(base_url=f"http://{management}", trust_env=False)
    with process([*who.command, *addresses, "--max-buffered-requests=100000"]) as balancer:
        wait_until("the balancer answers", lambda: http.get("/health").is_success)
        state = STATE | {"inference_parameters": PARAMETERS}
        http.put("/api/v1/balancer_desired_state", json=state).raise_for_status()
        with agents(management, *(["--ours"] if who.is_ours else [])):

            def all_slots() -> bool:
                view = http.get("/api/v1/agents").json()
                return sum(agent["slots_total"] for agent in view["agents"]) == slots * AGENTS

            wait_until("all agents serve", all_slots)
            yield inference, balancer


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


def measure(who: Contestant, *, streams: int, rate: float, seconds: float, tokens: int) -> Figures:
    with serving(who, streams=streams, rate=rate, tokens=tokens) as (address, measured):
        tally = Tally()
        began: list[float] = []
        ended: list[float] = []

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(streams):
                    nursery.start_soon(client, address, who.route, tally)
                await trio.sleep(WARM_S)
                tally.is_on = True
                began.extend([cpu_s(measured.pid), time.monotonic()])
                await trio.sleep(seconds)
                ended.extend([cpu_s(measured.pid), time.monotonic()])
                tally.is_on = False
                nursery.cancel_scope.cancel()

        trio.run(run)
        used_s, passed_s = ended[0] - began[0], ended[1] - began[1]
        late_ms = sorted(each / 1e6 for each in tally.late_ns)
        return Figures(
            tokens_per_s=tally.tokens / passed_s,
            tokens_per_cpu_s=tally.tokens / max(used_s, 0.01),
            rss_mib=rss_mib(measured.pid),
            late_p50_ms=late_ms[len(late_ms) // 2] if late_ms else None,
            late_p99_ms=late_ms[len(late_ms) * 99 // 100] if late_ms else None,
            ttft_p50_ms=statistics.median(tally.ttft_s) * 1000 if tally.ttft_s else None,
        )


def parameters() -> dict[str, object]:
    from paddler_trio.wire.codec import unstructure
    from paddler_trio.wire.paddler.desired_state import InferenceParameters

    value = unstructure(InferenceParameters())
    assert isinstance(value, dict)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--paddler", type=Path)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tokens", type=int, default=500, help="of each answer")
    parser.add_argument("--only", help="v1, ours, sse or websocket")
    parser.add_argument(
        "--rate",
        type=float,
        default=0.0,
        help="tokens a second of each stream, with latencies; 0: as fast as the balancer reads",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ours = [sys.executable, "-m", "paddler_trio", "balancer", "--log-level=warning"]
    contestants = [
        Contestant("v1", ours, is_ours=False, route="ndjson"),
        Contestant("ours", ours, is_ours=True, route="ndjson"),
        Contestant("sse", ours, is_ours=True, route="sse"),
        Contestant("websocket", ours, is_ours=True, route="websocket"),
    ]
    if arguments.only:
        contestants = [each for each in contestants if each.name == arguments.only]
    if arguments.rate:
        contestants.insert(0, Contestant("direct", (), is_ours=False, route="ndjson"))
    if arguments.paddler:
        theirs = [str(arguments.paddler), "balancer"]
        contestants.insert(0, Contestant("paddler", theirs, is_ours=False, route="ndjson"))
    results: dict[str, list[Figures]] = {each.name: [] for each in contestants}
    for _ in range(arguments.rounds):
        for each in contestants:
            figures = measure(
                each,
                streams=arguments.streams,
                rate=arguments.rate,
                seconds=arguments.seconds,
                tokens=arguments.tokens,
            )
            results[each.name].append(figures)
            print(each.name, figures, file=sys.stderr)
    medians = {
        name: {
            field: None if None in column else statistics.median(column)
            for field in attrs.asdict(rounds[0])
            for column in [[getattr(each, field) for each in rounds]]
        }
        for name, rounds in results.items()
    }
    for name, rounds in results.items():
        for field in ("late_p50_ms", "late_p99_ms") if arguments.rate else ():
            added = [
                getattr(each, field) - getattr(direct, field)
                for each, direct in zip(rounds, results["direct"], strict=True)
            ]
            medians[name][f"added_{field}"] = statistics.median(added)
    if arguments.json:
        print(json.dumps(medians))
        return
    for name, row in medians.items():
        shown = "  ".join(f"{key} {value:,.1f}" for key, value in row.items() if value is not None)
        print(f"{name:10} {shown}")


PARAMETERS = parameters()

if __name__ == "__main__":
    main()
