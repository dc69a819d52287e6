"""The page Requests and the waterfall of one: found, filtered, exported, cancelled, followed."""

from __future__ import annotations

import csv
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from feed_reader import FeedReader
from fleet import Fleet
from playwright.sync_api import Browser, Locator, Page, Route, expect
from singing import PATIENCE_S, give_long_contexts, singing
from streams import CONVERSATION, story
from viewer import PHONE, Viewer

OpenViewer = Callable[..., Viewer]
LIVE = "Requests in flight"
RECENT = "Recent requests"


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Two agents whose contexts have room for long answers; some requests have ended."""
    panel = "--web-admin-panel-addr=127.0.0.1:0"
    with Fleet.start(agents=2, model=None, balancer_options=[panel]) as fleet:
        give_long_contexts(fleet)
        ask(fleet, "early", 3, tokens=200)
        yield fleet


def ask(fleet: Fleet, client: str, count: int, *, tokens: int = 2) -> None:
    """So many short requests, one after the other."""
    with httpx.Client(trust_env=False, timeout=60) as http:
        for number in range(count):
            http.post(
                f"{fleet.inference_url}{CONVERSATION}",
                json=story(number, max_tokens=tokens),
                headers={"X-Paddler-Client": client},
            ).raise_for_status()


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("region", name=table).locator("tbody tr").filter(has_text=text)


def test_a_stream_appears_and_an_operator_ends_it(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    viewer.open(panel, "requests")
    expect(page.get_by_text("No request is in flight")).to_be_visible()
    with singing(fleet, "bass") as singer:
        mine = row(page, LIVE, "bass")
        expect(mine).to_contain_text("decode")
        mine.get_by_role("button", name="Cancel request").click()
        dialog = page.get_by_role("dialog", name="Cancel this request?")
        expect(dialog).to_contain_text("bass")
        dialog.get_by_role("button", name="Cancel").click()
        assert not singer.ended.is_set()  # that was no confirmation
        mine.get_by_role("button", name="Cancel request").click()
        dialog.get_by_role("button", name="End the request").click()
        assert singer.ended.wait(PATIENCE_S)
        assert singer.error is not None
        assert "operator cancelled" in str(singer.error["description"])
        expect(mine).to_have_count(0)
    page.get_by_label("Recent").check(force=True)
    expect(row(page, RECENT, "bass")).to_contain_text("cancelled by operator")


def test_filters_are_in_the_address_and_columns_in_the_browser(viewer: Viewer, panel: str) -> None:
    page = viewer.page
    viewer.open(panel, "requests?state=finished")
    expect(row(page, RECENT, "early")).to_have_count(3)
    page.get_by_label("Client").select_option("early")
    page.get_by_label("Ending").select_option("failed")
    expect(page.get_by_text("No request fits the filter")).to_be_visible()
    expect(page).to_have_url(re.compile("state=finished&client=early&ending=failed"))
    page.get_by_role("button", name="Clear").click()
    expect(row(page, RECENT, "early")).to_have_count(3)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("dialog").get_by_label("Cached").uncheck()
    page.get_by_role("dialog").get_by_label("Route").check()
    page.get_by_role("button", name="Done").click()
    page.reload()
    expect(page.get_by_role("columnheader", name="Route")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Cached")).to_have_count(0)
    page.get_by_label("Text").fill("no such text")
    expect(page.get_by_text("No request fits the filter")).to_be_visible()


def test_exports_have_the_filter(viewer: Viewer, panel: str, fleet: Fleet, tmp_path: Path) -> None:
    page = viewer.page
    ask(fleet, "another", 1)
    viewer.open(panel, "requests?state=finished&client=early")
    expect(row(page, RECENT, "early")).to_have_count(3)
    for format_, read in (
        ("CSV", lambda text: list(csv.DictReader(text.splitlines()))),
        ("JSON", lambda text: json.loads(text)["requests"]),
    ):
        with page.expect_download() as download:
            page.get_by_role("link", name=format_).click()
        assert download.value.suggested_filename.endswith(f".{format_.lower()}")
        download.value.save_as(tmp_path / format_)
        rows = read((tmp_path / format_).read_text())
        assert [each["client"] for each in rows] == ["early"] * 3


def test_older_ones_come_page_by_page(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    ask(fleet, "many", 110)
    with FeedReader.watching(fleet.management_url) as reader:  # or some would come by the feed, too
        reader.until(lambda shown: not shown["requests"], "what has ended is not shown any more")
    page = viewer.page
    viewer.open(panel, "requests?state=finished&client=many")
    expect(page.get_by_text("100 requests")).to_be_visible()
    page.get_by_role("button", name="Older ones").click()
    expect(page.get_by_text("110 requests")).to_be_visible()
    expect(page.get_by_role("button", name="No older ones")).to_be_disabled()
    ask(fleet, "many", 1)
    expect(page.get_by_text("111 requests")).to_be_visible()  # it follows what ends


def test_by_keyboard_from_the_table_to_a_request_as_json(
    open_viewer: OpenViewer, panel: str
) -> None:
    viewer = open_viewer()
    viewer.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = viewer.page
    viewer.open(panel, "requests?state=finished&client=early")
    first = row(page, RECENT, "early").first
    expect(first).to_be_visible()
    for _ in range(60):
        page.keyboard.press("Tab")
        if first.evaluate("each => each === document.activeElement"):
            break
    expect(first).to_be_focused()
    page.keyboard.press("Enter")
    for stage in ("Arrival", "Queue", "Prefill", "First token", "Decode", "Ending"):
        expect(page.get_by_role("rowheader", name=stage, exact=True)).to_be_visible()
    expect(page.get_by_role("rowheader", name=re.compile("^Placed on a"))).to_be_visible()
    expect(page.get_by_text("--capture-prompts")).to_be_visible()
    page.get_by_role("button", name="Copy as JSON").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("is in the clipboard")).to_be_visible()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["request"]["client"] == "early"
    assert copied["explanation"]


def test_no_serious_finding_on_the_request_pages(
    open_viewer: OpenViewer, theme: str, panel: str, fleet: Fleet
) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    page = viewer.page
    viewer.open(panel, "requests?state=finished&client=early")
    expect(row(page, RECENT, "early").first).to_be_visible()
    assert viewer.findings() == []
    with singing(fleet, "choir"):
        viewer.go("requests")
        expect(row(page, LIVE, "choir")).to_be_visible()
        assert viewer.findings() == []
        row(page, LIVE, "choir").get_by_role("link").click()
        expect(page.get_by_role("rowheader", name="Decode")).to_be_visible()
        assert viewer.findings() == []


def test_a_telephone_shows_requests_without_scrolling_sideways(
    open_viewer: OpenViewer, panel: str
) -> None:
    viewer = open_viewer(size=PHONE)
    page = viewer.page
    viewer.open(panel, "requests?state=finished&client=early")
    row(page, RECENT, "done").first.click()
    expect(page.get_by_role("rowheader", name="Ending")).to_be_visible()
    for route in (page.url.partition("#/")[2], "requests"):
        viewer.go(route)
        widths = page.evaluate(
            "[document.documentElement, document.querySelector('main')]"
            ".map(each => each.scrollWidth - each.clientWidth)"
        )
        assert widths == [0, 0], route


def test_an_answer_that_is_slow_is_waited_for(viewer: Viewer, panel: str) -> None:
    page = viewer.page
    page.clock.install()
    viewer.open(panel, "requests?state=finished&client=early")
    expect(row(page, RECENT, "early").first).to_be_visible()
    asked: list[Route] = []
    one = re.compile(r"/api/v2/requests/\d+$")
    page.route(one, lambda route: asked.append(route))
    with page.expect_request(one):
        row(page, RECENT, "early").first.get_by_role("link").click()
    page.clock.run_for(5000)
    (only,) = asked
    only.continue_()
    expect(page.get_by_role("rowheader", name="Ending")).to_be_visible()


def test_a_request_that_is_not_there_any_more(viewer: Viewer, panel: str) -> None:
    viewer.expect_error("404")
    viewer.open(panel, "requests/999999")
    expect(viewer.page.get_by_text("does not have this request")).to_be_visible()


def test_an_answer_goes_from_agent_to_agent_while_it_is_watched(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    page = viewer.page
    viewer.open(panel, "requests")
    with singing(fleet, "duet") as singer:
        row(page, LIVE, "duet").get_by_role("link").click()
        placed = page.get_by_role("rowheader", name=re.compile("^Placed on a"))
        victim = placed.inner_text().removeprefix("Placed on ")
        fleet.agents[victim].signal(signal.SIGKILL)
        other = {"a1": "a2", "a2": "a1"}[victim]
        expect(page.get_by_role("rowheader", name="Agent lost")).to_be_visible(timeout=30_000)
        expect(page.get_by_role("rowheader", name=f"Continued on {other}")).to_be_visible()
        expect(page.get_by_role("rowheader", name="First new token")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="End the request").click()
        assert singer.ended.wait(PATIENCE_S)
    expect(page.get_by_role("rowheader", name="Ending")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("cancelled by operator")


def test_what_was_refused_is_not_green_and_says_why_in_every_place(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    with httpx.Client(trust_env=False, timeout=60) as http:
        prompt = "a word and another " * 4000
        answer = http.post(
            f"{fleet.inference_url}/v1/completions",
            json={"model": "any", "prompt": prompt, "max_tokens": 4},
            headers={"X-Paddler-Client": "too-long"},
        )
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        short = {"model": "any", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
        http.post(
            f"{fleet.inference_url}/v1/completions",
            json=short,
            headers={"X-Paddler-Client": "cut-short"},
        ).raise_for_status()
    page = viewer.page
    viewer.open(panel, "requests?state=finished")
    expect(row(page, RECENT, "cut-short").locator(".badge")).to_have_text("done, length")
    refused = row(page, RECENT, "too-long")
    expect(refused.locator(".badge.warn")).to_have_text("refused 400")
    page.get_by_label("Ending").select_option("refused")
    expect(row(page, RECENT, "cut-short")).to_have_count(0)
    refused.get_by_role("link").click()
    expect(page.locator(".request-title .badge.warn")).to_have_text("refused 400")
    expect(page.locator("main")).to_contain_text(
        re.compile(r"it was refused with 400: the prompt has \d+ tokens")
    )


def test_clients_without_a_key_are_told_apart(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    """By what they say of themselves, which is text."""
    program = "<img src=x onerror=alert(1)>"
    for user in ("alice", "bob"):
        httpx.post(
            f"{fleet.inference_url}/v1/completions",
            json={"prompt": "Once", "max_tokens": 1, "user": user},
            headers={"User-Agent": program},
            timeout=60,
        ).raise_for_status()
    page = viewer.page
    viewer.open(panel, "requests?state=finished")
    mine = f"127.0.0.1, {program}, user alice"
    expect(row(page, RECENT, mine)).to_have_count(1)
    page.get_by_label("Client").select_option(mine)
    expect(row(page, RECENT, program)).to_have_count(1)
    row(page, RECENT, mine).get_by_role("link").first.click()
    expect(page.get_by_text(mine).first).to_be_visible()
