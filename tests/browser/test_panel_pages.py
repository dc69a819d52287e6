"""Every page of the panel, in both themes: it shows without errors, asks nobody else, and can be
used by everybody."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from fleet import Fleet
from keyed_balancer import KeyedBalancer
from playwright.sync_api import expect
from prefix_proxy import proxying
from viewer import PHONE, Viewer

OpenViewer = Callable[..., Viewer]
PAGES = ("fleet", "timeline", "requests", "model", "prompt", "metrics", "tree", "keys", "logs")
WIDE = (3840, 2160)


@pytest.mark.parametrize("size", [None, PHONE], ids=["desk", "phone"])
def test_no_page_has_a_serious_accessibility_finding(
    open_viewer: OpenViewer, panel: str, theme: str, size: tuple[int, int] | None
) -> None:
    sized = {} if size is None else {"size": size}
    viewer = open_viewer(theme=theme, is_audited=True, **sized)
    viewer.open(panel)
    findings = {}
    for page in PAGES:
        viewer.go(page)
        findings[page] = viewer.findings()
    assert not {page: found for page, found in findings.items() if found}


def test_the_login_has_no_serious_accessibility_finding(
    open_viewer: OpenViewer, theme: str
) -> None:
    with KeyedBalancer.start() as balancer:
        viewer = open_viewer(theme=theme, is_audited=True)
        viewer.open(balancer.url())
        assert viewer.findings() == []
        viewer.expect_error("status of 401")
        viewer.sign_in("pt-wrong")
        expect(viewer.page.get_by_label("Management key")).to_have_attribute("aria-invalid", "true")
        assert viewer.findings() == []


def test_nothing_comes_from_anywhere_else(viewer: Viewer, panel: str) -> None:
    viewer.open(panel)
    for page in PAGES:
        viewer.go(page)
    assert viewer.origins() == {panel.rstrip("/")}


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "4K"])
def test_no_page_is_wider_than_its_window(
    open_viewer: OpenViewer, panel: str, size: tuple[int, int]
) -> None:
    viewer = open_viewer(size=size)
    viewer.open(panel)
    wider = {}
    for page in PAGES:
        viewer.go(page)
        width = viewer.page.evaluate("document.documentElement.scrollWidth")
        if width > size[0]:
            wider[page] = width
    assert not wider


def test_the_page_allows_no_inline_code_and_no_frame(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    for base in (panel, f"{fleet.management_url}/panel/"):
        policy = httpx.get(base, trust_env=False).headers["content-security-policy"]
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
    viewer: Viewer,
) -> None:
    with (
        KeyedBalancer.start() as balancer,
        proxying(balancer.url("management") + "panel/", prefix="/gpu/", tls=True) as base,
    ):
        viewer.open(base)
        viewer.sign_in(balancer.secrets["ops"])
        expect(viewer.page.get_by_role("navigation", name="Pages")).to_be_visible()
        (cookie,) = viewer.context.cookies()
        assert cookie["path"] == "/gpu"
        assert cookie["secure"]
        viewer.page.get_by_role("button", name="Sign out").click()
        expect(viewer.page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert viewer.context.cookies() == []


def test_the_management_port_has_the_panel_without_its_slash_too(
    viewer: Viewer, fleet: Fleet
) -> None:
    viewer.open(f"{fleet.management_url}/panel")
    assert viewer.page.url == f"{fleet.management_url}/panel/#/fleet"
