"""What ``top`` shows fills terminals of every size, and pipes."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fleet_documents import NOW_MS, agent, full_event, request
from paddler_trio.cli.live.live_picture import LivePicture
from paddler_trio.cli.live.top_screen import Link, plain_lines, screen
from paddler_trio.cli.live.top_view import CancelRequest, Pane, TopView

HERE = Link("127.0.0.1:8060")


def seen(**topics: object) -> LivePicture:
    made = LivePicture()
    made.apply(full_event(**topics))
    return made


def drawn(
    picture: LivePicture,
    view: TopView | None = None,
    link: Link = HERE,
    size: tuple[int, int] = (150, 24),
) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, width=size[0], height=size[1], highlight=False, markup=False)
    console.print(screen(picture, view or TopView(), link, now_ms=NOW_MS + 500, size=size))
    return written.getvalue().rstrip("\n").split("\n")


def test_it_has_the_fleet_its_slots_its_queue_and_its_requests() -> None:
    lines = drawn(seen())
    assert lines[0].startswith(
        "paddler-trio 0.1.0  127.0.0.1:8060  live  up 2 h 14 min  revision 7"
    )
    assert lines[1].startswith(
        "agents 2   slots 2/8 busy   queue 1/30 (oldest 3.0 s)   in 1234 tok/s   out 57 tok/s"
    )
    text = "\n".join(lines)
    for column in ("name▼", "idle", "busy", "updated", "issues", "slots"):
        assert column in text, "Paddler 1.x's, and ours"
    (first,) = (line for line in lines if line.startswith("a1 "))
    assert first.split()[:9] == ["a1", "serving", "dp··", "2", "2", "1234", "57", "43%", "123"]
    (second,) = (line for line in lines if line.startswith("a2 "))
    assert "the agent has no file" in second
    (streaming,) = (line for line in lines if "streaming" in line)
    assert streaming.split()[:3] == ["17", "app", "default"]
    assert streaming.split()[3:6] == ["/v1/chat/completions", "streaming", "a1:1"]
    assert "q quit" in lines[-1]


def test_a_server_behind_an_agent_has_its_address_and_what_is_wrong_with_it() -> None:
    server = {"phase": "unreachable", "address": "10.0.3.17:8088", "models": ["qwen", "phi"]}
    failed = {"phase": "failed", "detail": "nobody listens", "model_path": None}
    behind = agent(1, "s1", upstream=server, **failed)
    shown = seen(agents={"1": behind})
    lines = drawn(shown, size=(160, 24))
    head = next(line for line in lines if line.startswith("name"))
    assert head.split()[:3] == ["name▼", "phase", "address"]
    (row,) = (line for line in lines if line.startswith("s1 "))
    assert row.split()[:3] == ["s1", "failed", "10.0.3.17:8088"]
    assert row.rstrip().endswith("nobody listens")
    assert "qwen, phi" in row
    assert not {"in/s", "out/s", "cached", "memory"} & set(head.split()), "no server tells them"
    view = TopView(active=Pane.AGENTS)
    view.panes[Pane.AGENTS].filter = "3.17"
    assert [each.label for each in view.agents(shown, NOW_MS)] == ["s1"]
    assert not any("address" in line for line in drawn(seen())), "nobody has one"


def test_an_agent_that_keeps_the_old_model_shows_it() -> None:
    refusing = {"phase": "failed", "detail": "no memory", "wanted_state": "b", "served_state": "a"}
    lines = drawn(seen(agents={"3": agent(3, "a1", **refusing)}))
    (row,) = (line for line in lines if line.startswith("a1 "))
    assert row.split()[1] == "failed"
    assert row.rstrip().endswith("old model serves; no memory")
    loading = {"phase": "loading", "wanted_state": "b", "served_state": None}
    assert "old model" not in "\n".join(drawn(seen(agents={"3": agent(3, "a1", **loading)})))


def test_a_feed_that_is_lost_keeps_the_picture_and_says_why() -> None:
    lines = drawn(seen(), link=Link("h:1", "cannot reach the balancer", 12_300))
    assert "lost for 12.3 s, tries again: cannot reach the balancer" in lines[0]
    assert any(line.startswith("a1 ") for line in lines)


def test_what_is_asked_typed_or_said_is_the_last_line() -> None:
    view = TopView(asking=CancelRequest(17))
    assert drawn(seen(), view)[-1].startswith("cancel request 17?")
    view = TopView(typing=True)
    view.pane.filter = "a\x1b1"
    assert drawn(seen(), view)[-1].startswith("filter requests: a\ufffd1")
    assert drawn(seen(), TopView(message="request 17 is cancelled"))[-1].startswith("request 17")


def test_empty_tables_say_what_to_do() -> None:
    text = "\n".join(drawn(seen(agents={}, requests={})))
    assert "start one with `paddler-trio agent`" in text
    assert "no request is in flight" in text
    view = TopView()
    view.panes[Pane.AGENTS].filter = "zzz"
    assert "no agent has 'zzz'" in "\n".join(drawn(seen(), view))


def test_a_table_that_is_too_long_shows_the_rows_around_the_selection() -> None:
    picture = seen(requests={str(n): request(n, arrived_ms=NOW_MS - n) for n in range(1, 200)})
    view = TopView()
    assert any(" of 199" in line for line in drawn(picture, view))
    view.press("end", picture, NOW_MS)
    assert any("to 199 of 199" in line for line in drawn(picture, view))


def test_deployments_have_a_line_each_when_there_are_several() -> None:
    held = {"reason": "the model is loading", "until_ms": NOW_MS + 5}
    many = {
        "default": {"phase": "serving", "serving": 1},
        "coder": {"phase": "loading", "held": held},
    }
    picture = seen(deployments=many, agents={"3": agent(3, "a1", deployment="coder")})
    text = "\n".join(drawn(picture))
    assert (
        "  coder           loading   0 agents, 0/0 slots, 0 waiting, the model is loading" in text
    )
    assert "deployment" in text
    text = "\n".join(drawn(seen(deployments={f"d{n}": {} for n in range(9)})))
    assert "  and 3 more" in text
    text = "\n".join(drawn(seen(deployments={"default": {"held": held}})))
    assert "requests wait: the model is loading" in text


def test_help_and_an_explained_request_take_the_place_of_the_tables() -> None:
    assert any(
        "cancel the selected request" in line for line in drawn(seen(), TopView(shows_help=True))
    )
    lines = drawn(seen(), TopView(detail=["queue  500 ms"]))
    assert "queue  500 ms" in lines[3]
    assert "any other key goes back" in lines[-1]


@given(st.integers(min_value=1, max_value=200), st.integers(min_value=1, max_value=60))
def test_every_terminal_is_filled_exactly(width: int, height: int) -> None:
    lines = drawn(seen(), size=(width, height))
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)


def test_in_a_pipe_it_is_one_table_after_the_other() -> None:
    lines = list(plain_lines(seen()))
    assert lines[3].split() == [
        "name", "phase", "slots", "idle", "busy", "in/s", "out/s", "cached", "memory", "model",
        "issues",
    ]  # fmt: skip
    assert lines[7].split()[:4] == ["key", "client", "deployment", "what"]
    assert len(lines) == 10
    assert "no requests" in list(plain_lines(seen(requests={})))


def test_the_phase_of_an_agent_is_the_word_of_the_balancer() -> None:
    fields = {"phase": "serving", "state": {"word": "ejected", "severity": "bad"}}
    lines = drawn(seen(agents={"3": agent(3, "a1", **fields)}))
    (line,) = (line for line in lines if line.startswith("a1 "))
    assert line[16:].startswith("ejected")
