"""``paddler-trio setup`` as it is typed, and what others say where it was not run yet."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from paddler_trio.cli import terminal
from paddler_trio.cli.commands import command_line


def test_one_kind_of_device_is_chosen_at_a_time() -> None:
    ended = CliRunner().invoke(command_line(["setup"]), ["setup", "--cuda", "--vulkan"])
    assert ended.exit_code == 2
    assert "--cuda and --vulkan" in ended.output


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        ([], "-DGGML_RPC=ON", "-DGGML_CUDA"),
        (["--cuda"], "-DGGML_CUDA=ON", "-DGGML_VULKAN"),
        (["--portable", "--vulkan"], "-DGGML_VULKAN=ON", "-DGGML_AVX512=ON"),
    ],
)
def test_the_plan_says_what_would_be_tried(
    options: list[str],
    has: str,
    lacks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    ended = CliRunner().invoke(command_line(["setup"]), ["setup", "--plan", *options])
    assert ended.exit_code == 0
    lines = ended.stdout.splitlines()
    assert lines
    assert all(has in line and lacks not in line for line in lines)


@pytest.mark.parametrize(
    "command",
    [
        ["agent", "--management-addr=127.0.0.1:1", "--slots=1"],
        ["demo", "--once"],
        ["rpc-server", "--addr=127.0.0.1:0"],
    ],
)
def test_what_runs_models_names_setup_where_llama_cpp_is_not_installed(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda _: None)
    ended = CliRunner().invoke(command_line(command[:1]), command)
    assert ended.exit_code == 1
    assert "run `paddler-trio setup`" in ended.stderr
