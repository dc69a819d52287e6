"""Real Chromium against real daemons: a fleet and a browser for each file, a page for each test.

Fleets come from the integration tests, whose folder is put on the path for it. Playwright's loop
occupies the thread that it was started in, so nothing in this folder is async, and it ends with
each file: the tests of other folders run loops of their own.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from fleet import Fleet  # found only now
from playwright.sync_api import Browser, expect, sync_playwright
from viewer import PATIENCE_MS, Viewer, find_chromium, launch, viewing

from paddler_trio.balancer.panel.panel_assets import INDEX, PanelAssets

OpenViewer = Callable[..., Viewer]
PANEL = "--web-admin-panel-addr=127.0.0.1:0"

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser of this file."""
    executable = find_chromium()
    if executable is None or not executable.exists():
        problem = "no Chromium: apt-get install chromium-headless-shell, or set CHROMIUM to one"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    if INDEX not in PanelAssets.read().files:
        pytest.fail("the panel is not built: run `make panel`")
    with sync_playwright() as playwright:
        browser = launch(playwright, executable)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """A balancer with a panel of its own port, and one agent with four slots; a file that wants
    another one has a fixture of this name. The browser comes first: it is what may be missing."""
    with Fleet.start(agents=1, slots=4, balancer_options=[PANEL]) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def panel(fleet: Fleet) -> str:
    """Where the panel of the fleet is."""
    return panel_of(fleet)


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs in both."""
    return str(request.param)


@pytest.fixture
def open_viewer(chromium: Browser) -> Iterator[OpenViewer]:
    """Makes viewers, each with a profile of its own; see `viewing`."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(viewing(chromium, **options))


@pytest.fixture
def viewer(open_viewer: OpenViewer, request: pytest.FixtureRequest) -> Viewer:
    """One of them, in the test's theme."""
    if "theme" not in request.fixturenames:
        return open_viewer()
    return open_viewer(theme=request.getfixturevalue("theme"))


def panel_of(fleet: Fleet) -> str:
    """The URL of the panel's own port, with its slash."""
    addresses = fleet.balancer.wait_for_log("balancer up")["web_admin_panel"]
    assert isinstance(addresses, list)
    return f"http://{addresses[0]}/"
