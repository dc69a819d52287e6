"""The client commands against a real balancer, real agents and the bundled model."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked_processes
import httpx
import pytest
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

LIMIT_S = 60
QUESTION = "What is a slot?"
ANSWER = "A slot is a place in an agent that can work on one request at a time."
SUCCESS, FAILURE, USAGE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 4, 130


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "paddler_trio", *map(str, arguments)]


def paddler_trio(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, on no terminal."""
    return forked_processes.run(*arguments, stdin=stdin, timeout_s=LIMIT_S)


def managed(fleet: Fleet, *arguments: object) -> subprocess.CompletedProcess[str]:
    return paddler_trio(*arguments, "--management-addr", fleet.management)


def chat(fleet: Fleet, *arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return paddler_trio("chat", *arguments, "--inference-addr", fleet.inference, stdin=stdin)


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command that is still at it; gone afterwards."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """Exit code of a command that believes it talks to a person, and all it wrote."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(
        command(*arguments), stdin=its, stdout=its, stderr=its, env=environment
    ) as process:
        os.close(its)
        written = b""
        try:
            while data := os.read(ours, 65536):
                written += data
        except OSError:
            pass  # Linux says so when the last writer is gone
        finally:
            os.close(ours)  # a hang-up, should it still be at it
        return process.wait(LIMIT_S), written.decode()


def desired(fleet: Fleet) -> dict[str, object]:
    url = f"{fleet.management_url}/api/v1/balancer_desired_state"
    state = httpx.get(url, trust_env=False, timeout=60).json()
    assert isinstance(state, dict)
    return state


# --- agents -------------------------------------------------------------------------------------


def test_agents_are_a_plain_table_in_a_pipe(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "agents")
    assert ended.returncode == SUCCESS
    header, row = ended.stdout.splitlines()
    heads = ["name", "id", "protocol", "slots", "phase", "model", "context", "memory", "issues"]
    assert header.split() == heads
    id_ = shared_fleet.agent_view("a1")["id"]
    *cells, host, size, unit, issues = row.split()
    assert cells == f"a1 {id_} paddler-trio.1 0/4 serving {BUNDLED_MODEL} 256 a slot".split()
    assert (host, unit, issues) == ("host", "MiB", "-")
    assert float(size) > 10, "what a process with a model takes"
    assert ended.stderr == ""


def test_agents_as_json_are_the_balancers_answer(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "agents", "--json")
    assert json.loads(ended.stdout) == shared_fleet.view()


def test_watching_agents_prints_a_line_of_json_for_each_change(fleet: Fleet) -> None:
    with running("agents", "--watch", "--json", "--management-addr", fleet.management) as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        digest = fleet.desire(BUNDLED_MODEL, temperature=0.25)
        seen = [first["desired_state_digest"]]
        while seen[-1] != digest:
            seen.append(json.loads(watching.stdout.readline())["desired_state_digest"])
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT_S) == INTERRUPTED
        assert watching.stderr is not None
        assert watching.stderr.read() == ""


def test_a_reader_that_has_enough_is_no_error_to_talk_about(fleet: Fleet) -> None:
    with running("agents", "--watch", "--management-addr", fleet.management) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        fleet.desire(None)
        assert watching.wait(LIMIT_S) == FAILURE
        assert watching.stderr is not None
        assert watching.stderr.read() == ""


def test_who_changed_what_is_a_line_each(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "audit")
    assert ended.returncode == SUCCESS, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines
    assert all(re.match(r"[0-9-]{10} [0-9:]{8} \S+ from 127\.0\.0\.1: ", line) for line in lines)
    told = json.loads(managed(shared_fleet, "audit", "--json", "--limit", 1).stdout)
    assert len(told["entries"]) == 1
    assert told["entries"][0]["action"] in lines[-1]
    assert managed(shared_fleet, "audit", "--who", "nobody").stdout.startswith("no management")


# --- chat ---------------------------------------------------------------------------------------


def test_chat_prints_the_answer_and_nothing_else(shared_fleet: Fleet) -> None:
    ended = chat(shared_fleet, QUESTION)
    assert ended.returncode == SUCCESS
    assert ended.stdout.startswith(ANSWER)
    assert ended.stdout.endswith("\n")
    assert ended.stderr == ""


