"""The page Timeline: what runs is on it, can be found by every means, and is drawn smoothly."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from fabricated_fleet import FabricatedFleet
from fabricated_panel import fabricated_panel
from fleet import Fleet
from playwright.sync_api import Browser, Locator, Page, expect
from singing import give_long_contexts, singing
from viewer import PHONE, Viewer

from paddler_trio.balancer.panel.panel_assets import FOLDER

OpenViewer = Callable[..., Viewer]
GONE_MS = 30_000

FRAMES = """milliseconds => new Promise(done => {
    let frames = 0;
    const began = performance.now();
    const count = now => {
        frames += 1;
        if (now - began < milliseconds) requestAnimationFrame(count);
        else done(frames * 1000 / (now - began));
    };
    requestAnimationFrame(count);
})"""


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Two agents whose contexts have room for long answers."""
    panel = "--web-admin-panel-addr=127.0.0.1:0"
    with Fleet.start(agents=2, model=None, balancer_options=[panel]) as fleet:
        give_long_contexts(fleet)
        yield fleet


def chart(page: Page) -> Locator:
    return page.get_by_role("application", name="Timeline of the slots")


def selected(page: Page) -> Locator:
    """What screen readers are told about."""
    return chart(page).locator("[aria-live]")


def busy_slot(page: Page, fleet: Fleet) -> str:
    """The name of the agent that has the only request."""
    head = page.get_by_role("button", name=re.compile(r"^a\d, 1 of 4 slots busy$"))
    expect(head).to_be_visible()
    return str(head.get_attribute("aria-label"))[:2]


def test_by_keyboard_alone_to_a_running_request(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    viewer.open(panel, "timeline")
    with singing(fleet, "soprano"):
        busy_slot(page, fleet)
        for _ in range(40):
            page.keyboard.press("Tab")
            if chart(page).evaluate("each => each === document.activeElement"):
                break
        expect(chart(page)).to_be_focused()
        for _ in range(14):
            page.keyboard.press("ArrowDown")
            if "client soprano, slot" in selected(page).inner_text():
                break  # not its moment in the queue
        expect(selected(page)).to_contain_text("client soprano, slot")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"#/requests/\d+$"))
        expect(page.get_by_role("rowheader", name="Decode")).to_be_visible()


def test_keys_move_through_time(viewer: Viewer, panel: str) -> None:
    page = viewer.page
    viewer.open(panel, "timeline")
    chart(page).focus()
    page.keyboard.press("Space")
    follow = page.get_by_role("button", name="Follow")
    expect(follow).to_be_visible()
    page.keyboard.press("End")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Shift+ArrowLeft")
    expect(follow).to_be_visible()
    page.keyboard.press("Space")
    page.keyboard.press("-")
    expect(page.get_by_role("radiogroup", name="Time in sight").locator(".on")).to_have_count(0)
    page.keyboard.press("+")
    expect(page.get_by_label("5 min")).to_be_checked()
    page.keyboard.press("ArrowDown")
    expect(selected(page)).to_have_text("The queue: 0 requests waiting.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Queue, ")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Escape")
    expect(selected(page)).to_have_text("")


def test_the_pointer_shows_and_opens_a_request(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    viewer.open(panel, "timeline")
    with singing(fleet, "alto"):
        agent = busy_slot(page, fleet)
        page.get_by_label("10 s").check(force=True)
        head = page.get_by_role("button", name=f"{agent}, ").bounding_box()
        plot = page.locator(".timeline-plot").bounding_box()
        assert head is not None
        assert plot is not None
        x = plot["x"] + plot["width"] * 0.975
        y = head["y"] + head["height"] + 9  # the first slot is below the agent's name
        expect(page.locator(".timeline-count", has_text="1/4")).to_be_visible()
        tip = page.locator(".timeline-tip")
        for _ in range(50):
            page.mouse.move(x, y)
            page.mouse.move(x + 1, y)
            if tip.count():
                break
            page.wait_for_function("new Promise(requestAnimationFrame)")
        expect(tip).to_contain_text(f"slot 0 of {agent}")
        expect(tip).to_contain_text("alto")
        page.mouse.wheel(-300, 0)
        expect(page.get_by_role("button", name="Follow")).to_be_visible()
        page.get_by_role("button", name="Follow").click()
        page.mouse.move(x, y)
        page.keyboard.down("Control")
        page.mouse.wheel(0, 200)
        page.keyboard.up("Control")
        expect(page.get_by_label("10 s")).not_to_be_checked()
        page.mouse.click(x, y)
        expect(page).to_have_url(re.compile(r"#/requests/\d+$"))


def test_the_table_says_the_same(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    viewer.open(panel, "timeline")
    with singing(fleet, "tenor"):
        busy_slot(page, fleet)
        page.get_by_label("Table").check(force=True)
        row = (
            page.get_by_role("row").filter(has_text="tenor").filter(has_text=re.compile(r"slot \d"))
        )
        expect(row).to_contain_text("Decode")
    expect(row).not_to_contain_text("Decode")


def test_no_serious_finding_on_the_timeline(
    open_viewer: OpenViewer, theme: str, panel: str
) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    viewer.open(panel, "timeline")
    expect(viewer.page.get_by_role("button", name=re.compile("^a1, "))).to_be_visible()
    assert viewer.findings() == []
    viewer.page.get_by_label("Table").check(force=True)
    expect(viewer.page.get_by_role("region", name="What happened")).to_be_visible()
    assert viewer.findings() == []


def test_a_telephone_shows_the_timeline_without_scrolling_sideways(
    open_viewer: OpenViewer, panel: str
) -> None:
    viewer = open_viewer(size=PHONE)
    viewer.open(panel, "timeline")
    expect(viewer.page.get_by_role("button", name=re.compile("^a1, "))).to_be_visible()
    widths = viewer.page.evaluate(
        "[document.documentElement, document.querySelector('main')]"
        ".map(each => each.scrollWidth - each.clientWidth)"
    )
    assert widths == [0, 0]


@pytest.mark.slow  # a rate is measured; a busy machine fails it
def test_16000_slots_and_2000_events_a_second_at_30_frames(chromium: Browser) -> None:
    fleet = FabricatedFleet(agents=500, slots=32, load=0.9, churn=0.035)
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        with fabricated_panel(FOLDER, fleet) as url:
            page.goto(f"{url}#/timeline")
            head = page.get_by_role("button", name="gpu-02, ")
            expect(head).to_have_attribute("aria-expanded", "false")
            expect(head).to_contain_text("/32")
            head.click()
            expect(head).to_have_attribute("aria-expanded", "true")
            page.get_by_label("10 s").check(force=True)  # every frame is another picture
            began = fleet.seq
            per_second = 0.0
            for _ in range(3):  # a machine that is busy with other things does not count
                per_second = max(per_second, page.evaluate(FRAMES, 2000))
                if per_second >= 30:
                    break
            ticks = fleet.seq - began
            assert ticks >= 4, "too little happened while frames were counted"
            assert fleet.changes >= 450 * ticks, "fewer than 2,000 events a second"
            assert per_second >= 30, per_second
    finally:
        context.close()


def test_an_agent_that_is_killed_is_shown_as_gone(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    viewer.open(panel, "timeline")
    head = page.get_by_role("button", name=re.compile("^a2, "))
    expect(head).to_contain_text("/4")
    fleet.agents["a2"].signal(signal.SIGKILL)
    expect(head).to_contain_text("gone", timeout=GONE_MS)
