"""The page of machines: facts, orders to engines, logs over the link, and what is in the cache."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import BUNDLED_MODEL, Fleet, children, is_engine
from playwright.sync_api import Browser, Page, expect
from viewer import Viewer

from no_tls import NO_TLS

GPU = "NVIDIA <b>H200</b>, 570.124.06, 143771, 1024, 37, 41, 121.50"


@pytest.fixture(scope="module")
def fleet(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two agents, on machines that say they have a GPU."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{GPU}'\n")
    program.chmod(0o755)
    env = {"PATH": f"{folder}:{os.environ['PATH']}"}
    options = ["--web-admin-panel-addr=127.0.0.1:0"]
    with Fleet.start(agents=2, slots=2, balancer_options=options, env=env) as fleet:
        fleet.balancer.wait_for_line("H200")
        yield fleet


def audit(fleet: Fleet) -> list[Any]:
    answer = httpx.get(f"{fleet.management_url}/api/v2/audit", verify=NO_TLS, timeout=60)
    entries: list[Any] = answer.raise_for_status().json()["entries"]
    return entries


def open_machine(viewer: Viewer, panel: str, name: str) -> Page:
    page = viewer.page
    viewer.open(panel, "machines")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=f"Machine {name}")).to_be_visible()
    return page


def test_machines_are_listed_with_what_they_say(viewer: Viewer, panel: str) -> None:
    page = viewer.page
    viewer.open(panel, "machines")
    rows = page.get_by_role("region", name="Machines").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("NVIDIA <b>H200</b>")
    expect(rows.first).to_contain_text("37 % busy, 41 °C, 122 W")
    assert viewer.findings() == []
    open_machine(viewer, panel, "a1")
    expect(page.get_by_text("driver 570.124.06")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("Memory free")
    expect(page.locator(".facts")).to_contain_text("ggml")
    assert viewer.findings() == []


def test_a_model_is_unloaded_and_loaded_again(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = open_machine(viewer, panel, "a1")
    engines = page.get_by_role("region", name="Engines")
    page.get_by_role("button", name="Unload the model of a1").click()
    page.get_by_role("button", name="Unload", exact=True).click()
    expect(engines).to_contain_text("unloaded")
    expect(engines).to_contain_text(re.compile("an operator unloaded it at 20"))
    pid = fleet.agents["a1"].pid
    assert [each for each in children(pid) if is_engine(each)] == []
    assert viewer.findings() == []
    viewer.go("fleet")
    expect(page.get_by_role("article", name="Agent a1")).to_contain_text("unloaded")
    open_machine(viewer, panel, "a1")
    page.get_by_role("button", name="Load the model of a1").click()
    expect(engines.locator(".badge")).to_have_text("serving")
    assert [each["action"] for each in audit(fleet)][-2:] == ["agent unloaded", "agent loaded"]


def test_an_engine_is_restarted(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    before = fleet.agents["a2"].engine_pid
    page = open_machine(viewer, panel, "a2")
    page.get_by_role("button", name="Restart the engine of a2").click()
    page.get_by_role("button", name="Restart", exact=True).click()
    expect(page.locator(".toast.ok").filter(has_text="a2: ordered.")).to_be_visible()
    fleet.agents["a2"].wait_for_log("the engine was restarted by an operator")
    fleet.wait_serving(2)
    assert fleet.agents["a2"].engine_pid != before
    expect(page.get_by_role("region", name="Engines").locator(".badge")).to_have_text("serving")


def test_logs_are_read_over_the_link_and_followed(viewer: Viewer, panel: str, fleet: Fleet) -> None:
    page = open_machine(viewer, panel, "a2")
    asked = [url for url in viewer.asked if "/logs" in url]
    assert asked == [], "an agent is asked for lines only when somebody wants them"
    page.get_by_role("radio", name="engine").check()
    lines = page.get_by_role("list", name="Log lines, the newest last")
    expect(lines).to_contain_text(f"starts with {BUNDLED_MODEL}")
    page.get_by_role("radio", name="agent").check()
    expect(lines).to_contain_text("linked to the balancer")
    restart = f"{fleet.management_url}/api/v2/agents/a2/restart_engine"
    restarts = lines.get_by_text("an operator restarts the engine")
    count = sum("an operator restarts the engine" in line for line in fleet.agents["a2"].log)
    expect(restarts).to_have_count(count)  # lines of before may come in pieces
    httpx.post(restart, verify=NO_TLS, timeout=60).raise_for_status()
    expect(restarts).to_have_count(count + 1)
    assert viewer.findings() == []
    fleet.wait_serving(2)
    viewer.expect_error(".*")
    fleet.agents["a2"].signal(signal.SIGKILL)
    lost = page.get_by_text("No machine").or_(page.get_by_text("No lines came"))
    expect(lost.first).to_be_visible()
    fleet.start_agent("a2", slots=2)
    fleet.wait_serving(2)
    expect(page.get_by_role("region", name="Engines").locator(".badge")).to_have_text("serving")


@contextmanager
def file_server(folder: Path) -> Iterator[str]:
    """Serves a folder on a loopback port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}"
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def test_what_a_machine_keeps_is_listed_and_what_nobody_needs_is_removed(
    viewer: Viewer, panel: str, fleet: Fleet, tmp_path: Path
) -> None:
    shutil.copyfile(BUNDLED_MODEL, tmp_path / "spare.gguf")
    with file_server(tmp_path) as base:
        pulled = httpx.post(
            f"{fleet.management_url}/api/v2/models/pull",
            json={"models": [{"Url": {"url": f"{base}/spare.gguf"}}], "agents": ["a1"]},
            verify=NO_TLS,
            timeout=60,
        )
    assert '"answer"' in pulled.text, pulled.text
    page = open_machine(viewer, panel, "a1")
    models = page.get_by_role("region", name="Models", exact=True)
    rows = models.locator("tbody tr")
    served, spare = rows.filter(has_text="paddler-demo.gguf"), rows.filter(has_text="spare.gguf")
    expect(served).to_contain_text("in use")
    expect(served).to_contain_text("default")
    expect(served.get_by_role("button", name=re.compile("^Remove"))).to_have_count(0)
    expect(spare).to_contain_text("whole")
    assert viewer.findings() == []
    spare.get_by_role("button", name=re.compile("^Remove")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("spare.gguf")
    dialog.get_by_role("button", name="Remove").click()
    expect(spare).to_have_count(0)
    expect(served).to_have_count(1)
    assert audit(fleet)[-1]["action"] == "models prune"