def test_chat_keeps_reasoning_out_of_the_answer(shared_fleet: Fleet) -> None:
    ended = chat(shared_fleet, QUESTION, "--thinking")
    assert ended.returncode == SUCCESS
    assert "slot" in ended.stderr
    assert ANSWER in ended.stdout
    assert ended.stderr.strip() not in ended.stdout


def test_chat_as_json_is_one_object_with_the_usage(shared_fleet: Fleet) -> None:
    ended = chat(shared_fleet, "-", "--json", "--max-tokens", 5, stdin=QUESTION)
    told = json.loads(ended.stdout)
    assert ANSWER.startswith(told["content"].strip())
    assert told["usage"]["content_tokens"] == 5
    assert told["generated_by"] == "a1"


def test_a_raw_prompt_is_continued_without_a_template(shared_fleet: Fleet) -> None:
    told = json.loads(chat(shared_fleet, "What is", "--raw", "--json", "--max-tokens", 3).stdout)
    assert told["usage"]["undeterminable_tokens"] + told["usage"]["content_tokens"] <= 3
    assert told["usage"]["prompt_tokens"] < 5
    assert chat(shared_fleet, "hi", "--raw", "--system", "be brief").returncode == USAGE


def test_chat_on_a_terminal_ends_with_the_token_counts(shared_fleet: Fleet) -> None:
    code, written = on_a_terminal("chat", QUESTION, "--inference-addr", shared_fleet.inference)
    assert code == SUCCESS
    assert ANSWER in written
    assert re.search(r"\[a1: 17 prompt tokens.*, \d+ generated, [\d.]+ tokens/s\]", written)


def test_an_interrupted_chat_stops_its_request(fleet: Fleet) -> None:
    agent = fleet.agents["a1"]
    agent.signal(signal.SIGSTOP)  # so that the answer cannot be quicker than we are
    with running("chat", QUESTION, "--inference-addr", fleet.inference) as chatting:
        fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 1)
        chatting.send_signal(signal.SIGINT)
        assert chatting.wait(LIMIT_S) == INTERRUPTED
        assert chatting.stderr is not None
        assert chatting.stderr.read() == ""
    agent.signal(signal.SIGCONT)
    fleet.wait_until(lambda view: view["agents"][0]["slots_processing"] == 0)
    assert chat(fleet, QUESTION).returncode == SUCCESS


# --- model --------------------------------------------------------------------------------------


def test_the_desired_state_is_shown(shared_fleet: Fleet) -> None:
    lines = managed(shared_fleet, "model", "show").stdout.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines)
    assert shown["model"].strip() == str(BUNDLED_MODEL)
    assert shown["context_size"].strip() == "1024"
    as_json = managed(shared_fleet, "model", "show", "--json")
    assert json.loads(as_json.stdout) == desired(shared_fleet)


def test_what_is_desired_already_is_not_stored_again(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "model", "swap", BUNDLED_MODEL)
    assert ended.returncode == SUCCESS
    assert ended.stdout.splitlines() == [
        "already desired: nothing to do",
        f"served by a1: {BUNDLED_MODEL}",
    ]


def test_sampling_changes_in_place_and_the_context_does_not(fleet: Fleet, tmp_path: Path) -> None:
    engine = fleet.agents["a1"].engine_pid
    file = tmp_path / "sampling.toml"
    file.write_text("temperature = 0.5\ntop_k = 7\n")
    ended = managed(fleet, "model", "swap", BUNDLED_MODEL, "--file", file, "--temperature", 0.25)
    assert ended.returncode == SUCCESS, ended.stderr
    *changes, stored, served = ended.stdout.splitlines()
    assert changes == ["temperature: 0.8 -> 0.25", "top_k: 80 -> 7"]
    assert "in place" in stored
    assert served == f"served by a1: {BUNDLED_MODEL}"
    assert fleet.agents["a1"].engine_pid == engine

    ended = managed(fleet, "model", "swap", BUNDLED_MODEL, "--context-size", 2048)
    assert ended.returncode == SUCCESS, ended.stderr
    assert ended.stdout.startswith("context_size: 1024 -> 2048\n")
    assert "load the model anew" in ended.stdout
    assert fleet.agents["a1"].engine_pid != engine
    parameters = desired(fleet)["inference_parameters"]
    assert isinstance(parameters, dict)
    assert (parameters["temperature"], parameters["top_k"]) == (0.25, 7)


