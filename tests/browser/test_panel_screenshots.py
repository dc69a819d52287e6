"""The pictures of ``docs/panel.md``: a small fleet under load, light, dark, and on a telephone.

PANEL_SCREENSHOTS=1 .venv/bin/pytest -p no:xdist tests/browser/test_panel_screenshots.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from demo_load import loading
from fleet import Fleet
from PIL import Image
from playwright.sync_api import Browser
from viewer import PHONE, Viewer

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

OpenViewer = Callable[..., Viewer]
FOLDER = Path(__file__).parents[2] / "docs" / "panel"
MODEL = Path(os.environ.get("PANEL_SCREENSHOTS_MODEL", BUNDLED_MODEL))
"""Its path is on the pictures: a copy somewhere short looks better."""
WARM_S = float(os.environ.get("PANEL_SCREENSHOTS_WARM_S", "150"))
"""How long the load runs before the first picture, so that the timelines have something on them."""
SIZES = {"light": (1280, 860), "dark": (1280, 860), "phone": PHONE}

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("PANEL_SCREENSHOTS") != "1", reason="PANEL_SCREENSHOTS=1 makes them"
    ),
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def fleet(chromium: Browser) -> Iterator[Fleet]:
    """Two agents of three slots, named as people name them."""
    options = ["--web-admin-panel-addr=127.0.0.1:0", "--buffered-request-timeout=60000"]
    with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
        fleet.desire(MODEL, context_size=4096, temperature=0.0)
        for name in ("gpu-berlin-1", "gpu-berlin-2"):
            fleet.start_agent(name, slots=3, options=["--threads=1", "--fit=on"])
        fleet.wait_serving()
        yield fleet


@pytest.fixture(scope="module")
def loaded(fleet: Fleet) -> Iterator[Fleet]:
    """The same fleet, busy for a while."""
    with loading(fleet.inference_url, clients=9):
        time.sleep(WARM_S)  # what is shown is a span of time
        yield fleet


@pytest.mark.parametrize("look", SIZES)
def test_pictures_of_the_documentation(
    open_viewer: OpenViewer, loaded: Fleet, panel: str, look: str
) -> None:
    theme = "dark" if look == "dark" else "light"
    viewer = open_viewer(theme=theme, size=SIZES[look])
    viewer.open(panel)
    pages = {
        "fleet": "fleet",
        "timeline": "timeline",
        "waterfall": f"requests/{_interesting_request(panel)}",
        "model": "model",
        "prompt": "prompt",
        "metrics": "metrics",
    }
    for name, route in pages.items():
        viewer.go(route)
        if name == "timeline":
            viewer.page.get_by_role("radio", name="1 min").check()
        if name == "model":
            viewer.page.get_by_role("button", name="Edit default").click()
            viewer.page.get_by_role("button", name="Ask the agents").click()
            viewer.page.get_by_role("button", name="Ask again").wait_for(timeout=60_000)
        if name == "prompt":
            _chat(viewer)
        viewer.page.wait_for_timeout(2500)  # the feed comes four times a second, canvases after it
        _save(viewer.page.screenshot(), FOLDER / f"{name}-{look}.png")


def _interesting_request(panel: str) -> int:
    """A finished one that waited, and whose answer was long."""
    url = f"{panel}api/v2/requests?state=finished&limit=200"
    answer = httpx.get(url, trust_env=False, timeout=60).raise_for_status().json()
    done = [each for each in answer["requests"] if each["ending"]["kind"] == "done"]
    return int(max(done, key=lambda each: (each["tokens"], len(each["progress"])))["key"])


def _chat(viewer: Viewer) -> None:
    """Ask something, and wait until it is answered."""
    page = viewer.page
    page.get_by_role("textbox", name="Message").fill("What is a slot?")
    page.keyboard.press("Enter")
    page.get_by_text("tokens/s").first.wait_for(timeout=60_000)


def _save(png: bytes, path: Path) -> None:
    """With a palette: a quarter of the bytes, and no difference to see."""
    path.parent.mkdir(exist_ok=True)
    image = Image.open(BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
