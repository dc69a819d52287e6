"""What an operator is told while the fleet changes, fails and comes back, next to what clients met.

Real daemons, real Chromium; one fleet whose balancer keeps a state file.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from feed_reader import FeedReader
from fleet import BUNDLED_MODEL, Fleet
from playwright.sync_api import Browser, Page, expect
from rollouts import apply, deployment, ends, follow
from viewer import Viewer

from no_tls import NO_TLS

OpenViewer = Callable[..., Viewer]
AGENTS = 2


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "state.json"


@pytest.fixture(scope="module")
def fleet(chromium: Browser, state: Path) -> Iterator[Fleet]:
    """Two agents, and a balancer that keeps its state in a file."""
    options = ["--web-admin-panel-addr=127.0.0.1:0", f"--state-database=file://{state}"]
    with Fleet.start(agents=AGENTS, slots=4, model=None, balancer_options=options) as fleet:
        revision = apply(fleet, deployment(BUNDLED_MODEL))
        follow(fleet, ends("complete", revision))
        fleet.wait_serving(AGENTS)
        yield fleet


def get(fleet: Fleet, path: str) -> Any:
    answer = httpx.get(f"{fleet.management_url}{path}", verify=NO_TLS, timeout=60)
    return answer.raise_for_status().json()


def problems(fleet: Fleet) -> dict[str, Any]:
    return {each["id"]: each for each in get(fleet, "/api/v2/problems")["problems"]}


def card(page: Page) -> Any:
    return page.get_by_role("region", name="Deployments").locator("article")


def test_a_clean_rolling_change_never_looks_like_an_outage(
    viewer: Viewer, panel: str, fleet: Fleet, tmp_path: Path
) -> None:
    """Every sentence that the panel showed while the model was swapped under clients."""
    page = viewer.page
    viewer.open(panel, "fleet")
    expect(card(page)).to_contain_text("0 of 8 slots on 2 agents")
    page.evaluate(
        """() => {
          window.seen = new Set();
          const look = () => {
            for (const each of document.querySelectorAll('.deployment')) {
              window.seen.add(each.innerText);
            }
          };
          const what = {subtree: true, childList: true, characterData: true};
          new MutationObserver(look).observe(document.body, what);
        }"""
    )
    other = shutil.copyfile(BUNDLED_MODEL, tmp_path / "other.gguf")
    revision = apply(fleet, deployment(other))
    follow(fleet, ends("complete", revision))
    expect(card(page)).to_contain_text("of 8 slots on 2 agents")
    expect(card(page).locator(".badge")).to_have_text("serving")
    seen = page.evaluate("() => [...window.seen]")
    assert len(seen) > 1
    for text in seen:
        assert "on 0 agents" not in text, text
        assert "Requests are held" not in text, text
        assert "No agent answers" not in text, text
    assert any("has revision" in text or "have revision" in text for text in seen), seen


def test_another_temperature_is_no_load(fleet: Fleet) -> None:
    before = get(fleet, "/api/v2/fleet")["revision"]["state"]["deployments"][0]
    parameters = before["parameters"] | {"temperature": 0.3}
    revision = apply(fleet, before | {"parameters": parameters})
    shown = follow(fleet, ends("complete", revision))
    waits = [each["waits_for"] for each in shown if each["to"] == revision and each["waits_for"]]
    assert not any("being loaded" in each for each in waits), waits
    assert all((each["ready_in_s"] or 0) <= 5 for each in shown if each["to"] == revision)


def test_a_killed_agent_stays_listed_through_a_restart_until_it_is_forgotten(
    viewer: Viewer, fleet: Fleet, state: Path
) -> None:
    page = viewer.page
    viewer.open(f"{fleet.management_url}/panel/", "fleet")
    expect(card(page)).to_contain_text("of 8 slots on 2 agents")
    fleet.agents["a2"].signal(signal.SIGKILL)
    gone = page.get_by_role("region", name="Agents that are not here")
    expect(gone.locator("tbody tr").filter(has_text="a2")).to_contain_text("offline")
    expect(page.get_by_text("1 agent, 1 not here")).to_be_visible()
    expect(card(page)).to_contain_text("1 offline")
    expect(page).to_have_title(re.compile(r"^\([12]\) Fleet"))
    expect(page.locator(".toast.bad").filter(has_text="Agent a2")).to_be_visible()
    assert problems(fleet)["agent:a2"]["severity"] == "bad"
    viewer.go("problems")
    expect(page.get_by_role("article", name="Agent a2")).to_contain_text("start the agent again")
    assert viewer.findings() == []
    viewer.go("logs")
    expect(page.get_by_role("listitem").filter(has_text="agent left")).to_contain_text("a2")
    # the sentence is the clients' truth: the other agent answers at once
    answer = httpx.post(
        f"{fleet.inference_url}/v1/completions",
        json={"model": "m", "prompt": "Once", "max_tokens": 2},
        verify=NO_TLS,
        timeout=60,
    )
    assert answer.status_code == 200
    lost = get(fleet, "/api/v2/known_agents")["agents"]
    viewer.expect_error(".*")
    kept = state.with_name(f"{state.name}.known.json")
    give_up_s = time.monotonic() + 30
    while lost[0]["since"] not in kept.read_text():  # it is written some seconds later
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    fleet.restart_balancer()
    fleet.wait_serving(1)
    with FeedReader.watching(fleet.management_url) as reader:
        reader.until(lambda shown: "a2" in shown["gone"], "a2 is given up")
    known = get(fleet, "/api/v2/known_agents")["agents"]
    assert [each["name"] for each in known] == ["a2"]
    assert known == lost, "it went before the restart, and with the same last words"
    viewer.open(f"{fleet.management_url}/panel/", "fleet")
    page.get_by_role("button", name="Forget a2").click()
    page.get_by_role("button", name="Forget the agent").click()
    expect(gone).to_have_count(0)
    assert problems(fleet) == {}
    fleet.start_agent("a2", slots=4)
    fleet.wait_serving(AGENTS)
    assert problems(fleet) == {}


def test_a_change_that_every_agent_fails_is_in_the_logs_and_the_problems(
    viewer: Viewer, fleet: Fleet, tmp_path: Path
) -> None:
    revision = apply(fleet, deployment(tmp_path / "nowhere.gguf"))
    follow(fleet, ends("rolled_back", revision))
    fleet.wait_serving(AGENTS)
    entries = get(fleet, "/api/v2/logs")["entries"]
    events = {entry["event"] for entry in entries}
    assert "agent cannot serve what is desired" in events
    assert any(
        entry["event"] == "rollout" and entry["fields"]["phase"] == "rolled_back"
        for entry in entries
    ), json.dumps(entries)
    found = problems(fleet)["rollout:default"]
    assert "nowhere.gguf" in found["sentence"]
    assert found["follows"] == "the agents serve what they served before"


def test_one_slow_request_is_drawn_and_percentiles_say_of_when_they_are(
    viewer: Viewer, fleet: Fleet
) -> None:
    ask(fleet)
    page = viewer.page
    viewer.open(f"{fleet.management_url}/panel/", "metrics")
    label = "Time to first token: p50"
    drawn = """(label) => {
      const canvas = document.querySelector(`[aria-label^="${label}"] canvas`);
      if (canvas === null) return false;
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let found = 0;
      for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, opacity] = data.slice(at, at + 4);
        const isGrey = Math.max(red, green, blue) - Math.min(red, green, blue) < 40;
        found += opacity > 128 && !isGrey ? 1 : 0;
      }
      return found > 5;
    }"""
    # a value without neighbours is a point
    page.wait_for_function(drawn, arg=label)
    expect(page.get_by_role("region", name="Newest figures")).to_contain_text(
        "TTFT p95, worst of 5 min"
    )


def ask(fleet: Fleet, **fields: object) -> dict[str, Any]:
    answer = httpx.post(
        f"{fleet.inference_url}/v1/completions",
        json={"prompt": "Once", "max_tokens": 2, **fields},
        verify=NO_TLS,
        timeout=60,
    )
    return dict(answer.raise_for_status().json())


def test_names_are_those_of_the_model_that_answers(fleet: Fleet, tmp_path: Path) -> None:
    """A swap that fails and is not taken back: the model before it goes on."""
    before = ask(fleet)
    stays = deployment(tmp_path / "newer.gguf", rollout={"on_failure": "pause"})
    revision = apply(fleet, stays)
    follow(fleet, ends("paused", revision))
    after = ask(fleet)
    assert after["model"] == before["model"] != "newer"
    assert after["system_fingerprint"] == before["system_fingerprint"]
    assert ask(fleet, model="newer")["model"] == before["model"]
    models = httpx.get(f"{fleet.inference_url}/v1/models", verify=NO_TLS, timeout=60).json()
    assert [each["id"] for each in models["data"]] == [before["model"]]
    found = problems(fleet)
    assert any("newer.gguf" in each["sentence"] for each in found.values()), found
    apply(fleet, deployment(BUNDLED_MODEL))
    fleet.wait_serving(AGENTS)


def test_drained_agents_are_no_capacity_and_a_machine_is_one_agent(
    viewer: Viewer, fleet: Fleet
) -> None:
    agents = get(fleet, "/api/v2/agents")["agents"]
    a1 = next(each["id"] for each in agents if each["name"] == "a1")
    url = f"{fleet.management_url}/api/v2/agents/{a1}/drain"
    httpx.post(url, verify=NO_TLS, timeout=60).raise_for_status()
    page = viewer.page
    viewer.open(f"{fleet.management_url}/panel/", "fleet")
    expect(page.get_by_role("region", name="The fleet in figures")).to_contain_text("of 4")
    expect(card(page)).to_contain_text("of 4 slots on 1 agent")
    facts = page.get_by_text("Inference and APIs").locator("..")
    expect(facts).to_contain_text(fleet.inference)  # where OpenAI's API is on
    httpx.delete(url, verify=NO_TLS, timeout=60).raise_for_status()
    expect(card(page)).to_contain_text("of 8 slots on 2 agents")
    default = get(fleet, "/api/v2/fleet")["revision"]["state"]["deployments"][0]
    revision = apply(fleet, {**default, "name": "one"}, {**default, "name": "two", "aliases": []})
    for name in ("one", "two"):
        follow(fleet, ends("complete", revision), name)
    shown = get(fleet, "/api/v1/agents")["agents"]
    assert all(each["model_path"] for each in shown), "no row without a model"
    expect(page.get_by_role("region", name="Agents").get_by_role("heading", level=2)).to_have_text(
        "2 agents"
    )


def test_what_removes_says_so_and_an_error_that_is_over_is_gone(
    viewer: Viewer, fleet: Fleet
) -> None:
    page = viewer.page
    viewer.expect_error(".*")
    page.route("**/api/v2/fleet", lambda route: route.abort())
    viewer.open(f"{fleet.management_url}/panel/", "model")
    expect(page.get_by_text("The balancer cannot be reached")).to_be_visible()
    page.unroute("**/api/v2/fleet")
    fleet.restart_balancer()
    expect(page.locator(".connection.live")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("The balancer cannot be reached")).to_have_count(0)
    page.get_by_role("button", name="Remove two").click()
    expect(page.get_by_role("button", name="Remove", exact=True)).to_have_class(
        re.compile("danger")
    )
