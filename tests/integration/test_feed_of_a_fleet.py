"""The feed of real daemons: what it shows, an agent killed while watched, a balancer begun anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from feed_reader import Document, FeedReader
from fleet import BUNDLED_MODEL, END_S, Fleet
from streams import song

from no_tls import NO_TLS
from paddler_trio.balancer.activity.metrics_history import FIELDS

TOPICS = {"balancer", "agents", "deployments", "requests", "rollouts", "metrics", "logs"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(agents=2, slots=2) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=8192)
        fleet.wait_serving()
        yield fleet


def get(fleet: Fleet, path: str) -> Any:
    answer = httpx.get(
        f"{fleet.management_url}{path}", trust_env=False, verify=NO_TLS, timeout=END_S
    )
    answer.raise_for_status()
    return answer.json()


def agent(document: Document, name: str) -> dict[str, Any]:
    (found,) = (each for each in document["agents"].values() if each["label"] == name)
    return found


def lanes(document: Document) -> list[int]:
    """The keys of the requests that have a slot of any agent."""
    return [request for each in document["agents"].values() for request, _, _ in each["lanes"]]


def test_the_first_event_shows_everything(fleet: Fleet) -> None:
    with FeedReader.watching(fleet.management_url) as reader:
        event = reader.next()
    assert event["full"]
    assert event["set"].keys() >= TOPICS
    status = event["set"]["balancer"]["status"]
    assert status["addresses"]["management"] == [fleet.management]
    assert status["slots"] == {"busy": 0, "total": 4}
    assert status["buffer"]["limit"] == 30
    shown = agent(event["set"], "a1")
    assert shown | fleet.agent_view("a1") | {"engine": None} == shown | {"engine": None}
    assert event["now_ms"] - shown["joined_ms"] < 600_000
    assert (shown["engine_restarts"], shown["ejected_until_ms"], shown["lanes"]) == (0, None, [])
    deployment = event["set"]["deployments"]["default"]
    assert (deployment["phase"], deployment["serving"], deployment["slots"]) == ("serving", 2, 4)
    assert deployment["target"] == shown["served_state"]
    (rollout,) = get(fleet, "/api/v2/rollout")["rollouts"]
    assert event["set"]["rollouts"]["default"]["agents"] == rollout["agents"]
    assert len(event["set"]["metrics"]["current"]) == len(FIELDS)
    assert event["set"]["logs"]["last"].keys() == {"seq", "warnings", "errors"}


def test_a_request_is_shown_from_its_arrival_to_its_end(fleet: Fleet) -> None:
    body = song(max_tokens=1500)  # it lasts for several events
    with FeedReader.watching(fleet.management_url) as reader:
        reader.next()
        url = f"{fleet.inference_url}/api/v1/continue_from_raw_prompt"
        with httpx.stream(
            "POST", url, json=body, trust_env=False, verify=NO_TLS, timeout=END_S
        ) as answer:
            answer.raise_for_status()
            shown = reader.until(lambda shown: shown["requests"], "a request is in flight")
            (key,) = shown["requests"]
            reader.until(lambda shown: int(key) in lanes(shown), "it has a slot")
            for line in answer.iter_lines():
                if "Done" in line:
                    break
        reader.until(
            lambda shown: shown["requests"].get(key, {}).get("phase") == "ended", "it ended"
        )
        request = reader.document["requests"][key]
        assert request["ending"] == {
            "kind": "done",
            "code": None,
            "text": None,
            "finish": None,
        }
        (placement,) = request["placements"]
        assert placement["first_ms"] >= placement["at_ms"] >= request["arrived_ms"]
        reader.until(lambda shown: key not in shown["requests"], "and is gone")
        assert lanes(reader.document) == []
    rows = get(fleet, "/api/v2/metrics/history")["rows"]
    sums = {
        name: sum(row[FIELDS.index(name)] for row in rows)
        for name in ("requests", "failed", "prompt_tokens", "generated_tokens")
    }
    assert sums == {
        "requests": 1,
        "failed": 0,
        "prompt_tokens": placement["prompt_tokens"],
        "generated_tokens": request["tokens"],
    }


def test_an_engine_that_is_killed_is_counted(fleet: Fleet) -> None:
    with FeedReader.watching(fleet.management_url, "agents") as reader:
        reader.until(lambda shown: agent(shown, "a2")["phase"] == "serving", "a2 serves")
        engine = fleet.agents["a2"].engine_pid
        assert engine is not None
        os.kill(engine, signal.SIGKILL)
        reader.until(
            lambda shown: (
                agent(shown, "a2")["phase"] == "serving"
                and agent(shown, "a2")["engine_restarts"] == 1
            ),
            "a2 serves again, and says that it was started again",
        )
        assert agent(reader.document, "a1")["engine_restarts"] == 0


def test_an_agent_that_is_killed_is_gone_for_all_who_watch(fleet: Fleet) -> None:
    with (
        FeedReader.watching(fleet.management_url) as reader,
        FeedReader.watching(fleet.management_url, "agents") as lost,
    ):
        first = reader.next()
        lost.next()
        key = str(agent(first["set"], "a2")["key"])
        fleet.agents["a2"].end()
        reader.until(lambda shown: key not in shown["agents"], "a2 is gone")
        reader.until(lambda shown: shown["deployments"]["default"]["serving"] == 1, "one serves")
        reader.until(lambda shown: shown["balancer"]["status"]["slots"]["total"] == 2, "two slots")
        seqs = [event["seq"] for event in reader.events]
        assert seqs == sorted(set(seqs))
        assert not any(event["full"] for event in reader.events[1:])
    with FeedReader.watching(fleet.management_url, "agents", resumes=lost) as again:
        event = again.next()
        assert not event["full"]
        assert event["gone"] == {"agents": [key]}
        assert {each["label"] for each in again.document["agents"].values()} == {"a1"}


def test_another_balancer_has_another_epoch_and_ends_its_streams_in_order(fleet: Fleet) -> None:
    with (
        FeedReader.watching(fleet.management_url, "agents") as reader,
        Fleet.start(agents=0, model=None) as other,
    ):
        before = reader.next()
        with FeedReader.watching(other.management_url, "agents", resumes=reader) as again:
            event = again.next()
            assert event["full"]
            assert event["epoch"] != before["epoch"]
            assert again.document == {"agents": {}}
            other.balancer.signal(signal.SIGTERM)
            with pytest.raises(StopIteration):
                again.next()
        assert other.balancer.wait() == 0


def test_rows_of_metrics_and_entries_of_the_log(fleet: Fleet) -> None:
    history = get(fleet, "/api/v2/metrics/history")
    assert history["fields"] == list(FIELDS)
    assert history["bucket_ms"] == 10_000
    assert all(len(row) == len(FIELDS) for row in history["rows"])
    assert all(row[0] % 10_000 == 0 for row in history["rows"])
    assert history["rows"][-1][0] <= history["now_ms"] < history["rows"][-1][0] + 20_000
    entries = get(fleet, "/api/v2/logs")["entries"]
    assert all(entry["level"] in ("warning", "error") for entry in entries)
    for after in ("x", "-1", "1&after=2", "1&x=2", "9" * 400):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            get(fleet, f"/api/v2/logs?after={after}")
    newest = max((entry["seq"] for entry in entries), default=0)
    assert get(fleet, f"/api/v2/logs?after={newest}") == {"entries": []}
