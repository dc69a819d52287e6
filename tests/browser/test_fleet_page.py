"""The page Fleet: with real daemons, and a fabricated fleet where no real one is large enough."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from fabricated_fleet import FabricatedFleet
from fabricated_panel import fabricated_panel
from fleet import Fleet
from playwright.sync_api import Browser, Locator, Page, expect
from viewer import PHONE, Viewer

from paddler_trio.balancer.panel.panel_assets import FOLDER

OpenViewer = Callable[..., Viewer]
WINDOWS = 6
"""Tries to see the frames of the page, and not those of a machine that is busy with others."""
GONE_MS = 30_000

FRAMES = """milliseconds => new Promise(done => {
    let frames = 0, longest = 0, last = performance.now();
    const began = last;
    const count = now => {
        frames += 1;
        longest = Math.max(longest, now - last);
        last = now;
        if (now - began < milliseconds) requestAnimationFrame(count);
        else done({perSecond: frames * 1000 / (now - began), longest});
    };
    requestAnimationFrame(count);
})"""


def card(page: Page, agent: str) -> Locator:
    return page.get_by_role("article", name=f"Agent {agent}", exact=True)


def test_an_agent_comes_and_is_killed_while_it_is_watched(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    viewer.open(panel)
    expect(card(viewer.page, "a1")).to_contain_text("serving")
    late = fleet.start_agent("late", slots=2)
    expect(card(viewer.page, "late")).to_contain_text("serving", timeout=GONE_MS)
    late.signal(signal.SIGKILL)
    expect(card(viewer.page, "late")).to_have_count(0, timeout=GONE_MS)
    expect(card(viewer.page, "a1")).to_contain_text("serving")
    expect(viewer.page.get_by_role("alert")).to_have_count(0)


def test_a_drained_agent_says_so_and_gets_requests_again(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    viewer.open(panel)
    agent = card(viewer.page, "a1")
    agent.get_by_role("button", name="Drain a1", exact=True).click()
    expect(agent).to_contain_text("drained")
    assert not fleet.agent_view("a1")["is_accepting"]
    agent.get_by_role("button", name="Undrain a1").click()
    expect(agent).to_contain_text("serving")
    assert fleet.agent_view("a1")["is_accepting"]


def test_a_request_is_where_it_is(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    viewer.open(panel)
    viewer.page.get_by_role("button", name="As text").click()
    with long_answers(fleet, client="watched", count=3):
        slots = viewer.page.get_by_role("region", name="Agents and the requests in their slots")
        expect(slots.get_by_role("link", name="watched")).to_have_count(3)
        expect(card(viewer.page, "a1")).to_contain_text("3 of 4")
        expect(card(viewer.page, "a1").get_by_role("link").first).to_contain_text("watched")
    expect(slots.get_by_role("link", name="watched")).to_have_count(0)


def test_the_command_for_another_agent_has_what_was_entered(viewer: Viewer, fleet: Fleet) -> None:
    viewer.open(f"{fleet.management_url}/panel/")
    viewer.page.get_by_role("button", name="Add an agent").click()
    dialog = viewer.page.get_by_role("dialog", name="Add an agent")
    expect(dialog).to_contain_text(
        f"paddler-trio agent --management-addr {fleet.management} --slots 4"
    )
    expect(dialog).to_contain_text("only agents on the balancer's own machine reach it")
    dialog.get_by_label("Name").fill("rack-7")
    dialog.get_by_label("Slots").fill("16")
    expect(dialog).to_contain_text("--slots 16 --name rack-7")
    dialog.get_by_label("Slots").fill("5000")
    expect(dialog.get_by_label("Slots")).to_have_attribute("aria-invalid", "true")
    expect(dialog).not_to_contain_text("--slots")
    viewer.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_metadata_of_the_model_and_its_template(viewer: Viewer, panel: str) -> None:
    viewer.open(panel)
    viewer.page.get_by_role("button", name="Model metadata of a1").click()
    dialog = viewer.page.get_by_role("dialog")
    expect(dialog).to_contain_text("general.architecture")
    dialog.get_by_label("Show only pairs with this text").fill("bos_token")
    expect(dialog).to_contain_text("tokenizer.ggml.bos_token_id")
    expect(dialog).not_to_contain_text("general.architecture")
    dialog.get_by_role("tab", name="Chat template").click()
    expect(dialog.get_by_role("tabpanel")).to_contain_text("{%")


@pytest.mark.parametrize("agents", [0, 6])
def test_a_telephone_shows_everything_without_scrolling_sideways(
    open_viewer: OpenViewer, agents: int
) -> None:
    viewer = open_viewer(size=PHONE)
    fleet = FabricatedFleet(agents=agents, load=0.8 if agents else 0, with_trouble=True)
    with fabricated_panel(FOLDER, fleet) as url:
        viewer.open(url)
        text = "No agent yet" if agents == 0 else "6 agents"
        expect(viewer.page.get_by_text(text, exact=True)).to_be_visible()
        widths = viewer.page.evaluate(
            "[document.documentElement, document.querySelector('main')]"
            ".map(each => each.scrollWidth - each.clientWidth)"
        )
        assert widths == [0, 0]
        viewer.page.get_by_role("button", name="More").click()
        expect(viewer.page.get_by_role("link", name="Metrics")).to_be_visible()


def test_no_serious_accessibility_finding(open_viewer: OpenViewer, theme: str) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    with fabricated_panel(FOLDER, FabricatedFleet(with_trouble=True, load=1.3)) as url:
        viewer.open(url)
        viewer.page.get_by_role("button", name="As text").click()
        expect(card(viewer.page, "gpu-04")).to_contain_text("The disk of the model cache is full")
        assert viewer.findings() == []
        card(viewer.page, "gpu-04").get_by_role("button", name="Details").click()
        expect(viewer.page.get_by_role("dialog")).to_contain_text("tries again by itself")
        assert viewer.findings() == []


def test_many_agents_are_found_sorted_and_drawn_only_in_sight(viewer: Viewer) -> None:
    with fabricated_panel(FOLDER, FabricatedFleet(agents=100, slots=8)) as url:
        viewer.open(url)
        page = viewer.page
        expect(page.get_by_role("heading", name="100 agents")).to_be_visible()
        table = page.get_by_role("region", name="Agents", exact=True)
        rows = table.locator("tbody tr:not(.space)")
        expect(rows.first).to_contain_text("gpu-01")
        page.get_by_label("Order of the agents").select_option(label="newest link first")
        expect(rows.first).to_contain_text("gpu-01")  # the one with the youngest link
        page.get_by_label("Show only agents with these words").fill("coder rack=r1")
        expect(page.get_by_role("heading", name="100 agents, 8 shown")).to_be_visible()
        page.get_by_label("Show only agents with these words").fill("")
        page.get_by_title("Cards").click()
        cards = page.get_by_role("article", name="Agent gpu-")
        expect(cards.first).to_be_visible()
        assert cards.count() < 60


@pytest.mark.slow  # a rate is measured; a busy machine fails it
def test_500_agents_of_32_slots_at_30_frames_a_second(chromium: Browser) -> None:
    fleet = FabricatedFleet(agents=500, slots=32, load=0.9, churn=0.035)
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        with fabricated_panel(FOLDER, fleet) as url:
            page.goto(url)
            expect(page.get_by_text("14.4 k", exact=True)).to_be_visible()
            began = fleet.seq
            measured = [page.evaluate(FRAMES, 1500)]
            while measured[-1]["perSecond"] < 30 and len(measured) < WINDOWS:
                measured.append(page.evaluate(FRAMES, 1500))
            assert measured[-1]["perSecond"] >= 30, measured
            assert fleet.seq > began, "nothing happened while frames were counted"
    finally:
        context.close()


@contextmanager
def long_answers(fleet: Fleet, *, client: str, count: int) -> Iterator[None]:
    """So many clients that are answered for as long as the block lasts, one answer after the other:
    each ends with its context."""

    def ask(began: threading.Event) -> None:
        while not over.is_set():
            listen(began)

    def listen(began: threading.Event) -> None:
        with httpx.stream(
            "POST",
            f"{fleet.inference_url}/api/v2/generate",
            headers={"X-Paddler-Client": client},
            json={"prompt": {"Text": {"text": "Once"}}, "sampling": {"ignore_eos": True}},
            timeout=60,
            trust_env=False,
        ) as answer:
            for _ in answer.iter_raw():
                began.set()
                if over.wait(0.01):
                    return

    over = threading.Event()
    begun = [threading.Event() for _ in range(count)]
    readers = [threading.Thread(target=ask, args=(each,)) for each in begun]
    for reader in readers:
        reader.start()
    try:
        assert all(each.wait(30) for each in begun)
        yield
    finally:
        over.set()
        for reader in readers:
            reader.join()
