"""What the panel may cost: bytes, requests and time until it shows something."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fleet import Fleet
from playwright.sync_api import Browser, Response
from viewer import Viewer

OpenViewer = Callable[..., Viewer]
FIRST_LOAD_BYTES = 60_000
"""Compressed: the frame and the first page."""
PAGE_LOAD_BYTES = 150_000
"""Compressed: the same and any one other page, which is what a link into it fetches at most."""
FIRST_LOAD_REQUESTS = 16
LONG_TASK_MS = 200.0
FIRST_PAINT_MS = 500.0
WATCH = """
    window.longTasks = [];
    new PerformanceObserver(list => {
        for (const entry of list.getEntries()) {
            window.longTasks.push(Math.round(entry.duration));
        }
    }).observe({entryTypes: ["longtask"]});
"""
PAGES = (
    *("machines", "timeline", "requests", "model", "prompt", "metrics", "usage", "tree", "keys"),
    "logs",
)


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Files cost the same without agents."""
    options = ["--web-admin-panel-addr=127.0.0.1:0"]
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        yield fleet


def test_the_first_load_of_every_page_stays_within_its_budget(
    open_viewer: OpenViewer, panel: str
) -> None:
    viewer = open_viewer()
    files: dict[str, int] = {}

    def note(response: Response) -> None:
        path = response.url.removeprefix(panel)
        if path.startswith("assets/") or path.partition("#")[0] == "":
            files[path] = int(response.headers["content-length"])
            if path.endswith((".js", ".css", ".svg")) or path == "":
                assert response.headers["content-encoding"] == "gzip"

    viewer.page.on("response", note)
    viewer.open(panel)
    first_bytes, first_requests = sum(files.values()), len(viewer.asked)
    loads: dict[str, int] = {}
    for page in PAGES:
        before = sum(files.values())
        viewer.go(page)
        loads[page] = first_bytes + sum(files.values()) - before
    print({"first_bytes": first_bytes, "first_requests": first_requests, "loads": loads})
    assert first_bytes <= FIRST_LOAD_BYTES, files
    assert first_requests <= FIRST_LOAD_REQUESTS, viewer.asked
    assert max(loads.values()) <= PAGE_LOAD_BYTES, loads


@pytest.mark.slow  # times are measured: a machine that is busy with other things fails it
def test_it_shows_soon_and_no_page_holds_the_browser_up(
    open_viewer: OpenViewer, panel: str
) -> None:
    """The best of three: a machine that is busy with other things makes every task long."""
    tries: list[dict[str, Any]] = []
    for _ in range(3):
        viewer = open_viewer()
        viewer.page.add_init_script(WATCH)
        viewer.open(panel)
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paint_ms = viewer.page.evaluate(paint)
        for page in PAGES:
            viewer.go(page)
        longest_ms = max(viewer.page.evaluate("window.longTasks"), default=0)
        tries.append({"paint_ms": paint_ms, "longest_ms": longest_ms})
        viewer.page.close()
        if paint_ms <= FIRST_PAINT_MS and longest_ms <= LONG_TASK_MS:
            break
    print(tries)
    assert tries[-1]["paint_ms"] <= FIRST_PAINT_MS, tries
    assert tries[-1]["longest_ms"] <= LONG_TASK_MS, tries


def test_a_second_visit_fetches_no_file_again(viewer: Viewer, panel: str) -> None:
    viewer.open(panel)
    viewer.page.goto("about:blank")
    fetched: list[str] = []
    viewer.page.on(
        "response",
        lambda response: (
            fetched.append(f"{response.status} {response.url}")
            if "/assets/" in response.url and not response.from_service_worker
            else None
        ),
    )
    viewer.open(panel)
    sizes = viewer.page.evaluate(
        """performance.getEntriesByType("resource")
            .filter(each => each.name.includes("/assets/"))
            .map(each => [each.name, each.transferSize])"""
    )
    assert sizes
    assert not [each for each in sizes if each[1] > 0], fetched
