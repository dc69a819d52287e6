"""The version that runs, as a metric."""

from __future__ import annotations

from typing import Literal

from paddler_trio import __version__
from paddler_trio.telemetry.recording import Family, family
from paddler_trio.telemetry.shared_metrics import BUILD_INFO


def build_info(component: Literal["balancer", "agent"]) -> Family:
    """Its value is 1, the labels are what it says."""
    return family(BUILD_INFO, {(component, __version__): 1})