def test_a_swap_that_fails_says_on_whom_and_why(fleet: Fleet) -> None:
    ended = managed(fleet, "model", "swap", "/no/such.gguf")
    assert ended.returncode == FAILURE
    assert ended.stdout.startswith(f"model: {BUNDLED_MODEL} -> /no/such.gguf\n")
    assert "failed on a1: there is no file at /no/such.gguf" in ended.stderr

    listed = managed(fleet, "agents").stdout
    assert "failed" in listed
    assert "the agent has no file /no/such.gguf" in listed

    back = managed(fleet, "model", "swap", BUNDLED_MODEL, "--json")
    assert back.returncode == SUCCESS, back.stderr
    told = json.loads(back.stdout)
    assert told["outcome"] == "all serve"
    assert told["needs_reload"] is True
    assert [change["field"] for change in told["changes"]] == ["model"]
    assert [(agent["name"], agent["verdict"]) for agent in told["agents"]] == [("a1", "serving")]
    assert told["agents"][0]["served_state"] == told["digest"]


def test_none_takes_the_model_away(fleet: Fleet) -> None:
    ended = managed(fleet, "model", "swap", "none")
    assert ended.returncode == SUCCESS, ended.stderr
    assert "give up their model" in ended.stdout
    assert fleet.agents["a1"].engine_pid is None


