"""Every page of the panel, in both themes: it shows without errors, asks nobody else, and can be
used by everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from fleet import Fleet
from keyed_balancer import KeyedBalancer
from playwright.sync_api import Browser, expect
from prefix_proxy import proxying
from viewer import DESK, PHONE, Viewer

OpenViewer = Callable[..., Viewer]
PAGES = (
    "fleet",
    "machines",
    "timeline",
    "requests",
    "model",
    "prompt",
    "metrics",
    "usage",
    "tree",
    "keys",
    "logs",
)
WIDE = (3840, 2160)
STYLES = """[...document.styleSheets].filter(sheet => !sheet.disabled)
    .map(sheet => sheet.href.split("/").pop().split("-")[0])"""
"""The files of styles that are in force, without their digests."""


@pytest.fixture(scope="module")
def balancer(chromium: Browser) -> Iterator[KeyedBalancer]:
    with KeyedBalancer.start() as balancer:
        yield balancer


def test_no_page_has_a_serious_accessibility_finding(
    open_viewer: OpenViewer, panel: str, theme: str
) -> None:
    size = PHONE if theme == "dark" else DESK
    viewer = open_viewer(theme=theme, size=size, is_audited=True)
    viewer.open(panel)
    findings = {}
    for page in PAGES:
        viewer.go(page)
        findings[page] = viewer.findings()
    assert not {page: found for page, found in findings.items() if found}


def test_the_login_has_no_serious_accessibility_finding(
    open_viewer: OpenViewer, balancer: KeyedBalancer, theme: str
) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    viewer.open(balancer.url())
    assert viewer.findings() == []
    viewer.expect_error("status of 401")
    viewer.sign_in("pt-wrong")
    expect(viewer.page.get_by_label("Management key")).to_have_attribute("aria-invalid", "true")
    assert viewer.findings() == []


def test_every_page_fits_its_window_wears_its_own_styles_and_asks_nobody_else(
    viewer: Viewer, panel: str
) -> None:
    viewer.open(panel)
    wider = {}
    for width, height in (PHONE, WIDE):
        viewer.page.set_viewport_size({"width": width, "height": height})
        for page in PAGES:
            viewer.go(page)
            needed = viewer.page.evaluate("document.documentElement.scrollWidth")
            if needed > width:
                wider[page, width] = needed
            styles = viewer.page.evaluate(STYLES)
            assert set(styles) - {"index"} <= {page}, "two pages may have a class of one name"
    assert not wider
    assert viewer.origins() == {panel.rstrip("/")}


def test_the_page_allows_no_inline_code_and_no_frame(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    for base in (panel, f"{fleet.management_url}/panel/"):
        policy = httpx.get(base, trust_env=False, timeout=60).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    viewer.open(panel)
    viewer.expect_error("Content Security Policy")
    ran = viewer.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ranInline = true";
            document.body.append(script);
            return window.ranInline === true;
        }"""
    )
    assert ran is False


@pytest.mark.parametrize("at", ["own port", "management port"])
def test_it_works_below_any_path_of_a_proxy(
    viewer: Viewer, fleet: Fleet, panel: str, at: str
) -> None:
    upstream = panel if at == "own port" else f"{fleet.management_url}/panel/"
    with proxying(upstream, prefix="/gpu/ops/") as base:
        viewer.open(base)
        expect(viewer.page.get_by_role("banner").get_by_role("status")).to_have_text("live")
        for page in PAGES:
            viewer.go(page)
        assert all(url.startswith(base) for url in viewer.asked), viewer.asked
        viewer.page.goto("about:blank")


def test_a_session_works_below_a_path_and_is_secure_where_the_proxy_has_tls(
    viewer: Viewer, balancer: KeyedBalancer
) -> None:
    upstream = balancer.url("management") + "panel/"
    with proxying(upstream, prefix="/gpu/", tls=True) as base:
        viewer.open(base)
        viewer.sign_in(balancer.secrets["ops"])
        expect(viewer.page.get_by_role("navigation", name="Pages")).to_be_visible()
        (cookie,) = viewer.context.cookies()
        assert cookie["path"] == "/gpu"
        assert cookie["secure"]
        viewer.expect_error("status of 401")  # the stream may be asked for once more in between
        viewer.page.get_by_role("button", name="Sign out").click()
        expect(viewer.page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert viewer.context.cookies() == []


def test_the_management_port_has_the_panel_without_its_slash_too(
    viewer: Viewer, fleet: Fleet
) -> None:
    viewer.open(f"{fleet.management_url}/panel")
    assert viewer.page.url == f"{fleet.management_url}/panel/#/fleet"


def test_everywhere_can_be_gone_to_by_the_keyboard(
    open_viewer: OpenViewer, panel: str, theme: str
) -> None:
    viewer = open_viewer(theme=theme, is_audited=True)
    viewer.open(panel)
    page = viewer.page
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Requests", level=1)).to_be_visible()
    page.get_by_label("Text").press("/")
    page.get_by_label("Text").press("g")
    page.get_by_label("Text").press("f")
    expect(page.get_by_label("Text")).to_have_value("/gf")
    page.get_by_label("Text").fill("")
    page.get_by_role("heading", name="Requests", level=1).click()
    page.locator("main").focus()
    page.keyboard.press("/")
    places = page.get_by_role("listbox", name="Places").get_by_role("option")
    expect(places.first).to_be_visible()
    assert viewer.findings() == []
    page.keyboard.type("change def")
    expect(places).to_have_text(["Change defaultdeployment"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Edit default")).to_be_visible()
    page.locator("main").focus()
    page.keyboard.press("/")
    page.keyboard.type("req-17")
    expect(places).to_have_text(["Request req-17id or number"])
    page.keyboard.press("Escape")
    expect(places).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Problems", level=1)).to_be_visible()
