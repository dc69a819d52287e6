"""Shows systemd how far a drain is, and keeps it from killing what still drains.

A unit's ``TimeoutStopSec`` is for services that hang. One that drains says so again and again, and
its own drain timeout is what ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from paddler_trio.system.systemd_notify import SystemdNotifier

PAUSE_S: Final = 1.0
EXTENSION_S: Final = 10.0
"""How long systemd waits for the next word: an event loop that is stuck is killed after it."""


async def show_drain(notifier: SystemdNotifier, num_left: Callable[[], int]) -> None:
    """Until cancelled, once a second."""
    while True:
        notifier.extend_timeout(EXTENSION_S, drain_text(num_left()))
        await trio.sleep(PAUSE_S)


def drain_text(num_left: int) -> str:
    """What ``systemctl status`` shows."""
    return f"draining: {num_left} request{'' if num_left == 1 else 's'} left"
