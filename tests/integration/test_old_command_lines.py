"""Command lines of Paddler before 2.0 start our daemons, or end with a word on why not."""

from __future__ import annotations

import forked_processes
from fleet import Daemon


def test_a_balancer_starts_from_a_command_line_of_old_and_says_what_it_is_now() -> None:
    balancer = Daemon.start(
        "balancer",
        [
            *("balancer", "--management-port=0", "--reverseproxy-port=0"),
            *("--request-buffer-timeout", "60s", "--inference-addr=127.0.0.1:0", "--log-json"),
        ],
        {},
    )
    try:
        assert balancer.wait_for_line("so this runs:").endswith(
            "paddler-trio balancer --management-addr 127.0.0.1:0 --reverseproxy-addr 127.0.0.1:0 "
            "--buffered-request-timeout 60000 --inference-addr=127.0.0.1:0 --log-json"
        )
        up = balancer.wait_for_log("balancer up")
        assert up["reverse_proxy"]
        assert up["management"]
    finally:
        balancer.end()


def test_a_key_on_a_command_line_ends_the_start_and_is_not_repeated() -> None:
    line = ("agent", "--local-llamacpp-addr", "127.0.0.1:1", "--llamacpp-api-key", "hunter2")
    ended = forked_processes.run(*line, timeout_s=60)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "give --upstream-key-file FILE" in ended.stderr
    assert "hunter2" not in ended.stderr
    assert "so this runs" not in ended.stderr
