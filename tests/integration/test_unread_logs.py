"""A balancer whose standard error nobody reads answers all the same."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
from fleet import END_S

REQUESTS = 256
"""Each is a line of the log; a pipe takes some two hundred. So many names of fields are logged."""
LONG = "unknown" * 10


def test_requests_are_answered_though_nobody_reads_the_log() -> None:
    command = [sys.executable, "-m", "paddler_trio", "balancer", "--log-json"]
    command += ["--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0"]
    command += ["--max-buffered-requests=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as balancer:
        try:
            assert balancer.stderr is not None
            up = next(line for line in balancer.stderr if b'"balancer up"' in line)
            url = f"http://{json.loads(up)['inference'][0]}/v1/chat/completions"
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            with httpx.Client(trust_env=False, timeout=END_S) as client:
                for number in range(REQUESTS):
                    answer = client.post(url, json=body | {f"{number} {LONG}": 1})
                    assert answer.status_code == 503
            balancer.terminate()
            rest = balancer.stderr.read()
        finally:
            balancer.kill()
        assert rest.count(b'"field ignored"') == REQUESTS
        assert balancer.wait(END_S) == 0
