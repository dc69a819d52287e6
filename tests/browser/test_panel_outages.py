"""A balancer that goes away under an open page, and comes back."""

from __future__ import annotations

import signal

from fleet import Daemon
from playwright.sync_api import Locator, expect
from viewer import Viewer

CUT = r"ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE)"


def connection_of(viewer: Viewer) -> Locator:
    """Where the page says whether its stream is live."""
    return viewer.page.get_by_role("banner").get_by_role("status")


def balancer(*addresses: str) -> Daemon:
    """At these addresses of inference, management and panel."""
    inference, management, panel = addresses
    arguments = [
        f"--inference-addr={inference}",
        f"--management-addr={management}",
        f"--web-admin-panel-addr={panel}",
    ]
    return Daemon.start("balancer", ["balancer", *arguments, "--log-json"], {})


def test_an_open_page_survives_the_restart_of_its_balancer(viewer: Viewer) -> None:
    viewer.expect_error(CUT)
    daemon = balancer(*["127.0.0.1:0"] * 3)
    try:
        up = daemon.wait_for_log("balancer up")
        addresses = [str(up[name][0]) for name in ("inference", "management", "web_admin_panel")]  # type: ignore[index]
        viewer.open(f"http://{addresses[2]}/")
        expect(connection_of(viewer)).to_have_text("live")
        viewer.page.evaluate("window.isTheSame = true")
        daemon.end()
        expect(viewer.page.get_by_role("alert")).to_contain_text("The stream is lost")
        daemon = balancer(*addresses)
        daemon.wait_for_log("balancer up")
        viewer.page.evaluate("window.dispatchEvent(new Event('online'))")  # it waits longer else
        expect(connection_of(viewer)).to_have_text("live")
        expect(viewer.page.get_by_role("alert")).to_have_count(0)
        assert viewer.page.evaluate("window.isTheSame") is True
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0  # an open page does not hold it up
    finally:
        daemon.end()
