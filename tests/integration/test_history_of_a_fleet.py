"""What is kept of the past by real daemons that are killed, restarted and taken over from."""

from __future__ import annotations

import csv
import io
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from fleet import END_S, Fleet

from cli_in_process import invoke
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.scheduler.limits.key_limits import KeyLimits

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@attrs.frozen
class Place:
    """A fleet with keys, and a folder with its state."""

    fleet: Fleet
    folder: Path
    secrets: dict[str, str]

    def chat(self, key: str, **more: object) -> httpx.Response:
        return httpx.post(
            f"{self.fleet.inference_url}/v1/chat/completions",
            json={**CHAT, **more},
            headers={"authorization": f"Bearer {self.secrets[key]}"},
            trust_env=False,
            timeout=END_S,
        )

    def get(self, path: str) -> Any:
        answer = httpx.get(
            self.fleet.management_url + path, trust_env=False, timeout=END_S
        ).raise_for_status()
        return answer.json()

    def usage(self, by: str = "key", name: str = "key") -> dict[str, Any]:
        rows = self.get(f"/api/v2/usage?by={by}&per=all")["rows"]
        return {row[name]: row for row in rows}

    def problems(self) -> list[str]:
        return [each["sentence"] for each in self.get("/api/v2/problems")["problems"]]

    @property
    def file(self) -> Path:
        return self.folder / "state.json.history.db"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    content, secrets = KeyFile(), {}
    limits = {"app": KeyLimits(), "poor": KeyLimits(tokens_per_month=5), "once": KeyLimits(1)}
    for name, limit in limits.items():
        secrets[name] = new_secret()
        key = StoredKey.of(
            secrets[name],
            name=name,
            scopes=frozenset({KeyScope.INFERENCE}),
            created="",
            terms=KeyTerms(limits=limit),
        )
        content = content.having(key)
    write_key_file(tmp_path / "keys.json", content)
    options = [
        f"--api-key-file={tmp_path / 'keys.json'}",
        f"--state-database=file://{tmp_path / 'state.json'}",
        "--usage-by-user",
        "--insecure-management",
    ]
    with Fleet.start(agents=1, slots=2, balancer_options=options) as fleet:
        yield Place(fleet, tmp_path, secrets)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Nothing says when the history was written: that is asked for."""
    give_up_s = time.monotonic() + END_S
    while not is_so():
        assert time.monotonic() < give_up_s, f"not in time: {what}"
        time.sleep(0.05)


def test_what_was_used_survives_a_kill_a_restart_and_a_successor(place: Place) -> None:
    used = place.chat("app", user="tom").raise_for_status().json()["usage"]
    place.chat("app").raise_for_status()
    assert place.chat("once").status_code == 200
    assert place.chat("once").status_code == 429
    until(lambda: place.usage().get("app", {}).get("requests") == 2, "two requests")
    until(lambda: place.usage()["once"]["refused"] == 1, "a refusal")
    before = place.usage()
    assert before["app"]["prompt_tokens"] >= used["prompt_tokens"]
    assert before["app"]["generated_tokens"] >= used["completion_tokens"] > 0
    assert abs(time.time() - before["app"]["last_s"]) < END_S
    by_user = place.usage("user", "user")
    assert by_user["tom"]["prompt_tokens"] == used["prompt_tokens"]
    assert place.usage("model", "model")["default"]["requests"] == 3

    old = place.fleet.take_over()
    place.fleet.wait_serving()
    place.chat("app").raise_for_status()
    assert old.wait() == 0
    until(lambda: place.usage()["app"]["requests"] == 3, "what both processes answered")
    before = place.usage()

    place.fleet.restart_balancer()  # it is killed
    place.fleet.wait_serving()
    assert place.usage() == before
    month = place.get("/api/v2/usage?by=key&per=month")
    assert {row["period"] for row in month["rows"]} == {datetime.now(UTC).strftime("%Y-%m")}
    for by, name in (("deployment", "default"), ("agent", "a1"), ("client", "app"), ("key", "app")):
        found = place.get(f"/api/v2/metrics/range?range=1h&by={by}")["series"]
        assert name in {each["name"] for each in found}, by
    assert place.problems() == []


def test_the_budget_of_a_month_survives_a_kill(place: Place) -> None:
    assert place.chat("poor").status_code == 200
    refused = place.chat("poor")
    assert refused.status_code == 429
    now = datetime.now(UTC)
    opens = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    assert f"opens again at {opens:%Y-%m-%dT%H:%M:%SZ}" in refused.json()["error"]["message"]
    kept = place.folder / "state.json.key-usage"
    until(lambda: kept.exists() and "poor" in kept.read_text(), "the budget on the disk")
    place.fleet.restart_balancer()  # it is killed
    place.fleet.wait_serving()
    again = place.chat("poor")
    assert (again.status_code, int(again.headers["retry-after"])) == (
        429,
        pytest.approx((opens - datetime.now(UTC)).total_seconds(), abs=END_S),
    )


def test_a_damaged_file_is_a_problem_and_no_reason_not_to_serve(place: Place) -> None:
    place.chat("app").raise_for_status()
    until(lambda: "app" in place.usage(), "usage")
    place.fleet.balancer.signal(signal.SIGTERM)
    place.fleet.balancer.wait()
    place.file.write_bytes(b"no figures " * 1000)
    place.fleet.restart_balancer()
    place.fleet.wait_serving()
    place.chat("app").raise_for_status()
    until(lambda: place.usage().get("app", {}).get("requests") == 1, "usage begins anew")
    aside = place.folder / "state.json.history.db.corrupt"
    until(lambda: place.problems() == [f"it was damaged and is set aside as {aside}"], "said")
    aside.unlink()
    until(lambda: place.problems() == [], "taken away")


def test_a_folder_that_takes_nothing_is_a_problem_until_it_does(place: Place) -> None:
    """The state's disk is full: a file may not grow there."""
    place.chat("app").raise_for_status()
    until(lambda: "app" in place.usage(), "usage")
    aside = place.folder / "elsewhere.db"
    place.file.rename(aside)
    place.file.mkdir()  # what no user, root included, can write to
    place.chat("app").raise_for_status()
    until(lambda: any("cannot be written" in each for each in place.problems()), "said")
    assert place.chat("app").status_code == 200
    place.file.rmdir()
    until(lambda: place.problems() == [], "written again")
    until(lambda: place.usage()["app"]["requests"] == 2, "nothing was lost meanwhile")


def test_the_terminal_shows_and_exports_usage(place: Place) -> None:
    place.chat("app", user="tom").raise_for_status()
    until(lambda: "app" in place.usage(), "usage")
    address = f"--management-addr={place.fleet.management}"
    text = invoke("usage", address).stdout
    assert "app" in text
    assert "UTC" in text
    day = invoke("usage", address, "--by", "user", "--per", "day", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(day)))
    assert [(row["key"], row["user"], row["requests"]) for row in rows] == [("app", "tom", "1")]
    assert rows[0]["period"] == datetime.now(UTC).strftime("%Y-%m-%d")
    assert '"rows"' in invoke("usage", address, "--json", "--month", "2020-01").stdout
    wrong = invoke("usage", address, "--month", "November")
    assert wrong.exit_code != 0
    assert "month is 'November'" in wrong.stderr
