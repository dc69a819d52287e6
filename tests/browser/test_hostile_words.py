"""Names, labels, paths, causes and clients are others' words: on no page do they become more.

The pages come without the policy of the balancer here, so nothing but themselves keeps a word from
being run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from fabricated_fleet import FabricatedFleet
from fabricated_panel import fabricated_panel
from playwright.sync_api import expect
from viewer import Viewer

from paddler_trio.balancer.panel.panel_assets import FOLDER
from paddler_trio.scheduler.metering.time_samples import FIELDS

WORDS: Final = (
    '"><img src=x onerror="window.hurt=1">',
    "<script>window.hurt=2</script>",
    "' onmouseover='window.hurt=3' x='",
    "javascript:window.hurt=4//",
    "{{constructor.constructor('window.hurt=5')()}}",
    "\N{RIGHT-TO-LEFT OVERRIDE}\x1b]8;;http://evil.example\x07\u2028\x85",
)
OTHERS: Final = frozenset(
    {
        *("label", "name", "host", "id", "client", "detail", "source", "model_path", "text"),
        *("download_filename", "version", "chosen", "aliases", "held", "route", "why", "cause"),
        *("device", "error", "reason", "trace", "user", "model", "key_name"),
    }
)
"""Fields whose values are somebody's words, and not ours."""


class HostileFleet(FabricatedFleet):
    """Says the same as its base, in words that would like to be more."""

    def _event(self, **more: Any) -> Mapping[str, object]:
        event: dict[str, Any] = dict(super()._event(**more))
        event["set"] = {
            name: poisoned(value, is_map=name in {"agents", "requests"})
            for name, value in event["set"].items()
        }
        return event


def poisoned(value: object, *, is_map: bool = False, field: str = "") -> object:
    """The value with all WORDS behind each word that is another's, keys of labels included."""
    if isinstance(value, dict):
        found = {}
        for key, each in value.items():
            name = key + WORDS[0] if field == "labels" else key
            found[name] = poisoned(each, field="label" if field == "labels" else key)
        return found
    if isinstance(value, list):
        return [poisoned(each, field=field) for each in value]
    return value + "".join(WORDS) if isinstance(value, str) and field in OTHERS else value


@pytest.mark.parametrize("route", ["fleet", "requests", "timeline", "metrics", "model", "logs"])
def test_words_of_others_do_nothing(viewer: Viewer, route: str) -> None:
    fleet = HostileFleet(with_trouble=True, load=1.3)
    words = "".join(WORDS)
    lines = [
        {"level": "warning", "logger": words, "event": words, "fields": {words: words}},
        {"level": "error", "logger": "fleet", "event": words, "fields": {"reason": [words]}},
    ]
    entries = [
        {"seq": seq, "time": "2026-03-04T12:00:00Z", **line} for seq, line in enumerate(lines, 1)
    ]
    viewer.page.route("**/api/v2/logs*", lambda asked: asked.fulfill(json={"entries": entries}))
    with fabricated_panel(FOLDER, fleet) as url:
        viewer.open(url)
        page = viewer.page
        expect(page.locator("body")).to_contain_text("<script>window.hurt=2</script>")
        viewer.expect_error("")  # what this server does not answer is no matter here
        viewer.go(route)
        for each in page.locator("main button, main summary").all()[:12]:
            if each.is_visible() and each.is_enabled():
                each.hover(timeout=2000)
        assert page.evaluate("window.hurt") is None
        for forbidden in ("img[src='x']", "main script", "[onerror]", "[onmouseover]"):
            assert page.locator(forbidden).count() == 0, forbidden
        if route == "logs":
            expect(page.locator("main")).to_contain_text("<script>window.hurt=2</script>")
        links = page.eval_on_selector_all("a[href]", "all => all.map(each => each.href)")
        assert [link for link in links if link.lower().startswith("javascript:")] == []


@pytest.mark.parametrize("route", ["metrics?by=client&range=1h", "usage?by=user"])
def test_names_of_clients_and_users_do_nothing(viewer: Viewer, route: str) -> None:
    words = "".join(WORDS)
    numbers = ("requests", "failed", "refused", "prompt_tokens", "cached_tokens")
    usage = {
        "by": "user",
        "per": "month",
        "begin": "2026-11-01",
        "end": "2026-11-30",
        "by_user": True,
        "problem": words,
        "rows": [
            {
                **dict.fromkeys((*numbers, "generated_tokens", "last_s"), 1),
                "period": "2026-11",
                "key": words,
                "user": words,
                "model": None,
            }
        ],
    }
    metrics = {
        "by": "client",
        "begin": 1_796_083_000,
        "end": 1_796_083_600,
        "step_s": 10,
        "fields": ["start_s", *FIELDS],
        "series": [
            {
                "name": words + str(n),
                "is_other": False,
                "rows": [[1_796_083_100 + 10 * n] + [1] * len(FIELDS)],
            }
            for n in range(3)
        ],
        "problem": words,
    }
    viewer.page.route("**/api/v2/usage*", lambda asked: asked.fulfill(json=usage))
    viewer.page.route("**/api/v2/metrics/range*", lambda asked: asked.fulfill(json=metrics))
    with fabricated_panel(FOLDER, FabricatedFleet()) as url:
        viewer.open(url)
        viewer.expect_error("")  # what this server does not answer is no matter here
        viewer.go(route)
        page = viewer.page
        expect(page.locator("main")).to_contain_text("<script>window.hurt=2</script>")
        assert page.evaluate("window.hurt") is None
        for forbidden in ("img[src='x']", "main script", "[onerror]", "[onmouseover]"):
            assert page.locator(forbidden).count() == 0, forbidden
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert page.evaluate(wide)
