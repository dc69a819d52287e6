"""Every task of the running trees stands in docs/tree.md."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from fleet import Fleet

PAGE = (Path(__file__).parents[2] / "docs" / "tree.md").read_text(encoding="utf-8")
DRAWN = "\n".join(re.findall(r"```\n(.*?)```", PAGE, flags=re.S))
ONE_OF_MANY = re.compile(r" (\d\S*|on .*|to balancer)$")
"""Which connection, address or agent it is."""


def names(task: dict[str, Any]) -> Iterator[str]:
    """Of what is called after its work: others are called as the function that they run."""
    if not re.search(r"\.|^(GET|WebSocket) ", ONE_OF_MANY.sub("", task["name"])):
        yield ONE_OF_MANY.sub("", task["name"])
    for child in task["children"]:
        yield from names(child)


def test_every_task_of_a_balancer_with_all_options_and_of_its_agent_is_drawn(
    tmp_path: Path,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and listens to nothing
        unanswered = f"127.0.0.1:{nobody.getsockname()[1]}"
        options = [
            f"--state-database=file://{tmp_path}/state.json",
            f"--model-store={tmp_path}/store",
            "--model-store-size=1GB",
            f"--statsd-addr={unanswered}",
            f"--otlp-endpoint=http://{unanswered}",
            f"--audit-log={tmp_path}/audit.log",
            "--access-log=json",
            f"--access-log-file={tmp_path}/access.log",
            "--reverseproxy-addr=127.0.0.1:0",
            "--web-admin-panel-addr=127.0.0.1:0",
            "--compat-openai-addr=127.0.0.1:0",
            "--compat-ollama-addr=127.0.0.1:0",
        ]
        with Fleet.start(
            balancer_options=options, agent_options=["--metrics-addr=127.0.0.1:0"]
        ) as fleet:
            trees = [
                httpx.get(f"{fleet.management_url}/api/v2/{path}", trust_env=False, timeout=60)
                for path in ("tree", "agents/a1/tree")
            ]
    seen = {name for tree in trees for name in names(tree.json())}
    assert {"state owner", "engine", "compat openai listener", "compat ollama listener"} <= seen
    assert {name for name in seen - {"main"} if name not in DRAWN} == set()
