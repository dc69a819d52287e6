"""Rows, panels and queries, and the JSON that Grafana takes for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

Json: TypeAlias = Mapping[str, object]


PanelKind: TypeAlias = Literal["timeseries", "stat"]


WIDTH: Final = 24
"""Columns of Grafana's grid."""


HEIGHT: Final = 8


STAT_HEIGHT: Final = 4


SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@attrs.frozen
class Query:
    """PromQL, and the legend of its series."""

    expression: str
    legend: str


@attrs.frozen
class Panel:
    """One box; ``unit`` is Grafana's id of a unit, ``width`` in columns."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 8
    kind: PanelKind = "timeseries"
    stacked: bool = False
    help: str = ""


@attrs.frozen
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


def laid_out(rows: Sequence[Row]) -> Sequence[Json]:
    """Return rows from the top, the panels of each from the left, in lines of ``WIDTH`` columns."""
    laid: list[Json] = []
    top = 0
    for row in rows:
        laid.append(
            {
                "id": len(laid) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left = top + height, 0
            height = STAT_HEIGHT if panel.kind == "stat" else HEIGHT
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            laid.append(_panel(panel, len(laid) + 1, place))
            left += panel.width
        top += height
    return laid


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> Json:
    shape: Json = (
        {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacked else {"fillOpacity": 5}
    )
    options: Json = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
        if panel.kind == "stat"
        else {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": shape},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for at, query in enumerate(panel.queries)
        ],
    }