def test_a_template_is_used_and_put_away_again(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    ended = managed(fleet, "model", "swap", BUNDLED_MODEL, "--chat-template", file)
    assert ended.returncode == SUCCESS, ended.stderr
    assert desired(fleet)["use_chat_template_override"] is True
    ended = managed(fleet, "model", "swap", BUNDLED_MODEL, "--no-chat-template")
    assert ended.returncode == SUCCESS, ended.stderr
    assert desired(fleet)["use_chat_template_override"] is False


def test_set_stores_and_does_not_wait(fleet: Fleet) -> None:
    agent = fleet.agents["a1"]
    agent.signal(signal.SIGSTOP)
    ended = managed(fleet, "model", "set", "hf:org/repo/m.gguf")
    assert ended.returncode == SUCCESS
    assert ended.stderr == ""
    assert desired(fleet)["model"] == {
        "HuggingFace": {"filename": "m.gguf", "repo_id": "org/repo", "revision": "main"}
    }


def test_waiting_ends_with_the_timeout(fleet: Fleet) -> None:
    fleet.agents["a1"].signal(signal.SIGSTOP)
    said = []
    for timeout_s in (0.5, 5, 30):  # on a busy machine it may end before it has seen an agent
        ended = managed(fleet, "model", "set", "none", "--wait", "--timeout", timeout_s)
        assert ended.returncode == TIMED_OUT
        said.append(ended.stderr.splitlines()[-1])
        if "a1" in said[-1]:
            return
    raise AssertionError(f"it does not name who is not ready: {said}")


def test_a_swap_without_agents_is_stored_and_says_that_nobody_serves_it() -> None:
    with Fleet.start(agents=0, model=None) as fleet:
        ended = managed(fleet, "model", "swap", BUNDLED_MODEL)
        assert ended.returncode == FAILURE
        assert "no agent is connected" in ended.stderr
        assert desired(fleet)["model"] == {"LocalToAgent": str(BUNDLED_MODEL)}
        assert "no agent is connected" in managed(fleet, "agents").stdout


def test_a_swap_on_a_terminal_shows_each_agent_as_it_goes(fleet: Fleet) -> None:
    code, written = on_a_terminal(
        *("model", "swap", BUNDLED_MODEL, "--n-batch", 512),
        *("--management-addr", fleet.management),
    )
    assert code == SUCCESS
    assert "\x1b[" in written
    assert "serving" in written, "a row of the table"
    assert "served by a1" in written


def test_what_the_balancer_refuses_is_told_in_its_own_words(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "model", "set", BUNDLED_MODEL, "--image-resize-to-fit", 0)
    assert ended.returncode == FAILURE
    assert "(400): image_resize_to_fit must be greater than zero" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere.gguf"],
        ["hf:org"],
        ["none", "--k-cache-dtype", "Q9"],
        ["none", "--context-size", "-1"],
        ["none", "--file", "nowhere.toml"],
        ["none", "--chat-template", "nowhere.jinja"],
        ["none", "--chat-template", __file__, "--no-chat-template"],
        ["none", "--management-addr", "here"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_changes_nothing(shared_fleet: Fleet, arguments: list[str]) -> None:
    before = desired(shared_fleet)
    ended = paddler_trio("model", "set", "--management-addr", shared_fleet.management, *arguments)
    assert ended.returncode == USAGE
    assert "Error" in ended.stderr
    assert desired(shared_fleet) == before


# --- tree ---------------------------------------------------------------------------------------


def test_the_balancers_tree_is_drawn_from_its_root(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "tree")
    assert ended.returncode == SUCCESS
    root, *branches = ended.stdout.splitlines()
    assert root.startswith("main  until_end (restartable.py:")
    assert any("inference listener 127.0.0.1:" in branch for branch in branches)
    assert json.loads(managed(shared_fleet, "tree", "--json").stdout)["name"] == "main"


def test_an_agents_tree_shows_how_often_its_engine_was_restarted(fleet: Fleet) -> None:
    agent = fleet.agents["a1"]
    engine = agent.engine_pid
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    agent.wait_for_log("child crashed")
    fleet.wait_serving()
    ended = managed(fleet, "tree", "--agent", "a1")
    assert ended.returncode == SUCCESS, ended.stderr
    assert ended.stdout.startswith("main  run_instance (instance_tree.py:")
    [branch] = [line for line in ended.stdout.splitlines() if "─ engine  " in line]
    assert "restarted once" in branch
    assert "SIGKILL" in branch


def test_an_agent_nobody_knows_is_told_with_those_that_are_connected(shared_fleet: Fleet) -> None:
    ended = managed(shared_fleet, "tree", "--agent", "a/9")
    assert ended.returncode == FAILURE
    assert ended.stderr == "paddler-trio: no agent 'a/9' is connected; connected: a1\n"


# --- nobody there -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["agents"],
        ["agents", "--watch"],
        ["tree"],
        ["rollout", "--watch"],
        ["model", "show"],
        ["model", "swap", "none"],
        ["chat", "hi"],
    ],
    ids=" ".join,
)
def test_a_balancer_that_is_not_there_is_one_line_with_the_next_step(arguments: list[str]) -> None:
    option = "--inference-addr" if arguments[0] == "chat" else "--management-addr"
    ended = paddler_trio(*arguments, option, "127.0.0.1:1")
    assert ended.returncode == FAILURE
    assert ended.stdout == ""
    assert ended.stderr == (
        "paddler-trio: cannot reach the balancer at 127.0.0.1:1: connection refused; "
        "start one with `paddler-trio balancer`\n"
    )


def test_the_other_port_is_recognised(shared_fleet: Fleet) -> None:
    ended = paddler_trio("agents", "--management-addr", shared_fleet.inference)
    assert ended.returncode == FAILURE
    assert "no management service" in ended.stderr
    ended = paddler_trio("chat", "hi", "--inference-addr", shared_fleet.management)
    assert ended.returncode == FAILURE
    assert "not the inference service" in ended.stderr


def test_a_drained_agent_gets_nothing_new_until_it_is_told_otherwise(fleet: Fleet) -> None:
    assert "a1 gets nothing new" in managed(fleet, "agent", "drain", "a1").stdout
    assert fleet.agent_view("a1")["is_accepting"] is False
    assert " drained " in managed(fleet, "agents").stdout
    refused = managed(fleet, "agent", "drain", "nobody")
    assert refused.returncode == 1
    assert "no agent 'nobody' is connected; connected: a1" in refused.stderr
    assert "gets work again" in managed(fleet, "agent", "drain", "a1", "--undo").stdout
    assert fleet.agent_view("a1")["is_accepting"] is True
