"""One person in front of the panel: a page in real Chromium, and what went wrong on it.

Whatever the page logs as an error fails its test, unless the test has said that it expects it.
Nothing but the loopback can be reached, so a page that needs anything from outside does not work.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    Request,
)

PATIENCE_MS = 15_000
"""For what must happen, on machines that are busy with other things."""
DESK = (1280, 800)
PHONE = (360, 740)
REACHABLE = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost , EXCLUDE *.localhost"
FLAGS = (
    "--no-sandbox",  # in a container Chromium runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules={REACHABLE}",
)
IMPACTS = frozenset({"serious", "critical"})
"""Of accessibility findings, those that fail a test."""


DISTRIBUTED = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first one is the same engine without the pages of a browser's own windows, which take more
processor time than ours."""


def find_chromium() -> Path | None:
    """``$CHROMIUM``, or what a distribution installs."""
    named = os.environ.get("CHROMIUM")
    if named is not None:
        return Path(named)
    return next((Path(found) for found in map(shutil.which, DISTRIBUTED) if found), None)


def launch(playwright: Playwright, executable: Path) -> Browser:
    """A browser without windows; its own profile goes with it."""
    return playwright.chromium.launch(
        executable_path=executable, args=[*FLAGS, "--headless"], timeout=60_000
    )


@attrs.define(eq=False, slots=False)  # Playwright keeps its wrappers of our methods on it
class Viewer:
    """See the module docstring; made by `viewing`."""

    page: Page
    context: BrowserContext
    errors: list[str] = attrs.field(factory=list, init=False)
    """What the page has logged as an error, or thrown."""
    failed: list[str] = attrs.field(factory=list, init=False)
    """Requests without an answer: also those that the page itself gave up."""
    asked: list[str] = attrs.field(factory=list, init=False)
    """URLs of all requests, but for data that is in the page itself."""
    _expected: list[re.Pattern[str]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.page.on("console", self._note_console)
        self.page.on("pageerror", self._note_error)
        self.page.on("requestfailed", self._note_failed)
        self.page.on("request", self._note_request)

    def open(self, base: str, route: str = "fleet") -> None:
        """Go to a page of the panel at ``base``, which ends in a slash, and wait for its heading.

        Where a login is asked for, that is the heading.
        """
        self.page.goto(f"{base}#/{route}")
        self.wait_shown()

    def go(self, route: str) -> None:
        """To another page of the panel, as a link would."""
        self.page.evaluate("hash => { location.hash = hash; }", f"#/{route}")
        self.wait_shown()

    def wait_shown(self) -> None:
        """Until the page has its heading and is not being fetched any more."""
        self.page.wait_for_selector("h1")
        self.page.wait_for_selector("main .skeleton", state="detached")

    def sign_in(self, key: str) -> None:
        """Fill the form and send it; what comes of it is not waited for."""
        self.page.get_by_label("Management key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()

    def expect_error(self, pattern: str) -> None:
        """Errors that match are part of this test."""
        self._expected.append(re.compile(pattern))

    def unexpected_errors(self) -> list[str]:
        return [
            error for error in self.errors if not any(each.search(error) for each in self._expected)
        ]

    def origins(self) -> set[str]:
        """Of all requests."""
        parts = [urlsplit(url) for url in self.asked]
        return {f"{each.scheme}://{each.netloc}" for each in parts}

    def findings(self) -> list[str]:
        """What axe finds of serious impact on the page as it stands."""
        response = Axe().run(self.page).response
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: "
            + "; ".join(node["html"][:160] for node in each["nodes"][:4])
            for each in response["violations"]
            if each["impact"] in IMPACTS
        ]

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _note_error(self, error: Error) -> None:
        self.errors.append(f"thrown: {error.stack or error.message}")

    def _note_failed(self, request: Request) -> None:
        self.failed.append(f"{request.method} {request.url}: {request.failure}")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.asked.append(request.url)


@contextmanager
def viewing(
    browser: Browser,
    *,
    theme: str = "light",
    size: tuple[int, int] = DESK,
    zone: str = "Europe/Berlin",
    is_audited: bool = False,
) -> Iterator[Viewer]:
    """One person with a profile of their own; AssertionError at the end for errors of the page.

    Args:
      is_audited: the page's policy is lifted for the code of axe, which has to run in it.
    """
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light",
        viewport={"width": size[0], "height": size[1]},
        timezone_id=zone,
        locale="en-GB",
        bypass_csp=is_audited,
        reduced_motion="reduce",
    )
    try:
        context.set_default_timeout(PATIENCE_MS)
        viewer = Viewer(context.new_page(), context)
        try:
            yield viewer
        except BaseException as error:
            error.add_note(_account(viewer))
            raise
        unexpected = viewer.unexpected_errors()
        assert not unexpected, "errors on the page:\n" + "\n".join([*unexpected, _account(viewer)])
    finally:
        context.close()


def _account(viewer: Viewer) -> str:
    """What is worth reading when a test has failed."""
    try:
        text = viewer.page.inner_text("body", timeout=1000)[:1500]
    except Error as error:
        text = f"(no page: {error.message[:200]})"
    lines = ["--- the page", viewer.page.url, text, "--- its errors", *viewer.errors]
    return "\n".join([*lines, "--- requests that failed", *viewer.failed])
