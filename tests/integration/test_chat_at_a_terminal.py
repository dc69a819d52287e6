"""A conversation with ``paddler-trio chat``, in a real terminal with a real fleet."""

from __future__ import annotations

import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fleet import Fleet
from person_at_terminal import Person, person

QUESTION = "What is a slot?"
ANSWER = "A slot is a place in an agent that can work on one request at a time."
UP = "\x1b[A"
END = "\x04"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


@contextmanager
def conversation(fleet: Fleet, folder: Path, *options: str) -> Iterator[Person]:
    """Somebody who was shown the first prompt."""
    words = ("chat", "--inference-addr", fleet.inference, *options)
    with person(*words, env={"XDG_STATE_HOME": str(folder), "HOME": str(folder)}) as someone:
        someone.reads(">>> ")
        yield someone


def says(someone: Person, text: str, expected: str) -> str:
    """Type a line, and return what is written from then on until the next prompt."""
    start = len(someone.screen)
    someone.press(f"{text}\r")
    screen = someone.sees(
        lambda screen: expected in screen[start:] and screen[start:].rstrip(" ").endswith(">>>"),
        f"{expected!r} and a prompt",
    )
    return screen[start:]


def test_a_conversation_is_remembered_and_ends_with_the_input(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    with conversation(shared_fleet, tmp_path) as someone:
        assert "generated" in says(someone, QUESTION, ANSWER)
        assert "messages    2" in says(someone, "/show", "messages")
        says(someone, QUESTION, "generated")
        assert "messages    4" in says(someone, "/show", "messages")
        says(someone, "/clear", "")
        assert "messages    0" in says(someone, "/show", "messages")
        someone.press(END)
        assert someone.waits_for_end() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    with conversation(shared_fleet, tmp_path) as someone:
        says(someone, "/set parameter ignore_eos true", "")
        says(someone, "/set parameter max_tokens 100000", "")
        start = len(someone.screen)
        someone.press(f"{QUESTION}\r")
        someone.sees(lambda screen: ANSWER in screen[start:], "the answer")
        someone.process.send_signal(signal.SIGINT)
        someone.sees(lambda screen: "stopped" in screen[start:], "that it is stopped")
        assert "messages    2" in says(someone, "/show", "messages"), "what came of it stays"
        shared_fleet.wait_until(
            lambda view: not any(agent["slots_processing"] for agent in view["agents"]),
            what="the request has left its slot",
        )
        someone.press("half a line")
        someone.reads("half a line")
        someone.process.send_signal(signal.SIGINT)
        says(someone, "/set parameter ignore_eos", "")
        someone.press("/bye\r")
        assert someone.waits_for_end() == 0


def test_several_lines_are_one_message(shared_fleet: Fleet, tmp_path: Path) -> None:
    with conversation(shared_fleet, tmp_path, "--system", "Be brief.") as someone:
        someone.press('"""What is\r')
        someone.reads("... ")
        says(someone, 'a slot?"""', "generated")
        shown = says(someone, "/show", "messages")
        assert "messages    2" in shown
        assert "system      Be brief." in shown
        assert "system      none" in says(someone, "/set system", "") + says(
            someone, "/show", "messages"
        )


def test_parameters_are_judged_and_reach_the_model(shared_fleet: Fleet, tmp_path: Path) -> None:
    with conversation(shared_fleet, tmp_path) as someone:
        assert "no parameter is called 'heat'" in says(someone, "/set parameter heat 1", "heat")
        assert "cannot be" in says(someone, "/set parameter temperature hot", "cannot")
        says(someone, "/set parameter max_tokens 3", "")
        assert " 3 generated" in says(someone, QUESTION, "generated")
        assert "max_tokens  3" in says(someone, "/show", "messages")
        assert "no command is called /nothing" in says(someone, "/nothing", "called")
        assert "paddler-demo" in says(someone, "/load", "paddler-demo")
        assert "no model is called 'x'" in says(someone, "/load x", "called")
        says(someone, "/load paddler-demo", "")
        assert "model       paddler-demo" in says(someone, "/show", "messages")


def test_what_is_typed_is_there_the_next_time_for_this_user_alone(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    with conversation(shared_fleet, tmp_path) as someone:
        says(someone, "/set system Be kind.", "")
        someone.press(END)
        assert someone.waits_for_end() == 0
    history = tmp_path / "paddler-trio" / "chat_history"
    assert "/set system Be kind." in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with conversation(shared_fleet, tmp_path) as someone:
        someone.press(UP)
        someone.reads("/set system Be kind.")
        someone.press("\r")
        assert "Be kind." in says(someone, "/show", "messages")
    with conversation(shared_fleet, tmp_path / "elsewhere", "--no-history") as someone:
        someone.press(END)
        assert someone.waits_for_end() == 0
    assert not (tmp_path / "elsewhere").exists()


def test_files_go_with_the_next_message(shared_fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("A slot is a place.")
    (tmp_path / "dot.png").write_bytes(PNG)
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00\x80")
    with conversation(shared_fleet, tmp_path) as someone:
        assert "neither an image nor" in says(someone, f"/attach {tmp_path}/noise", "neither")
        assert "cannot read" in says(someone, "/attach /nowhere", "cannot read")
        says(someone, f"/attach {tmp_path}/note.txt", "note.txt goes")
        says(someone, QUESTION, "generated")
        assert "attached" not in says(someone, "/show", "messages")
        says(someone, f"/attach {tmp_path}/dot.png", "dot.png goes")
        failed = says(someone, QUESTION, "failed")
        assert "ultimodal" in failed, "the bundled model sees nothing, and the line says so"
        shown = says(someone, "/show", "messages")
        assert "messages    2" in shown, "a question without an answer is not kept"


def test_a_balancer_that_is_not_there_is_one_line_and_no_end(tmp_path: Path) -> None:
    words = ("chat", "--inference-addr", "127.0.0.1:1")
    with person(*words, env={"XDG_STATE_HOME": str(tmp_path)}) as someone:
        someone.reads(">>> ")
        assert "cannot reach the balancer" in says(someone, QUESTION, "cannot reach")
        someone.press(END)
        assert someone.waits_for_end() == 0


@pytest.mark.parametrize("option", ["--raw", "--json"])
def test_a_conversation_has_no_such_option(option: str, tmp_path: Path) -> None:
    with person("chat", option, env={"XDG_STATE_HOME": str(tmp_path)}) as someone:
        assert someone.waits_for_end() == 2
    assert "give a PROMPT" in someone.screen


def test_the_request_asks_for_all_that_was_said(shared_fleet: Fleet, tmp_path: Path) -> None:
    """The second answer's prompt has the first question and its answer in it."""
    with conversation(shared_fleet, tmp_path) as someone:
        first = says(someone, QUESTION, "prompt tokens")
        second = says(someone, QUESTION, "prompt tokens")
    assert prompt_tokens(second) > prompt_tokens(first) + 10


def prompt_tokens(text: str) -> int:
    """Return the figure in the line below an answer."""
    return int(text.rpartition(" prompt tokens")[0].rpartition(" ")[2])
