"""What a crowd costs the streams: many agents that report, many watchers of all of them.

    .venv/bin/python benchmarks/watchers.py [--agents 500] [--watchers 20] [--seconds 8]

One balancer; agents that do what ours do while they work (a report with new figures and a status,
once a second), one of which streams tokens at a steady rate; watchers of ``/api/v2/agents/stream``
that read as fast as they can. First nobody watches, then all do. Each token carries the moment at
which its agent sent it, so what is printed is the balancer's share: how late tokens reach their
client, how many came, what processor time the balancer took, and what the watchers got.

To see another state of the sources, put their ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import trio
import trio_websocket

from paddler_trio.cli.balancer_http import lines_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from fleet import Fleet  # found only now

SUBPROTOCOL = "paddler-trio.1"
START_S = 60.0
BURST = 10
USAGE = (
    "prompt_tokens",
    "cached_prompt_tokens",
    "input_image_tokens",
    "input_audio_tokens",
    "content_tokens",
    "reasoning_tokens",
    "tool_call_tokens",
    "undeterminable_tokens",
)


# ------------------------------------------------------------------------------------- agents


async def run_agents(address: str, number: int, tokens_per_s: int) -> None:
    async with trio.open_nursery() as nursery:
        for index in range(number):
            nursery.start_soon(_agent, address, index, tokens_per_s)
            await trio.sleep(0.002)


async def _agent(address: str, index: int, tokens_per_s: int) -> None:
    host, _, port = address.rpartition(":")
    socket = await trio_websocket.connect_websocket(
        await _nursery(),
        host,
        int(port),
        f"/api/v1/agent_socket/agent{index}",
        use_ssl=False,
        subprotocols=[SUBPROTOCOL],
        max_message_size=2**26,
    )
    version = 0
    state = None

    async def report() -> None:
        nonlocal version
        slots = 1 if index == 0 and state is not None else 0
        figures = {"passes": version, "busy_ms": version * 1.5, "running": slots}
        await _say(
            socket,
            {
                "Trio": {
                    "Report": {
                        "phase": "serving",
                        "wanted_state": state,
                        "served_state": state,
                        "model": "model",
                        "progress": None,
                        "detail": None,
                        "engine": figures,
                    }
                }
            },
        )
        status = {"slot_aggregated_status_snapshot": _status(slots, version)}
        await _say(socket, {"Notification": {"UpdateAgentStatus": status}})
        version += 1

    registration = {"name": f"agent{index}", "slot_aggregated_status_snapshot": _status(0, 0)}
    await _say(socket, {"Notification": {"RegisterAgent": registration}})

    async def beat() -> None:
        await trio.sleep(index % 100 / 100)
        while True:
            await report()
            await trio.sleep(1)

    running: dict[str, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        while True:
            match json.loads(await socket.get_message()):
                case {"Notification": {"SetState": {"desired_state": desired}}}:
                    state = _digest(desired)
                case {"Trio": {"Start": {"id": wire_id}}}:
                    running[wire_id] = trio.CancelScope()
                    nursery.start_soon(_stream, socket, wire_id, tokens_per_s, running[wire_id])
                case {"Notification": {"StopRespondingTo": wire_id}}:
                    running.pop(wire_id).cancel()
                    await _step(socket, wire_id, {"Done": {"usage": dict.fromkeys(USAGE, 0)}})


async def _stream(
    socket: trio_websocket.WebSocketConnection, wire_id: str, rate: int, scope: trio.CancelScope
) -> None:
    """Tokens whose text is the moment they were sent, in bursts, until they are stopped."""
    due_s = trio.current_time()
    with scope:
        while True:
            for _ in range(BURST):
                await _step(socket, wire_id, {"ContentToken": f"{time.monotonic():.6f} "})
            due_s += BURST / rate
            await trio.sleep_until(due_s)


async def _step(
    socket: trio_websocket.WebSocketConnection, wire_id: str, result: dict[str, object]
) -> None:
    await _say(socket, {"Trio": {"Step": [{"id": wire_id, "tokens": [1], "results": [result]}]}})


def _status(slots: int, version: int) -> dict[str, object]:
    return {
        "desired_slots_total": 1,
        "download_current": 0,
        "download_filename": None,
        "download_indeterminate": True,
        "download_total": 0,
        "issues": [],
        "model_path": "/models/model.gguf",
        "slots_processing": 0,
        "slots_total": slots,
        "state_application_status": "Applied",
        "uses_chat_template_override": False,
        "version": version,
    }


def _digest(state: object) -> str:
    from paddler_trio.wire.codec import structure
    from paddler_trio.wire.paddler.desired_state import AgentDesiredState, state_digest

    return state_digest(structure(state, AgentDesiredState))


async def _nursery() -> trio.Nursery:
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    return nursery


async def _say(socket: trio_websocket.WebSocketConnection, frame: object) -> None:
    await socket.send_message(json.dumps(frame, separators=(",", ":")))


# ----------------------------------------------------------------------------------- watchers


async def run_watchers(address: str, number: int, seconds: float) -> None:
    """Prints how many events and bytes came to each of them on average."""
    host, _, port = address.rpartition(":")
    events = received = 0

    async def watch() -> None:
        nonlocal events, received
        stream = await trio.open_tcp_stream(host, int(port))
        await stream.send_all(b"GET /api/v2/agents/stream HTTP/1.1\r\nhost: b\r\n\r\n")
        async for data in stream:
            events += data.count(b"data: ")
            received += len(data)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(watch)
    print(f"{events / number / seconds:.1f} events/s, {received / number / seconds / 1e6:.2f} MB/s")


# ------------------------------------------------------------------------------------ measuring


def measured(fleet: Fleet, seconds: float) -> str:
    """One stream for so long: the lateness of its tokens, and the balancer's processor time."""
    late_ms: list[float] = []
    body = {"raw_prompt": "go", "max_tokens": 2**31 - 1}
    url = f"{fleet.inference_url}/api/v1/continue_from_raw_prompt"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=START_S) as answer:
        answer.raise_for_status()
        began_s, cpu_s = time.monotonic(), _cpu_s(fleet.balancer.pid)
        ending = ""
        for line in lines_of(answer.iter_bytes()):
            now_s = time.monotonic()
            result = json.loads(line)["Response"]["response"]["GeneratedToken"]
            if "ContentToken" not in result:
                ending = f"; it ended with {str(result)[:80]}"
                break
            late_ms.append((now_s - float(result["ContentToken"])) * 1000)
            if now_s - began_s > seconds:
                break
        took_s = time.monotonic() - began_s
        cpu = (_cpu_s(fleet.balancer.pid) - cpu_s) / took_s
    p50, p99 = statistics.median(late_ms), statistics.quantiles(late_ms, n=100)[98]
    return (
        f"{len(late_ms) / took_s:6.0f} tokens/s, late p50 {p50:6.1f} p99 {p99:7.1f} "
        f"max {max(late_ms):7.1f} ms, balancer {cpu:.2f} cores{ending}"
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def role(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """This script in a process of its own; it ends with the block."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--watchers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the two parts")
    parser.add_argument("--rate", type=int, default=1000, help="tokens/s of the stream")
    parser.add_argument("--role", choices=["agents", "watchers"], help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "agents":
        trio.run(run_agents, options.address, options.agents, options.rate)
        return
    if options.role == "watchers":
        trio.run(run_watchers, options.address, options.watchers, options.seconds)
        return
    with (
        Fleet.start(agents=0, model=None) as fleet,
        role(
            "--role=agents",
            f"--address={fleet.management}",
            f"--agents={options.agents}",
            f"--rate={options.rate}",
        ),
    ):
        fleet.wait_until(
            lambda view: (
                len(view["agents"]) == options.agents
                and sum(agent["slots_total"] for agent in view["agents"]) == 1
            ),
            what="all agents are here",
        )
        print(f"{options.agents} agents, nobody watches: {measured(fleet, options.seconds)}")
        with role(
            "--role=watchers",
            f"--address={fleet.management}",
            f"--watchers={options.watchers}",
            f"--seconds={options.seconds + 1}",
        ) as watchers:
            reports: list[str] = []
            assert watchers.stdout is not None
            reader = threading.Thread(target=lambda out=watchers.stdout: reports.append(out.read()))
            reader.start()
            print(f"{options.watchers} watchers: {measured(fleet, options.seconds)}")
            reader.join(START_S)
            print(f"each watcher: {''.join(reports).strip()}")


if __name__ == "__main__":
    main()
