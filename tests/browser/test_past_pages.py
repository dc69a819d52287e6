"""Metrics of the past, Usage and what keys have used, against real daemons."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fleet import END_S, Fleet
from playwright.sync_api import Browser, expect
from viewer import Viewer

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.scheduler.limits.key_limits import KeyLimits

MONTH = KeyLimits(tokens_per_month=1)


@pytest.fixture(scope="module")
def fleet(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two keys have asked, one of them for tom, and one was refused at its budget."""
    folder = tmp_path_factory.mktemp("past")
    content, secrets = KeyFile(), {}
    for name, limits in {"app": KeyLimits(), "poor": MONTH}.items():
        secrets[name] = new_secret()
        scopes = frozenset({KeyScope.INFERENCE})
        terms = KeyTerms(limits=limits)
        key = StoredKey.of(secrets[name], name=name, scopes=scopes, created="", terms=terms)
        content = content.having(key)
    write_key_file(folder / "keys.json", content)
    options = [
        f"--api-key-file={folder / 'keys.json'}",
        f"--state-database=file://{folder / 'state.json'}",
        "--usage-by-user",
        "--web-admin-panel-addr=127.0.0.1:0",
    ]
    with Fleet.start(agents=1, slots=2, balancer_options=options) as fleet:
        for name in ("app", "app", "poor", "poor"):
            ask(fleet, secrets[name])
        give_up_s = time.monotonic() + END_S
        while (rows := usage(fleet)).keys() < {"app", "poor"} or not rows["poor"]["refused"]:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        yield fleet


def ask(fleet: Fleet, secret: str) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "user": "tom"}
    httpx.post(
        f"{fleet.inference_url}/v1/chat/completions",
        json=asked,
        headers={"authorization": f"Bearer {secret}"},
        timeout=END_S,
        trust_env=False,
    )


def usage(fleet: Fleet) -> dict[str, dict[str, int]]:
    url = f"{fleet.management_url}/api/v2/usage?per=all"
    rows = httpx.get(url, timeout=END_S, trust_env=False).raise_for_status().json()["rows"]
    return {row["key"]: row for row in rows}


def test_usage_is_a_table_by_key_user_and_model_and_a_file(
    viewer: Viewer, panel: str, fleet: Fleet, tmp_path: Path
) -> None:
    viewer.open(panel, "usage")
    page, now = viewer.page, datetime.now(UTC)
    table = page.get_by_role("region", name="Usage")
    app = table.get_by_role("row").filter(has_text="app")
    used = usage(fleet)["app"]
    expect(app).to_contain_text(now.strftime("%Y-%m"))
    expect(app).to_contain_text(str(used["generated_tokens"]))
    page.get_by_role("radio", name="Users").check(force=True)
    expect(table.get_by_role("row").filter(has_text="tom").first).to_be_visible()
    page.get_by_role("radio", name="Models").check(force=True)
    expect(table.get_by_role("row").filter(has_text="default")).to_be_visible()
    page.get_by_role("radio", name="Keys").check(force=True)
    page.get_by_role("radio", name="Day").check(force=True)
    expect(app).to_contain_text(now.strftime("%Y-%m-%d"))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "usage.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "usage.csv").read_text())))
    assert {row["key"]: int(row["requests"]) for row in rows} == {"app": 2, "poor": 1}
    page.get_by_label("Which month").select_option(index=3)
    expect(page.get_by_text("Nothing was used")).to_be_visible()
    assert viewer.findings() == []


def test_keys_show_what_they_used_and_when_last(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    viewer.page.set_viewport_size({"width": 1500, "height": 900})
    viewer.open(panel, "keys")
    poor = viewer.page.get_by_role("row").filter(has_text="poor")
    used = usage(fleet)["poor"]
    expect(poor).to_contain_text("of 1 tokens this month")
    expect(poor.get_by_role("cell").nth(-2)).to_contain_text(
        re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
    )
    for place, name in enumerate(("requests", "prompt_tokens", "generated_tokens", "refused"), -6):
        expect(poor.get_by_role("cell").nth(place)).to_have_text(str(used[name]))
    assert viewer.findings() == []


def test_a_range_of_the_past_is_shown_by_key_and_zoomed(viewer: Viewer, panel: str) -> None:
    viewer.open(panel, "metrics")
    page = viewer.page
    page.get_by_label("Lines").select_option("key")
    tokens = page.get_by_role("figure", name=re.compile("Generated tokens per second"))
    expect(tokens).to_have_attribute("aria-label", re.compile(r"app .*poor "))
    assert viewer.findings() == []
    page.get_by_label("Range").select_option("7d")
    expect(page.get_by_text(re.compile("every 1 h"))).to_be_visible()
    assert "range=7d" in page.url
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"from=\d+&to=\d+"))
    first = page.url
    page.get_by_role("button", name="Later").click()  # never beyond now
    plot = tokens.locator(".u-over")
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, middle, steps=5)
    page.mouse.up()
    expect(page).not_to_have_url(first)
    before, after = (span_of(each) for each in (first, page.url))
    assert 0.3 * before < after < 0.5 * before
    page.go_back()
    expect(page.get_by_role("figure").first).to_be_visible()
    page.get_by_label("Range").select_option("1h")
    page.get_by_label("Lines").select_option("fleet")
    expect(page.get_by_role("figure", name=re.compile("Slots and queue"))).to_be_visible()
    page.get_by_role("radio", name="Table").check(force=True)
    expect(page.get_by_role("region", name="Metrics of this time")).to_be_visible()
    assert viewer.findings() == []
    page.get_by_label("Range").select_option("")
    expect(page.get_by_role("region", name="Newest figures")).to_be_visible()
    assert viewer.unexpected_errors() == []


def span_of(url: str) -> int:
    found = re.search(r"from=(\d+)&to=(\d+)", url)
    assert found is not None
    return int(found[2]) - int(found[1])
