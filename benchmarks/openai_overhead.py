"""What the OpenAI-compatible surface adds to the native route, in milliseconds.

    .venv/bin/python benchmarks/openai_overhead.py [--requests 300]

One balancer, one agent, the bundled model, one client on one connection: the same question, one
token of answer, in turns over ``/api/v2/generate`` and ``/v1/chat/completions``, whole and
streamed. In turns, so that whatever else the machine does falls on all alike. The target is a
difference of at most 1 ms at the median.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from fleet import Fleet  # found only now

TARGET_MS = 1.0
WARM_UP = 20
MESSAGES = [{"role": "user", "content": "Who are you?"}]
CHAT = {"messages": MESSAGES, "enable_thinking": False, "max_tokens": 1, "temperature": 0}
NATIVE = {
    "prompt": {"Conversation": {"messages": MESSAGES, "thinking": False}},
    "max_tokens": 1,
    "sampling": {"temperature": 0.0},
}
WAYS = {
    "native /api/v2/generate": ("/api/v2/generate", NATIVE),
    "chat completion, whole": ("/v1/chat/completions", CHAT),
    "chat completion, streamed": ("/v1/chat/completions", CHAT | {"stream": True}),
}


def took_ms(connection: http.client.HTTPConnection, path: str, body: bytes) -> float:
    """From the first byte sent to the last byte read."""
    began_s = time.perf_counter()
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    return (time.perf_counter() - began_s) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300, help="over each way")
    requests: int = parser.parse_args().requests
    bodies = {name: (path, json.dumps(body).encode()) for name, (path, body) in WAYS.items()}
    told: dict[str, list[float]] = {name: [] for name in WAYS}
    with Fleet.start(agents=1, slots=1) as fleet:
        host, _, port = fleet.inference.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port))
        for number in range(requests + WARM_UP):
            for name, (path, body) in bodies.items():
                ms = took_ms(connection, path, body)
                if number >= WARM_UP:
                    told[name].append(ms)
        connection.close()
    native = statistics.median(told["native /api/v2/generate"])
    print(f"{'':28}  p50 ms  p95 ms  over native, p50 ms")
    for name, values in told.items():
        p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[18]
        print(f"{name:28}  {p50:6.2f}  {p95:6.2f}  {p50 - native:+6.2f}")
    worst = max(statistics.median(values) for values in told.values()) - native
    verdict = "within" if worst <= TARGET_MS else "over"
    print(f"{worst:+.2f} ms at most: {verdict} the target of {TARGET_MS:g} ms")


if __name__ == "__main__":
    main()
