"""What a person does on the Prompt page, and what a test sees of it."""

from __future__ import annotations

import base64
import json
from typing import Any

from playwright.sync_api import Locator, Route
from viewer import Viewer

CHAT = "**/inference/v1/chat/completions"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


def ask(viewer: Viewer, text: str) -> None:
    viewer.page.get_by_label("Your message").fill(text)
    viewer.page.get_by_label("Your message").press("Enter")


def answers(viewer: Viewer, phase: str = "done") -> Locator:
    return viewer.page.locator(f".answer[data-phase={phase}]")


def bodies_of(viewer: Viewer) -> list[Any]:
    """What chat requests of the page carry from now on."""
    bodies: list[Any] = []
    viewer.page.on(
        "request",
        lambda request: (
            bodies.append(json.loads(request.post_data or "{}"))
            if request.url.endswith("/v1/chat/completions")
            else None
        ),
    )
    return bodies


def answer_with(viewer: Viewer, content: str) -> None:
    """The next answers are this text, whatever a model would have said."""

    def fulfil(route: Route) -> None:
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        route.fulfill(
            status=200,
            content_type="text/event-stream",
            body="".join([*events, "data: [DONE]\n\n"]),
        )

    viewer.expect_error(r"404.*/api/v2/requests/")  # the balancer has no record of it
    viewer.page.route(CHAT, fulfil)


def drop(viewer: Viewer) -> None:
    """A picture from the desktop onto the message."""
    viewer.page.locator(".composer").evaluate(
        """(element, bytes) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "pixel.png", {type: "image/png"}));
            element.dispatchEvent(
                new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        list(PIXEL),
    )
