"""The doctor, on this machine and on machines that are worse off."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from tls_balancer import tls_balancer
from typer.testing import CliRunner

from certificates import Authority
from paddler_trio.cli.doctor import (
    doctor,
    judge_cores,
    judge_cpu,
    judge_devices,
    judge_memory,
    judge_open_files,
    judge_proof,
    judge_version,
    look_at_address,
    look_at_bundled_model,
    look_at_systemd,
)
from paddler_trio.processes.engine.proof import BUNDLED_MODEL, Proof, prove_in_child
from paddler_trio.processes.llama_setup.environment import Marker

app = typer.Typer()
app.command()(doctor)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds are little on a busy machine."""
    monkeypatch.setattr("paddler_trio.cli.doctor.ANSWER_LIMIT_S", 60.0)


@pytest.fixture
def taken() -> Iterator[str]:
    """An address with a listener that never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        host, port = listener.getsockname()
        yield f"{host}:{port}"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    return f"{host}:{port}"


@contextmanager
def answering(answers: dict[str, str]) -> Iterator[str]:
    """An HTTP server that knows these paths and answers 404 to others."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  inherited name
            """Nothing on standard error."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_this_machine_is_healthy_and_says_so_to_scripts() -> None:
    addresses = ["--inference-addr", free_address(), "--management-addr", free_address()]
    ended = CliRunner().invoke(app, ["--json", *addresses])
    told = json.loads(ended.stdout)
    assert ended.exit_code == 0
    assert told["healthy"] is True
    states = {finding["check"]: finding["state"] for finding in told["findings"]}
    assert states["llama.cpp runs"] == "ok"
    assert states["bundled model"] == "ok"
    assert states["inference address"] == "ok"


def test_people_get_a_table_and_what_to_do(tmp_path: Path) -> None:
    no_model = tmp_path / "no[model].gguf"
    no_model.write_bytes(b"GGUF")
    addresses = ["--inference-addr", free_address(), "--management-addr", "8060"]
    ended = CliRunner().invoke(app, [*addresses, "--model", str(no_model)])
    assert ended.exit_code == 1
    assert "what to do" in ended.stdout
    assert "broken" in ended.stdout
    assert "management address" in ended.stdout


def test_an_address_somebody_else_uses_is_broken() -> None:
    with answering({"/": "hello"}) as address:
        finding = look_at_address("inference address", "--inference-addr", address)
    assert finding.state == "broken"
    assert address in finding.seen
    assert "--inference-addr" in finding.todo


def test_an_address_that_takes_connections_and_stays_silent_is_broken(
    taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.cli.doctor.ANSWER_LIMIT_S", 0.05)
    assert look_at_address("inference address", "--inference-addr", taken).state == "broken"


@pytest.mark.parametrize(
    ("answers", "who"),
    [({"/livez": "ok"}, "a paddler-trio balancer"), ({"/health": "OK"}, "a Paddler balancer")],
)
def test_a_balancer_that_is_already_running_is_fine(answers: dict[str, str], who: str) -> None:
    with answering(answers) as address:
        finding = look_at_address("inference address", "--inference-addr", address)
    assert (finding.state, finding.seen) == ("ok", f"{who} is serving on {address}")


def test_one_with_tls_is_fine_too(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    with tls_balancer(authority, authority.sign()) as balancer:
        address = balancer.addresses["inference"]
        finding = look_at_address("inference address", "--inference-addr", address)
    assert (finding.state, finding.seen) == (
        "ok",
        f"a paddler-trio balancer with TLS is serving on {address}",
    )


@pytest.mark.parametrize("address", ["8061", ":8061", "127.0.0.1:", "127.0.0.1:99999", "host:x"])
def test_an_address_that_is_none_is_told_with_its_value(address: str) -> None:
    finding = look_at_address("inference address", "--inference-addr", address)
    assert finding.state == "broken"
    assert repr(address) in finding.seen


def test_a_build_that_crashes_is_broken_and_named() -> None:
    finding = judge_proof(
        Proof(False, error="killed by SIGILL (an instruction ...)"), BUNDLED_MODEL
    )
    assert finding.state == "broken"
    assert "SIGILL" in finding.seen
    assert "paddler-trio setup" in finding.todo


def test_another_version_of_the_bindings_is_broken() -> None:
    pin = ["attrs>=25", "llama-cpp-python==0.3.36 ; python_version > '3'"]
    assert judge_version("0.3.36", pin).state == "ok"
    assert judge_version("0.3.35", pin).seen == "0.3.35 instead of 0.3.36"
    assert judge_version("0.3.35", pin).state == "broken"
    assert judge_version(None, pin).state == "broken"


def test_cpu_features_built_in_but_missing_are_broken_and_the_reverse_is_slow() -> None:
    built = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | OPENMP = 1"
    proof = Proof(True, system_info=built, devices=["CPU (x)"])
    avx2 = frozenset({"pni", "avx", "avx2", "f16c", "fma"})
    wide = avx2 | {"avx512f"}
    assert judge_cpu(proof, avx2, None).state == "ok"
    assert judge_cpu(proof, avx2 - {"avx2"}, None).state == "broken"
    assert judge_cpu(proof, frozenset(), None).state == "ok"
    assert judge_cpu(Proof(False), avx2, None).state == "ok"
    poor = judge_cpu(proof, wide, None)
    assert poor.state == "warning"
    assert "AVX512" in poor.seen
    assert "`paddler-trio setup`" in poor.todo
    with_gpu = Proof(True, system_info=built, devices=["Vulkan0 (a GPU)", "CPU (x)"])
    assert "`paddler-trio setup --vulkan`" in judge_cpu(with_gpu, wide, None).todo
    # set-up tries wider builds first: what it settled for is the best that runs
    marker = Marker("avx2", None, "cpu", "libraries", built, ("-DA=ON",))
    assert judge_cpu(proof, wide, marker).state == "ok"
    of_ones_own = Marker("x", "-DA=ON", "cpu", "libraries", built)
    assert "`paddler-trio setup --cpu`" in judge_cpu(proof, wide, of_ones_own).todo


def test_few_cores_little_memory_and_few_files_are_warnings() -> None:
    assert [judge_cores(cores).state for cores in (0.5, 1, 2)] == ["warning", "warning", "ok"]
    memory = [judge_memory(size).state for size in (None, 1 << 28, 1 << 33)]
    assert memory == ["ok", "warning", "ok"]
    files = [judge_open_files(soft, 8192).state for soft in (-1, 1024, 4096)]
    assert files == ["ok", "warning", "ok"]
    assert "ulimit -n 8192" in judge_open_files(1024, 8192).todo


def test_memory_that_the_system_does_not_tell_of_is_what_llama_cpp_reports() -> None:
    proof = prove_in_child(BUNDLED_MODEL)
    assert proof.host_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert judge_memory(None, 16 << 30).seen.startswith("16.0 GiB in this machine")


def test_a_bundled_model_that_is_missing_or_changed_is_broken(tmp_path: Path) -> None:
    other = tmp_path / "paddler-demo.gguf"
    assert look_at_bundled_model(other).state == "broken"
    other.write_bytes(b"GGUF")
    assert "SHA-256" in look_at_bundled_model(other).seen
    assert look_at_bundled_model().state == "ok"


def test_systemd_is_information(tmp_path: Path) -> None:
    assert look_at_systemd(tmp_path).seen == "runs this machine"
    assert look_at_systemd(tmp_path / "nowhere").state == "ok"


def test_devices_and_back_ends_are_named_or_how_to_get_them() -> None:
    plain = judge_devices(Proof(True, devices=["CPU (some processor)"]))
    assert [finding.seen for finding in plain] == ["the CPU alone", "not in this build"]
    assert "setup --cuda" in plain[0].todo
    assert "paddler-trio setup" in plain[1].todo
    rich = judge_devices(Proof(True, devices=["CUDA0 (a GPU)", "CPU (x)"], has_rpc=True))
    assert [finding.seen for finding in rich] == ["CUDA0 (a GPU)", "in this build"]
    assert judge_devices(Proof(False)) == []
    mac = ["MTL0 (Apple M4)", "BLAS (Accelerate)", "CPU (Apple M4)"]
    assert judge_devices(Proof(True, devices=mac))[0].seen == "MTL0 (Apple M4)"
