"""The picture of a fleet follows its feed."""

from __future__ import annotations

import pytest

from fleet_documents import NOW_MS, TIME, Json, agent, full_event, request
from paddler_trio.cli.balancer_http import BalancerVersionError
from paddler_trio.cli.live.live_picture import LivePicture


def picture(*events: Json) -> LivePicture:
    made = LivePicture()
    for event in (full_event(), *events):
        made.apply(event)
    return made


def diff(seq: int, made: Json | None = None, gone: Json | None = None) -> Json:
    return {
        "epoch": "e1",
        "seq": seq,
        "full": False,
        "now_ms": NOW_MS + 250 * seq,
        "time": TIME,
        "set": made or {},
        "gone": gone or {},
    }


def test_the_first_event_has_everything() -> None:
    seen = picture()
    assert seen.event_id == "e1.0"
    assert seen.balancer.slots.total == 8
    assert seen.agents["3"].label == "a1"
    assert seen.agents["3"].lane_letters(16) == "dp··"
    assert seen.agents["3"].slots_idle == 2
    assert seen.requests["17"].place == "a1:1"
    assert seen.deployments["default"].waiting == 1
    assert LivePicture().event_id is None


def test_an_event_replaces_what_it_sets_and_forgets_what_is_gone() -> None:
    seen = picture(
        diff(
            1,
            {"requests": {"20": request(20)}, "agents": {"5": agent(5, None)}},
            {"requests": ["17"], "agents": ["4", "99"]},
        )
    )
    assert seen.event_id == "e1.1"
    assert sorted(seen.requests) == ["19", "20"]
    assert sorted(seen.agents) == ["3", "5"]
    assert seen.agents["5"].label == "id-5"
    assert seen.updated_ms == {"3": NOW_MS, "5": NOW_MS + 250}
    assert seen.document()["requests"] == {"19": request(19), "20": request(20)}


def test_a_full_event_forgets_all_that_was() -> None:
    again = {**full_event(agents={}, requests={}, deployments={}), "epoch": "e2", "seq": 7}
    seen = picture(again)
    assert seen.event_id == "e2.7"
    assert not seen.agents
    assert not seen.requests
    assert seen.balancer.version == "0.1.0"


def test_what_a_newer_balancer_adds_is_ignored() -> None:
    seen = picture(diff(1, {"weather": {"now": 1}, "requests": {"17": request(17, mood="good")}}))
    assert seen.requests["17"].phase == "buffered"


def test_lanes_that_do_not_fit_are_counted_in_a_mark() -> None:
    lanes = [[str(n), "d", 0] for n in range(20)] + [["x"]]
    seen = picture(diff(1, {"agents": {"3": agent(3, "a1", slots_total=32, lanes=lanes)}}))
    assert seen.agents["3"].lane_letters(8) == "ddddddd+"
    assert seen.agents["3"].lane_letters(32).startswith("d" * 20 + "?·")


@pytest.mark.parametrize(
    "event",
    [
        {},
        {**full_event(), "seq": "one"},
        {**full_event(), "now_ms": None},
        {**full_event(), "set": []},
        full_event(agents=[]),
        full_event(agents={"3": {"key": 3}}),
        full_event(requests={"17": 5}),
    ],
)
def test_another_shape_is_another_version(event: Json) -> None:
    with pytest.raises(BalancerVersionError):
        LivePicture().apply(event)
