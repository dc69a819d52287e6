"""The history of a balancer: where it is kept, and how much of it."""

from __future__ import annotations

from typing import Final

from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.front.end_user import USER_NAMES
from paddler_trio.balancer.history.history_collector import HistoryCollector
from paddler_trio.balancer.history.history_file import SUFFIX, HistoryFile
from paddler_trio.balancer.history.history_keeper import HistoryKeeper
from paddler_trio.system.settings.balancer_config import BalancerConfig

IN_MEMORY_BYTES: Final = 16 * 1024**2
"""Of a history that ends with the process."""


def history_keeper(config: BalancerConfig, collector: HistoryCollector) -> HistoryKeeper:
    """Keep the history beside the state, if that is in a file and a history is wanted."""
    state = state_file(config.state_database)
    USER_NAMES.is_kept = config.usage_by_user
    if state is None or config.history_bytes == 0:
        return HistoryKeeper(HistoryFile(None, IN_MEMORY_BYTES), collector)
    path = state.with_name(state.name + SUFFIX)
    return HistoryKeeper(HistoryFile(path, config.history_bytes), collector)
