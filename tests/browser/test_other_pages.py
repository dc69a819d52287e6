"""Metrics, Tree, Keys and Logs against real daemons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forked_processes
import httpx
import pytest
from fleet import Daemon, Fleet
from keyed_balancer import KeyedBalancer
from playwright.sync_api import Browser, expect
from viewer import Viewer

from certificates import Authority
from paddler_trio.agent.link.balancer_trust import token_for_pin
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

OpenViewer = Callable[..., Viewer]
PANEL = "--web-admin-panel-addr=127.0.0.1:0"


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Room for an answer that runs as long as a test looks at it."""
    with Fleet.start(agents=1, slots=2, model=None, balancer_options=[PANEL]) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=16384)
        fleet.wait_serving(1)
        yield fleet


@pytest.fixture(scope="module")
def keyed(chromium: Browser) -> Iterator[KeyedBalancer]:
    with KeyedBalancer.start() as balancer:
        yield balancer


@contextmanager
def long_answer(fleet: Fleet, name: str) -> Iterator[None]:
    """A request of this id that runs meanwhile; it is given up at the end."""
    asked = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 7000,
        "ignore_eos": True,
        "stream": True,
    }
    url = f"{fleet.inference_url}/v1/chat/completions"
    with httpx.stream(
        "POST", url, json=asked, headers={"X-Request-Id": name}, timeout=60, trust_env=False
    ) as answer:
        answer.raise_for_status()
        chunks = answer.iter_bytes()  # whose end would close the connection
        next(chunks)
        yield


def complete(fleet: Fleet, number: int) -> None:
    """So many short answers, one after the other."""
    asked = {"messages": [{"role": "user", "content": "What is a cat?"}], "max_tokens": 20}
    with httpx.Client(trust_env=False, timeout=60) as http:
        for _ in range(number):
            http.post(f"{fleet.inference_url}/v1/chat/completions", json=asked).raise_for_status()


# --------------------------------------------------------------------------------------- Metrics


