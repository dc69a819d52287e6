"""What placement costs the balancer: its processor time for a request, with and without it.

One balancer with fake agents that report what real ones do (fake_agents.py) takes rounds of
requests, in one without placement, in the next with it, and so on, so that whatever else the
machine does falls on both alike: two processes of one source differ by a tenth on a busy machine.
Without placement no prompt is hashed and nothing is compared. The prompts are *small* (a line),
*own* (8 KB that nobody else has), *tenants* (a line behind one of 20 system prompts of 8 KB) or
*chats* (eight turns behind one of those, which grow to 16 KB). Printed are medians, and that of the
ratios of neighbouring rounds; exit status 1 if one is above 1.1.
Usage: ``python benchmarks/placement_cost.py [--rounds 60] [--requests 40] [--only NAME]``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import attrs
import httpx
import trio
from balancer import AGENTS, PARAMETERS, STATE, free_port, process, wait_until

GOAL = 1.1
WARM_UP = 150
TENANTS = 20
LONG = 8192
TURNS = 8
SWITCHED = "--switched"


@attrs.frozen
class Balancer:
    """The balancer that is measured, by its process and its address for clients."""

    pid: int
    address: str

    def cpu_s(self) -> float:
        """Return the processor time of all its threads: to the nanosecond, unlike ``/proc``."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def place(self, *, by_prefix: bool) -> None:
        """Have it place what comes next with or without a look at prompts."""
        os.kill(self.pid, signal.SIGUSR1 if by_prefix else signal.SIGUSR2)


def words(size: int, name: str) -> str:
    """A text of so many characters that differs from others at its beginning."""
    return (f"{name} is what this text begins with, and then it goes on. " * (size // 40))[:size]


def prompts(kind: str) -> Iterator[list[dict[str, str]]]:
    """The messages of one request after the other."""
    chats: dict[int, list[dict[str, str]]] = {}
    for number in count():
        system = {"role": "system", "content": words(LONG, f"tenant {number % TENANTS}")}
        if kind == "small":
            yield [{"role": "user", "content": f"Who are you? {number}"}]
        elif kind == "own":
            yield [{"role": "user", "content": words(LONG, str(number))}]
        elif kind == "tenants":
            yield [system, {"role": "user", "content": f"Who are you? {number}"}]
        else:
            chat = chats.get(number % TENANTS, [])
            if len(chat) >= 2 * TURNS:
                chat = []
            answer = {"role": "assistant", "content": words(500, f"answer {number}")}
            begun = [*chat, answer] if chat else [system]
            chats[number % TENANTS] = [
                *begun,
                {"role": "user", "content": words(500, f"question {number}")},
            ]
            yield chats[number % TENANTS]


async def client(address: str, requests: Iterator[bytes]) -> None:
    """One request after the other on one connection, until there are none."""
    host, _, port = address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        for request in requests:
            await stream.send_all(request)
            tail, head = b"", b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await stream.receive_some()
                head = head or data
                if not data or not head.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"refused: {(head + data)[:500]!r}")
                tail = (tail + data)[-16:]


async def ask(address: str, requests: list[bytes], clients: int) -> None:
    """Have all of these answered."""
    left = iter(requests)
    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client, address, left)


def http_request(messages: list[dict[str, str]], tokens: int) -> bytes:
    body = json.dumps(
        {"model": "m", "messages": messages, "max_tokens": tokens, "stream": True}
    ).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body


@contextlib.contextmanager
def serving(tokens: int) -> Iterator[Balancer]:
    """A balancer with agents that serve."""
    inference, management = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    addresses = [f"--inference-addr={inference}", f"--management-addr={management}"]
    http = httpx.Client(base_url=f"http://{management}", trust_env=False)
    agents = [
        sys.executable,
        str(Path(__file__).with_name("fake_agents.py")),
        f"--address={management}",
        f"--agents={AGENTS}",
        "--slots=4",
        f"--tokens={tokens}",
        "--ours",
    ]
    command = [sys.executable, __file__, SWITCHED, "balancer", *addresses, "--log-level=warning"]
    with process(command) as child:
        wait_until("the balancer answers", lambda: http.get("/health").is_success)
        state = STATE | {"inference_parameters": PARAMETERS}
        http.put("/api/v1/balancer_desired_state", json=state).raise_for_status()
        with process(agents):

            def all_serve() -> bool:
                view = http.get("/api/v1/agents").json()
                return sum(agent["slots_total"] for agent in view["agents"]) == 4 * AGENTS

            wait_until("all agents serve", all_serve)
            yield Balancer(child.pid, inference)


def measure(kind: str, balancer: Balancer, options: argparse.Namespace) -> tuple[float, ...]:
    """Microseconds for a request without and with placement, and the ratio."""
    messages = prompts(kind)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.rounds + 1):
        for by_prefix in (False, True) if number % 2 else (True, False):
            num = options.requests if number else WARM_UP
            texts = [http_request(next(messages), options.tokens) for _ in range(num)]
            balancer.place(by_prefix=by_prefix)
            began_s = balancer.cpu_s()
            trio.run(ask, balancer.address, texts, options.clients)
            if number:
                took[by_prefix].append((balancer.cpu_s() - began_s) / num * 1e6)
    ratios = [one / other for one, other in zip(took[True], took[False], strict=True)]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    return *map(statistics.median, (took[False], took[True], ratios)), spread


def run_switched() -> None:
    """Be a balancer that two signals tell whether it looks at prompts."""
    from paddler_trio.__main__ import main as paddler_trio
    from paddler_trio.wire.prompt_blocks import NO_BLOCKS, prompt_blocks
    from paddler_trio.wire.trio import request_frame

    def switch(number: int, _: object) -> None:
        by_prefix = number == signal.SIGUSR1
        request_frame.prompt_blocks = prompt_blocks if by_prefix else lambda work, body: NO_BLOCKS

    for each in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, switch)
    sys.argv.remove(SWITCHED)
    sys.exit(paddler_trio())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--requests", type=int, default=40, help="of each round")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--only", default="", help="one kind of prompts")
    options = parser.parse_args()
    is_good = True
    with serving(options.tokens) as balancer:
        for kind in ("small", "own", "tenants", "chats"):
            if options.only in kind:
                without_us, with_us, ratio, spread = measure(kind, balancer, options)
                is_good &= ratio <= GOAL
                print(
                    f"{kind:8} {without_us:6.0f} us without, {with_us:6.0f} us with placement: "
                    f"{ratio:.3f} +- {spread:.3f}",
                    flush=True,
                )
    return 0 if is_good else 1


if __name__ == "__main__":
    if SWITCHED in sys.argv:
        run_switched()
    sys.exit(main())
