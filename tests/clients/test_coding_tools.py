"""Coding tools of others edit a file through the fleet, unmodified and with their defaults.

What is set is what one has to set: the address, a key that is any text, a model's name; and that
nothing is told to anyone else.
"""

from __future__ import annotations

import json

import pytest
from client_runs import ClientRuns
from installed_clients import installed

from scripted_model import Script, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TASK = "Change one to two in greeting.txt."
CODEX = """
model = "default"
model_provider = "fleet"
check_for_update_on_startup = false
[model_providers.fleet]
name = "fleet"
base_url = "@URL@/v1"
wire_api = "responses"
"""
CLAUDE_CODE = {
    "ANTHROPIC_BASE_URL": "@URL@",
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": "default",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",  # else it refuses to skip permissions for root
}
PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Update File: greeting.txt
@@
-one
+two
*** End Patch
EOF"""


def written(tool: str, **arguments: str) -> str:
    return call(tool, json.dumps(arguments), thought=f"Now {tool} is the right one.")


def results(runs: ClientRuns, key: str) -> int:
    """Count the results that the last request brought back."""
    return json.dumps(runs.asked[-1].body).count(f'"{key}"')


@pytest.mark.parametrize("dials", [False, True], ids=["http", "websocket-first"])
def test_codex(runs: ClientRuns, dials: bool) -> None:
    greeting = runs.work / "greeting.txt"
    greeting.write_text("one\n")
    script = Script(
        [
            written("exec_command", cmd="cat greeting.txt"),
            written("exec_command", cmd=PATCH),
            written("exec_command", cmd="cat ./greeting.txt"),
            "It says two.",
        ]
    )
    output = runs.run(
        "codex",
        script,
        [
            str(installed("codex") / "codex"),
            *("exec", "--skip-git-repo-check", "-s", "danger-full-access", TASK),
        ],
        config={".codex/config.toml": CODEX + f"supports_websockets = {str(dials).lower()}\n"},
    )
    assert greeting.read_text() == "two\n"
    assert "It says two." in output
    assert results(runs, "function_call_output") == 3
    assert set(runs.dialled) == ({426} if dials else set())


def test_claude_code(runs: ClientRuns) -> None:
    greeting = runs.work / "greeting.txt"
    greeting.write_text("one\n")
    script = Script(
        [
            written("Read", file_path=str(greeting)),
            written("Edit", file_path=str(greeting), old_string="one", new_string="two"),
            written("Bash", command="cat greeting.txt", description="Look at it"),
            "It says two.",
        ]
    )
    output = runs.run(
        "claude_code",
        script,
        [
            str(installed("claude-code") / "claude"),
            *("-p", TASK, "--dangerously-skip-permissions"),
        ],
        env=CLAUDE_CODE,
    )
    assert greeting.read_text() == "two\n"
    assert output.strip() == "It says two."
    assert results(runs, "tool_use_id") == 3


def test_claude_code_counts_its_context(runs: ClientRuns) -> None:
    output = runs.run(
        "claude_code",
        Script(),
        [str(installed("claude-code") / "claude"), "-p", "/context"],
        env=CLAUDE_CODE,
    )
    assert "System tools" in output
    counted = [each for each in runs.asked if "/count_tokens" in each.path]
    assert len(counted) > 1
    assert all(json.loads(each.answer)["input_tokens"] > 0 for each in counted)


def test_opencode(runs: ClientRuns) -> None:
    greeting = runs.work / "greeting.txt"
    greeting.write_text("one\n")
    script = Script(
        [
            written("read", filePath=str(greeting)),
            written("edit", filePath=str(greeting), oldString="one", newString="two"),
            written("bash", command="cat greeting.txt", description="Look at it"),
            "It says two.",
        ]
    )
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": "@URL@/v1"},
        "models": {"default": {}},
    }
    settings = {"model": "fleet/default", "autoupdate": False, "share": "disabled"}
    output = runs.run(
        "opencode",
        script,
        [str(installed("opencode") / "opencode"), "run", TASK],
        config={"work/opencode.json": json.dumps({**settings, "provider": {"fleet": provider}})},
    )
    assert greeting.read_text() == "two\n"
    assert "It says two." in output
    assert results(runs, "tool_call_id") == 3


def test_aider(runs: ClientRuns) -> None:
    """It calls no tools: whole files stand in its answers."""
    greeting = runs.work / "greeting.txt"
    greeting.write_text("one\n")
    script = Script(
        by_phrase={
            f"part {number}": f"Part {number}:\n\ngreeting.txt\n```\n{number}\n```\n"
            for number in ("two", "three", "four")
        }
    )
    runs.run(
        "aider",
        script,
        [str(installed("aider") / "aider"), "--model", "openai/default", "greeting.txt"],
        env={
            "OPENAI_API_BASE": "@URL@/v1",
            "OPENAI_API_KEY": "none",
            "AIDER_YES_ALWAYS": "true",
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
        },
        stdin="Do part two.\nDo part three.\nDo part four.\n/exit\n",
    )
    assert greeting.read_text() == "four\n"
    assert sum(bool(each.body["stream"]) for each in runs.asked if "stream" in each.body) == 3
