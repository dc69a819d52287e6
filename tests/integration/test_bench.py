"""A load test of a real fleet, over two of its ports, to its end and interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import attrs
import forked_processes
import pytest
from fleet import Fleet
from person_at_terminal import person


@attrs.frozen
class Ports:
    """Both answer OpenAI's API; the exact one tells nothing beyond it."""

    inference: str
    exact: str


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    """Of a fleet with four slots."""
    options = ["--compat-openai-addr=127.0.0.1:0"]
    with Fleet.start(agents=1, slots=4, balancer_options=options) as fleet:
        exact = fleet.balancer.wait_for_log("balancer up")["compat_openai"]
        assert isinstance(exact, list)
        yield Ports(fleet.inference, exact[0])


def test_two_ports_of_a_fleet_are_compared_in_three_reports(ports: Ports, tmp_path: Path) -> None:
    page, figures = tmp_path / "bench.html", tmp_path / "bench.json"
    ended = forked_processes.run(
        *("bench", "--inference-addr", ports.inference, "--name", "inference"),
        *("--against", f"http://{ports.exact}/v1", "--against-name", "exact"),
        *("--concurrency", "1,4", "--workload", "mixed", "--rounds", 1, "--requests", 2),
        *("--max-tokens", 32, "--prompt-words", 6, "--long-words", 24, "--seed", 5),
        *("--html", page, "--json", figures, "--fail-if", "error_rate>0"),
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        "4 runs, 20 requests of up to 32 tokens, 4 before them to warm up; over after"
        in ended.stderr
    )
    assert ended.stderr.count("round 1/1") == 4, "a line for each run"
    assert "first / second" in ended.stdout
    report = json.loads(figures.read_text())
    assert [each["model"] for each in report["targets"]] == ["paddler-demo", "paddler-demo"]
    assert report["error_rates"] == [0.0, 0.0]
    points = {(c["concurrency"], c["target"]): c for c in report["points"]}
    assert len(points) == 4
    for (concurrency, target), point in points.items():
        assert point["requests"] == 2 * concurrency
        assert point["completion_tokens"] == 32 * point["requests"], "answers are of full length"
        assert point["prompt_tokens"] > 0
        assert 0 < point["client_cpu_share"] < 1
        if target == 0:
            assert 0 < point["ttft_ms"]["p50"] <= point["total_ms"]["p50"]
            assert 0 <= point["queue_ms"]["p50"] <= point["ttft_ms"]["p50"]
        else:
            assert point["queue_ms"] is None, "the exact port has no timings"
    assert set(points[4, 0]["ttft_ms_by_kind"]) == {"short", "long"}
    assert page.read_text().count("<svg") == 5


def test_what_fails_too_often_or_is_too_slow_is_exit_code_1(ports: Ports) -> None:
    ended = forked_processes.run(
        *("bench", "--inference-addr", ports.inference, "--concurrency", 2, "--rounds", 1),
        *("--requests", 1, "--max-tokens", 4, "--prompt-words", 4, "--warmup", 0, "--json", "-"),
        *("--model", "any", "--fail-if", "ttft_p50>0.001ms", "--fail-if", "tokens_per_s<0.01"),
    )
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["unmet"][0].startswith("ttft_p50>0.001ms: ")
    assert ended.stderr.count("--fail-if") == 1, "only the first of them is so"


def test_a_file_that_cannot_be_written_after_all_costs_no_other_report(
    ports: Ports, tmp_path: Path
) -> None:
    page = tmp_path / "bench.html"
    ended = forked_processes.run(
        *("bench", "--inference-addr", ports.inference, "--concurrency", 1, "--rounds", 1),
        *("--requests", 1, "--max-tokens", 4, "--prompt-words", 4, "--warmup", 0),
        *("--json", "/dev/full", "--html", page),
    )
    assert ended.returncode == 1
    assert "cannot write /dev/full: No space left on device" in ended.stderr
    assert "plain: times in ms" in ended.stdout
    assert page.read_text().count("<svg") > 0


def test_ctrl_c_ends_it_with_the_results_so_far(ports: Ports) -> None:
    with forked_processes.start(
        "paddler_trio",
        [
            *("bench", "--inference-addr", ports.inference, "--concurrency", "1,2"),
            *("--requests", "1000", "--run-time", "0.3", "--rounds", "50", "--max-tokens", "8"),
        ],
        env={},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = iter(process.stderr.readline, b"")
        assert any(b"round 1/50" in line for line in lines), "a run is over"
        process.send_signal(signal.SIGINT)
        assert "not all runs were done: interrupted" in process.stderr.read().decode()
        table = process.stdout.read().decode()
        assert process.wait(60) == 130
    assert "plain: times in ms" in table
    assert ports.inference in table


def test_on_a_terminal_it_shows_how_far_it_is_and_leaves_only_the_table(ports: Ports) -> None:
    with person(
        *("bench", "--inference-addr", ports.inference, "--concurrency", "3", "--rounds", "50"),
        *("--run-time", "0.3", "--requests", "1000", "--max-tokens", "8"),
    ) as operator:
        operator.reads("0/50 runs, ")
        operator.reads("plain x3, round ")
        is_a_run_over = re.compile(r"[1-9]\d*/50 runs, ")
        operator.sees(lambda screen: is_a_run_over.search(screen) is not None, "a run that is over")
        operator.process.send_signal(signal.SIGINT)
        assert operator.waits_for_end() == 130
        operator.reads("plain: times in ms")