def test_metrics_are_drawn_after_requests_and_told_in_a_table(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    complete(fleet, 3)
    viewer.open(panel, "metrics")
    page = viewer.page
    latency = page.get_by_role("figure", name=re.compile("^Time to first token: p50 .* ms"))
    expect(latency.locator("canvas")).to_be_visible()
    expect(page.get_by_role("region", name="Capacity")).to_contain_text("slots")
    expect(page.get_by_role("region", name="Newest figures")).to_contain_text("TTFT p95")
    box = latency.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    times = page.locator(".u-legend .u-series:first-child .u-value")
    expect(times.first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.wait_for_function(  # the cursors show the same moment
        """() => new Set([...document.querySelectorAll(".u-legend .u-series:first-child .u-value")]
            .map((each) => each.textContent)).size === 1"""
    )
    page.get_by_role("radio", name="Table").check(force=True)
    table = page.get_by_role("region", name="Metrics of the last hour")
    expect(table.get_by_role("row")).not_to_have_count(1)
    expect(table.get_by_role("cell", name=re.compile(r"ms$")).first).to_be_visible()
    asking = page.get_by_role("region", name="What if")
    asking.get_by_label("TTFT p95 within").fill("60")
    asking.get_by_role("button", name="Ask").click()
    expect(asking.get_by_role("status")).to_contain_text("Holds up to", timeout=60_000)


# ------------------------------------------------------------------------------------------ Tree


def test_the_tree_shows_what_runs_while_it_runs(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = viewer.page
    with long_answer(fleet, "story-17"):
        viewer.open(panel, "tree")
        tree = page.get_by_role("tree", name="Tasks")
        expect(tree.get_by_role("treeitem", name=re.compile("^agent a1"))).to_be_visible()
        expect(tree.get_by_role("treeitem", name=re.compile("story-17"))).to_be_visible()
        page.get_by_label("Search for a task").fill("story-17")
        expect(tree.locator(".match")).to_have_count(1)
        assert tree.get_by_role("treeitem").count() < 12
    expect(page.get_by_role("heading", name="No task matches")).to_be_visible()
    page.get_by_label("Search for a task").fill("")
    page.get_by_label("Whose tree").select_option(label="agent a1")
    expect(tree.get_by_role("treeitem", name=re.compile("^balancer link"))).to_be_visible()


def test_the_tree_is_moved_through_by_keys(viewer: Viewer, panel: str) -> None:
    viewer.open(panel, "tree")
    page = viewer.page
    tree = page.get_by_role("tree", name="Tasks")
    root = tree.get_by_role("treeitem").first
    root.focus()
    page.keyboard.press("ArrowLeft")
    expect(tree.get_by_role("treeitem")).to_have_count(1)
    expect(root).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowRight")
    expect(root).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(tree.locator("[tabindex='0']")).to_have_attribute("aria-level", "2")
    page.keyboard.press("End")
    expect(tree.get_by_role("treeitem").last).to_be_focused()


# ------------------------------------------------------------------------------------------ Keys


def test_a_key_is_made_shown_once_used_and_revoked(viewer: Viewer, keyed: KeyedBalancer) -> None:
    page = viewer.page
    viewer.open(keyed.url(), "keys")
    viewer.sign_in(keyed.secrets["ops"])
    table = page.get_by_role("region", name="API keys")
    expect(table.get_by_role("row", name=re.compile("ops.*this session"))).to_be_visible()
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("app")
    dialog.get_by_role("button", name="Make the key").click()
    expect(dialog.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Name").fill("web-1")
    page.keyboard.press("Escape")  # what was typed stays
    dialog.get_by_role("button", name="Make the key").click()
    shown = page.get_by_role("dialog", name="The key web-1").locator("code")
    expect(shown).to_be_visible()
    page.mouse.click(5, 5)  # neither of these says that it is stored
    page.keyboard.press("Escape")
    secret = shown.inner_text()
    assert secret.startswith("pt-")
    page.get_by_role("button", name="I have stored it").click()
    expect(table.get_by_role("row", name=re.compile("web-1"))).to_be_visible()
    assert secret not in page.content()
    models = f"{keyed.url('inference')}v1/models"
    bearer = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(models, headers=bearer, trust_env=False, timeout=60).status_code == 200
    page.get_by_role("button", name="Revoke web-1").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(table.get_by_role("row", name=re.compile("web-1"))).to_have_count(0)
    assert httpx.get(models, headers=bearer, trust_env=False, timeout=60).status_code == 401
    assert secret not in keyed.daemon.tail(5000)


def test_a_key_gets_limits_and_an_end_and_its_use_is_shown(
    viewer: Viewer, keyed: KeyedBalancer
) -> None:
    page = viewer.page
    viewer.open(keyed.url(), "keys")
    viewer.sign_in(keyed.secrets["ops"])
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("metered")
    dialog.get_by_label("Valid").select_option("86400")
    dialog.get_by_label("Requests per minute").fill("none")
    dialog.get_by_role("button", name="Make the key").click()
    expect(dialog.get_by_label("Requests per minute")).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Requests per minute").fill("2")
    dialog.get_by_role("button", name="Make the key").click()
    secret = page.get_by_role("dialog", name="The key metered").locator("code").inner_text()
    page.get_by_role("button", name="I have stored it").click()
    row = page.get_by_role("region", name="API keys").get_by_role("row", name=re.compile("metered"))
    expect(row).to_contain_text("0 of 2 a minute")
    expect(row).to_contain_text(re.compile(r"20\d\d-\d\d-\d\d"))
    asked = {"raw_prompt": 1}  # a wrong request counts as well
    url = f"{keyed.url('inference')}api/v1/continue_from_raw_prompt"
    bearer = {"Authorization": f"Bearer {secret}"}
    answers = [
        httpx.post(url, json=asked, headers=bearer, trust_env=False, timeout=60) for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 429]
    page.reload()
    expect(row).to_contain_text("2 of 2 a minute")


def test_the_audit_log_shows_who_did_what(viewer: Viewer, keyed: KeyedBalancer) -> None:
    page = viewer.page
    viewer.open(keyed.url(), "logs")
    viewer.sign_in(keyed.secrets["ops"])
    page.get_by_role("radio", name="audit").click()
    log = page.get_by_role("region", name="Audit log, the newest first")
    expect(log.get_by_role("row", name=re.compile("ops.*sign")).first).to_be_visible()
    expect(log.get_by_role("row").nth(1)).to_contain_text("from 127.0.0.1")
    page.get_by_label("Search the audit log").fill("no such words")
    expect(page.get_by_role("heading", name="No entry matches")).to_be_visible()
    page.get_by_label("Search the audit log").fill("ops")
    expect(log.get_by_role("row").nth(1)).to_be_visible()
    assert keyed.secrets["ops"] not in page.content()


def test_a_machine_joins_with_a_token_of_the_panel(
    viewer: Viewer, chromium: Browser, tmp_path: Path
) -> None:
    """The line that the panel shows is run as it stands, on this machine."""
    state = f"--state-database=file://{tmp_path}/state.json"
    with KeyedBalancer.start(state) as balancer, ExitStack() as started:
        page = viewer.page
        viewer.open(f"{balancer.url('management')}panel/")
        viewer.sign_in(balancer.secrets["ops"])
        page.get_by_role("button", name="Add an agent").first.click()
        dialog = page.get_by_role("dialog", name="Add an agent")
        dialog.get_by_label("Name").fill("newcomer")
        expect(dialog).to_contain_text("No PIN can be shown: a PIN stands for a certificate")
        dialog.get_by_role("button", name="Make a join token").click()
        command = dialog.locator("code", has_text="paddler-trio join").inner_text()
        found = re.fullmatch(r"paddler-trio join --slots 4 <<< '(ptj1\.\S+)'", command)
        assert found is not None, command
        folder = tmp_path / "agent"
        joined = forked_processes.run("join", f"--state-dir={folder}", stdin=found[1])
        assert joined.returncode == 0, joined.stderr
        agent = Daemon.start("newcomer", ["agent", "--slots=1", f"--state-dir={folder}"], {})
        started.callback(agent.end)
        expect(dialog).to_contain_text("Joined: newcomer.")
        page.keyboard.press("Escape")  # the token is shown only now
        dialog.get_by_role("button", name="Done").click()
        viewer.go("keys")
        table = page.get_by_role("region", name="Credentials of agents")
        expect(table.get_by_role("row", name=re.compile("newcomer.*connected"))).to_be_visible()
        table.get_by_role("button", name="Revoke the agent newcomer").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(table).to_have_count(0)
        secret = found[1].split(".")[2]
        assert secret not in balancer.daemon.tail(5000)
        assert secret not in page.content()


def test_a_machine_joins_with_a_pin_of_the_panel(chromium: Browser, tmp_path: Path) -> None:
    """The digits that a person reads there are tried as an agent tries them."""
    pair = Authority.make(tmp_path / "ca").sign()
    options = (f"--tls-cert={pair.cert}", f"--tls-key={pair.key}")
    state = f"--state-database=file://{tmp_path}/state.json"
    with (
        KeyedBalancer.start(state, *options) as balancer,
        chromium.new_context(ignore_https_errors=True) as context,
    ):
        page = context.new_page()
        address = balancer.url("management").replace("http:", "https:").removesuffix("/")
        page.goto(f"{address}/panel/")
        Viewer(page, context).sign_in(balancer.secrets["ops"])
        page.get_by_role("button", name="Add an agent").first.click()
        dialog = page.get_by_role("dialog", name="Add an agent")
        dialog.get_by_role("button", name="Show a PIN").click()
        shown = dialog.get_by_text(re.compile(r"It asks for the PIN of \S+: \d{3} \d{3}$"))
        found = re.fullmatch(r"It asks for the PIN of (\S+): (\d{3}) (\d{3})", shown.inner_text())
        assert found is not None
        pin = found[2] + found[3]
        token = token_for_pin(
            pin,
            address,
            agent="newcomer",
            balancer=found[1],
            ca_file=tmp_path / "ca.pem",
            tls=ClientTls(),
        )
        assert token.certificate_hash is not None
        assert pin not in balancer.daemon.tail(5000)
        dialog.get_by_role("button", name="Done").click()
        page.get_by_role("button", name="Add an agent").first.click()
        expect(dialog).to_contain_text("Show a PIN")
        assert f"{found[2]} {found[3]}" not in page.content()


def test_without_a_key_file_the_page_says_how_to_have_one(viewer: Viewer, panel: str) -> None:
    viewer.open(panel, "keys")
    expect(viewer.page.get_by_role("heading", name="There is no key file")).to_be_visible()
    expect(viewer.page.get_by_text("--api-key-file")).to_be_visible()
    expect(viewer.page.get_by_role("button", name="New key")).to_have_count(0)


# ------------------------------------------------------------------------------------------ Logs


def test_an_agent_that_is_killed_shows_in_the_logs(
    viewer: Viewer, panel: str, fleet: Fleet
) -> None:
    """Under a request, which another agent goes on with."""
    viewer.open(panel, "logs")
    page = viewer.page
    first = f"{fleet.management_url}/api/v2/agents/{fleet.agent_view('a1')['id']}/drain"
    httpx.post(first, trust_env=False, timeout=60).raise_for_status()
    fleet.start_agent("mayfly", slots=1)
    fleet.wait_until(
        lambda view: any(
            each["name"] == "mayfly" and each["is_accepting"] for each in view["agents"]
        ),
        what="the second agent serves",
    )
    with long_answer(fleet, "story-18"):
        httpx.delete(first, trust_env=False, timeout=60).raise_for_status()
        fleet.agents["mayfly"].end()
        line = page.get_by_role("listitem").filter(has_text="agent lost under a request")
        expect(line).to_contain_text("story-18")
    line.get_by_role("button").click()
    expect(line.locator(".log-detail")).to_contain_text("mayfly")
    page.get_by_label("Search the logs").fill("no such words")
    expect(page.get_by_role("heading", name="No entry matches")).to_be_visible()
    page.get_by_label("Search the logs").fill("mayfly")
    expect(line).to_be_visible()
    page.get_by_role("radio", name=re.compile("^errors")).check(force=True)
    expect(line).to_have_count(0)
