"""Signing in and out of the panel, and what a browser may do without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from fleet import Fleet
from keyed_balancer import KeyedBalancer
from playwright.sync_api import Browser, expect
from viewer import Viewer, viewing

OpenViewer = Callable[..., Viewer]
REFUSED = r"status of 401"


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Without keys, and with nothing to serve."""
    options = ["--web-admin-panel-addr=127.0.0.1:0"]
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def balancer(chromium: Browser) -> Iterator[KeyedBalancer]:
    with KeyedBalancer.start() as balancer:
        yield balancer


def signed_in(viewer: Viewer, balancer: KeyedBalancer, key: str = "ops") -> Viewer:
    viewer.open(balancer.url())
    viewer.sign_in(balancer.secrets[key])
    expect(viewer.page.get_by_role("navigation", name="Pages")).to_be_visible()
    return viewer


def test_a_wrong_key_is_refused_at_its_field_and_then_too_many(
    open_viewer: OpenViewer,
) -> None:
    with KeyedBalancer.start() as balancer:
        viewer = open_viewer()
        viewer.expect_error(REFUSED)
        viewer.expect_error(r"status of 429")
        viewer.open(balancer.url())
        for key, why in (
            ("pt-wrong", "this key is not known here"),
            (balancer.secrets["app"], "the key 'app' is not for management"),
        ):
            viewer.sign_in(key)
            field = viewer.page.get_by_label("Management key")
            expect(field).to_have_attribute("aria-invalid", "true")
            expect(viewer.page.get_by_text(why)).to_be_visible()
        for _ in range(8):
            httpx.post(
                f"{balancer.url()}session", json={"key": "pt-wrong"}, trust_env=False, timeout=60
            )
        viewer.sign_in("pt-wrong")
        expect(viewer.page.get_by_text("Too many tries")).to_be_visible()
        viewer.sign_in(balancer.secrets["ops"])
        expect(viewer.page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert "pt-wrong" not in balancer.daemon.tail(5000)


def test_changes_need_the_token_of_the_session(viewer: Viewer, balancer: KeyedBalancer) -> None:
    signed_in(viewer, balancer)
    viewer.expect_error(r"status of 403")
    statuses = viewer.page.evaluate(
        """async () => {
            const found = await (await fetch("session")).json();
            const ask = async headers => (await fetch("api/v2/agents/a/drain", {
                method: "POST", headers
            })).status;
            return [await ask({}), await ask({"X-CSRF-Token": "wrong"}),
                await ask({"X-CSRF-Token": found.csrf})];
        }"""
    )
    assert statuses == [403, 403, 404]  # there is no such agent
    viewer.expect_error(r"status of 404")


def test_a_page_of_another_origin_can_do_nothing(viewer: Viewer, balancer: KeyedBalancer) -> None:
    """The same host at another port: as near as another site can come to the cookie."""
    signed_in(viewer, balancer)
    panel = balancer.url()
    viewer.expect_error("Failed to load resource|CORS|Content Security Policy|WebSocket")
    viewer.page.goto(balancer.url("inference") + "health")
    said = viewer.page.evaluate(
        """async panel => {
            const tries = {
                read: () => fetch(panel + "session", {credentials: "include"}),
                drain: () => fetch(panel + "api/v2/agents/a/drain", {
                    method: "POST", credentials: "include"
                }),
                socket: () => new Promise((resolve, reject) => {
                    const socket = new WebSocket(
                        panel.replace("http", "ws") + "inference/api/v1/inference_socket");
                    socket.onopen = resolve;
                    socket.onerror = reject;
                }),
            };
            const outcomes = {};
            for (const [name, attempt] of Object.entries(tries)) {
                outcomes[name] = await attempt().then(() => "did it", () => "refused");
            }
            return outcomes;
        }""",
        panel,
    )
    assert said == {"read": "refused", "drain": "refused", "socket": "refused"}


def test_a_name_that_was_rebound_to_the_loopback_gets_nothing_without_keys(
    panel: str,
) -> None:
    with httpx.Client(trust_env=False, timeout=60) as http:
        for path in ("", "session", "info", "api/v2/agents", "inference/v1/models"):
            refused = http.get(panel + path, headers={"Host": "evil.example:8062"})
            assert refused.status_code == 403
            assert "--allowed-host evil.example" in refused.text
            assert http.get(panel + path, headers={"Host": "localhost:1"}).status_code == 200
        assert http.get(panel + "session").json()["required"] is False


def test_an_operator_signs_in_stays_so_and_signs_out(
    viewer: Viewer, balancer: KeyedBalancer, theme: str
) -> None:
    signed_in(viewer, balancer)
    (cookie,) = viewer.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["path"] == "/"
    assert balancer.secrets["ops"] not in str(viewer.context.storage_state())
    viewer.page.reload()
    expect(viewer.page.get_by_role("navigation", name="Pages")).to_be_visible()
    viewer.expect_error(REFUSED)  # the stream may be asked for once more in between
    viewer.page.get_by_role("button", name="Sign out").click()
    expect(viewer.page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert viewer.context.cookies() == []


def test_a_revoked_key_signs_its_people_out_and_others_stay(chromium: Browser) -> None:
    with (
        KeyedBalancer.start() as balancer,
        viewing(chromium) as night,
        viewing(chromium) as ops,
    ):
        signed_in(night, balancer, "night")
        signed_in(ops, balancer, "ops")
        night.expect_error(REFUSED)
        night.go("keys")
        balancer.revoke("night")
        expect(night.page.get_by_role("heading", name="Sign in")).to_be_visible()
        night.sign_in(balancer.secrets["ops"])
        expect(night.page.get_by_role("heading", name="Keys")).to_be_visible()  # where it was
        ops.page.reload()
        expect(ops.page.get_by_role("navigation", name="Pages")).to_be_visible()
