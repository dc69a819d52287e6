"""The page of a load test in real Chromium: all of it is shown, and anybody can read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from viewer import DESK, PHONE, Viewer

from bench_reports import report
from paddler_trio.cli.bench.report.report_html import report_html

OpenViewer = Callable[..., Viewer]


@pytest.mark.parametrize(("theme", "size"), [("light", DESK), ("dark", PHONE)])
def test_the_page_of_a_load_test_fits_and_is_accessible(
    open_viewer: OpenViewer, tmp_path: Path, theme: str, size: tuple[int, int]
) -> None:
    page = tmp_path / "bench.html"
    page.write_text(report_html(report()), encoding="utf-8")
    viewer = open_viewer(theme=theme, size=size, is_audited=True)
    viewer.page.goto(page.as_uri())
    assert viewer.page.locator("figure svg").count() == 5
    widths = viewer.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1], "nothing is wider than the window"
    assert viewer.asked == [page.as_uri()]
    assert viewer.findings() == []
