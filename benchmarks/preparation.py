"""Measure how long preparing a huge conversation delays the tokens of a stream beside it.

    python benchmarks/preparation.py [--kilobytes 100] [--rounds 5] [--openai]

A balancer, an agent and the bundled model. One client streams; another sends conversations of so
many kilobytes, each new, that no slot can hold: they are rendered, escaped, tokenised and then
refused, so that what is measured is their preparation and not their prefill. Printed are the
longest and the 99th percentile of the gaps between the tokens of the stream, while conversations
are prepared and while none is.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from contestants import Terms, our_pair
from figures import percentile
from scenarios import text_of

from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.system.heap import freeze_heap

PATHS = {False: "/api/v1/continue_from_conversation_history", True: "/v1/chat/completions"}
CONVERSATIONS = 40
"""All different; prepared again only when all were."""
STREAM_TOKENS = 1800
SECONDS_A_PHASE = 3.0


def conversation(kilobytes: int, *, seed: int, openai: bool = False) -> bytes:
    """Turns of two kilobytes, as many as it takes, in Paddler's words or in OpenAI's."""
    turns: list[dict[str, str]] = []
    while len(turns) * 2 < kilobytes:
        role = "assistant" if len(turns) % 2 else "user"
        turns.append({"role": role, "content": text_of(300, seed=seed + len(turns))[:2000]})
    if openai:
        return json.dumps({"model": "any", "messages": turns, "max_tokens": 1}).encode()
    body = {
        "add_generation_prompt": True,
        "conversation_history": turns,
        "enable_thinking": False,
        "max_tokens": 1,
    }
    return json.dumps(body).encode()


def ask(address: tuple[str, int], path: str, body: bytes) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    return connection


def prepare_until_told(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], orders: Connection
) -> None:
    """A process of its own: one conversation after the other until told to stop, then how long
    each took, in seconds. Each must be refused for its length."""
    took_s: list[float] = []
    while not orders.poll():
        began_s = time.perf_counter()
        connection = ask(address, path, bodies[len(took_s) % len(bodies)])
        told = connection.getresponse().read()
        assert b"slot" in told, told[:300]  # one slot holds fewer tokens, in either surface's words
        took_s.append(time.perf_counter() - began_s)
        connection.close()
    orders.send(took_s)


def gaps_of_a_stream(address: tuple[str, int], limit_s: float) -> list[float]:
    """Milliseconds between the lines of streams that run one after the other."""
    gaps: list[float] = []
    ends_s = time.perf_counter() + limit_s
    while time.perf_counter() < ends_s:
        body = json.dumps({"raw_prompt": "Once upon a time", "max_tokens": STREAM_TOKENS}).encode()
        connection = ask(address, "/api/v1/continue_from_raw_prompt", body)
        response = connection.getresponse()
        before_s = None
        while response.readline():
            now_s = time.perf_counter()
            if before_s is not None:
                gaps.append(1000 * (now_s - before_s))
            before_s = now_s
        connection.close()
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kilobytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openai", action="store_true", help="send to /v1/chat/completions")
    options = parser.parse_args()
    terms = Terms(BUNDLED_MODEL, slots=2, cells=2048, threads=1, cache_type="f16")
    rows: dict[str, list[tuple[float, float]]] = {"alone": [], "beside": []}
    took_s: list[float] = []
    path = PATHS[options.openai]
    bodies = [
        conversation(options.kilobytes, seed=1000 * (i + 1), openai=options.openai)
        for i in range(CONVERSATIONS)
    ]
    processes = multiprocessing.get_context("fork")  # an interpreter that starts is a load, too
    freeze_heap()  # the collector must not stop the one who measures
    with (
        tempfile.TemporaryDirectory(prefix="paddler-bench-") as folder,
        our_pair(terms, Path(folder)) as ours,
    ):
        for _ in range(options.rounds):
            gaps = gaps_of_a_stream(ours.address, SECONDS_A_PHASE)
            rows["alone"].append((max(gaps), percentile(gaps, 99)))
            orders, theirs = processes.Pipe()
            sender = processes.Process(
                target=prepare_until_told, args=(ours.address, path, bodies, theirs), daemon=True
            )
            sender.start()
            theirs.close()  # so that a sender that dies is heard of
            gaps = gaps_of_a_stream(ours.address, SECONDS_A_PHASE)
            orders.send("stop")
            took_s += orders.recv()
            sender.join()
            rows["beside"].append((max(gaps), percentile(gaps, 99)))
    print(f"{options.kilobytes} kB conversations, {len(took_s)} prepared in all,")
    print(f"{1000 * statistics.median(took_s):.0f} ms each (median, from request to refusal)")
    for name, figures in rows.items():
        longest = statistics.median(each[0] for each in figures)
        p99 = statistics.median(each[1] for each in figures)
        print(f"  {name:<7} longest gap {longest:6.1f} ms, 99th percentile {p99:6.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
