"""``--legacy-agents``: from which networks agents may dial in that have nothing to show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from paddler_trio.net.networks import Network, parse_networks

log = structlog.get_logger("joining")

FLAG: Final = "--legacy-agents"


def legacy_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse as :func:`parse_networks` does, with a warning for what lets everybody in."""
    found = parse_networks(texts, FLAG)
    everywhere = [str(network) for network in found if network.prefixlen == 0]
    if everywhere:
        log.warning(
            "AGENTS NEED NO KEY FROM ANYWHERE: who reaches the management port may pose as one",
            networks=everywhere,
        )
    return found
