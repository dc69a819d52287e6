"""What keys mean in ``top``: the table, the row, the order, the filter, and orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_documents import NOW_MS, agent, full_event, request
from paddler_trio.cli.live.live_picture import LivePicture
from paddler_trio.cli.live.top_view import (
    Action,
    CancelRequest,
    DrainAgent,
    ExplainRequest,
    Pane,
    Quit,
    TopView,
    question,
)

ALL_KEYS = (
    *"qjkgGsr/?hcdyn x",
    "escape", "enter", "tab", "back tab", "left", "right", "up", "down", "page up", "page down",
    "home", "end", "backspace", "clear",
)  # fmt: skip


@pytest.fixture
def picture() -> LivePicture:
    made = LivePicture()
    made.apply(full_event())
    return made


def press(view: TopView, picture: LivePicture, *keys: str) -> Action | None:
    action = None
    for key in keys:
        action = view.press(key, picture, NOW_MS)
    return action


def shown(view: TopView, picture: LivePicture) -> list[int]:
    return [each.key for each in view.requests(picture, NOW_MS)]


def test_a_request_is_cancelled_only_after_a_yes(picture: LivePicture) -> None:
    view = TopView()
    assert press(view, picture, "c") is None
    assert view.asking is not None
    assert "cancel request 17?" in question(view.asking)
    assert press(view, picture, "n") is None
    assert view.asking is None
    assert press(view, picture, "j", "c", "y") == CancelRequest(19)


def test_an_agent_is_drained_and_gets_work_again(picture: LivePicture) -> None:
    view = TopView()
    assert press(view, picture, "d") is None
    assert "select an agent" in view.message
    assert press(view, picture, "tab", "d", "y") == DrainAgent("id-3", "a1", drained=True)
    picture.apply({**full_event(agents={"3": agent(3, "a1", is_drained=True)}), "seq": 1})
    press(view, picture, "d")
    assert view.asking == DrainAgent("id-3", "a1", drained=False)
    assert "work again" in question(view.asking)


def test_what_has_ended_cannot_be_cancelled_but_explained(picture: LivePicture) -> None:
    ended = request(17, phase="ended", ended_ms=NOW_MS, ending={"kind": "done"})
    picture.apply({**full_event(requests={"17": ended}), "seq": 1})
    view = TopView()
    assert press(view, picture, "c") is None
    assert view.message == "request 17 has ended"
    assert press(view, picture, "enter") == ExplainRequest(17)


def test_a_filter_is_typed_kept_and_ended(picture: LivePicture) -> None:
    view = TopView()
    press(view, picture, "/", "q", "backspace", *"STREAM", "enter")
    assert (view.typing, view.pane.filter) == (False, "STREAM")
    assert shown(view, picture) == [17]
    press(view, picture, "/", *"app 19")
    assert shown(view, picture) == [19]
    press(view, picture, "clear", *"nothing", "enter")
    assert shown(view, picture) == []
    assert press(view, picture, "c") is None
    assert press(view, picture, "escape") is None
    assert shown(view, picture) == [17, 19]
    assert press(view, picture, "escape") == Quit()


def test_rows_are_sorted_by_the_next_column_and_reversed_with_unknowns_last(
    picture: LivePicture,
) -> None:
    view = TopView()
    view.pane.sorted_by = "queue"
    assert shown(view, picture) == [19, 17]
    press(view, picture, "r")
    assert shown(view, picture) == [19, 17], "17 has no position"
    press(view, picture, "s")
    assert (view.pane.sorted_by, view.pane.reverse) == ("age", False)
    view.pane.sorted_by = "key"
    assert shown(view, picture) == [19, 17]
    press(view, picture, "r")
    assert shown(view, picture) == [17, 19]
    titles = set()
    for _ in range(20):
        press(view, picture, "s")
        titles.add(view.pane.sorted_by)
    assert {"key", "client", "agent", "tokens", "tok/s"} <= titles


def test_the_selection_follows_its_row_and_stays_when_the_row_goes(picture: LivePicture) -> None:
    view = TopView()
    view.pane.sorted_by = "key"
    press(view, picture, "j")
    assert view.pane.selected == "17"
    newer = {"17": request(17), "19": request(19), "20": request(20)}
    picture.apply({**full_event(requests=newer), "seq": 1})
    assert view.pane.place_in(view.keys(picture, NOW_MS)) == 2
    picture.apply({**full_event(requests={"19": request(19)}), "seq": 2})
    assert view.pane.place_in(view.keys(picture, NOW_MS)) == 0
    assert press(view, picture, "c", "y") == CancelRequest(19)


def test_steps_go_around_the_ends_and_pages_do_not(picture: LivePicture) -> None:
    view = TopView()
    press(view, picture, "k")
    assert view.pane.place == 1
    press(view, picture, "page down")
    assert view.pane.place == 1
    press(view, picture, "home")
    assert view.pane.place == 0
    press(view, picture, "end", "j")
    assert view.pane.place == 0


def test_help_and_details_are_left_with_any_key(picture: LivePicture) -> None:
    view = TopView()
    press(view, picture, "?")
    assert view.shows_help
    assert press(view, picture, "c") is None
    assert not view.shows_help
    view.explain(["a line", "another"])
    assert press(view, picture, "down", "down") is None
    assert (view.detail, view.detail_from) == (["a line", "another"], 1)
    assert press(view, picture, "escape") is None
    assert view.detail is None
    view.explain(["a line"])
    assert view.detail_from == 0
    assert press(view, picture, "q") == Quit()


def test_requests_that_ended_come_last_whatever_the_order(picture: LivePicture) -> None:
    ended = request(3, arrived_ms=0, phase="ended", ended_ms=9, ending={"kind": "done"})
    picture.apply({**full_event(requests={"3": ended, "19": request(19)}), "seq": 1})
    view = TopView()
    assert shown(view, picture) == [19, 3]
    press(view, picture, "r")
    assert shown(view, picture) == [19, 3]


@given(st.lists(st.sampled_from(ALL_KEYS), max_size=40), st.booleans())
def test_no_order_without_a_yes_whatever_is_pressed(keys: list[str], is_empty: bool) -> None:
    picture, view = LivePicture(), TopView()
    picture.apply(full_event(agents={}, requests={}) if is_empty else full_event())
    before = ""
    for key in keys:
        action = view.press(key, picture, NOW_MS)
        if isinstance(action, CancelRequest | DrainAgent):
            assert key == "y"
            assert before in {"c", "d"}
            assert not is_empty
        before = key
    assert view.active in Pane
