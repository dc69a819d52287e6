"""The process that announces this balancer on the local network, and ends with it.

The library for mDNS has threads or an event loop of its own, and reads what anybody on the network
sends: it is kept out of the balancer's process. What this task owns is a child: it is there while
the task runs, and takes the announcement back when the task is cancelled.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError, PaddlerError
from paddler_trio.net.joining import service_type
from paddler_trio.net.joining.pin_exchange import MISSING as NO_SPAKE2
from paddler_trio.net.joining.pin_exchange import can_exchange
from paddler_trio.system.process_end import end_process
from paddler_trio.system.supervise import keep

log = structlog.get_logger("joining")

END_S: Final = 2.0
"""How long the child has to take the announcement back."""
MAX_REASON_BYTES: Final = 400
ANNOUNCED: Final = "announced "
"""Begins the child's lines that are no problem; where other machines find the balancer follows."""


class AnnouncementError(PaddlerError):
    """The process that announces has ended by itself; the text says why."""


@attrs.frozen
class Announcement:
    """Says that there is a balancer called ``name``, at a port of these addresses."""

    name: str
    port: int
    bound: Sequence[str]

    def check(self, *, can_join: str | None) -> None:
        """Raise ConfigurationError if nothing can be announced.

        Args:
          can_join: why nobody could join with a PIN; None if somebody can.
        """
        if find_spec("zeroconf") is None:
            raise ConfigurationError(f"--discoverable {service_type.MISSING}")
        if not can_exchange():
            raise ConfigurationError(f"--discoverable: {NO_SPAKE2}")
        if can_join is not None:
            raise ConfigurationError(f"--discoverable: nobody could join: {can_join}")

    async def run(self) -> None:
        """Announce until cancelled. A child that ends is started again."""
        await keep("announcement", AnnouncementError, self._run_once)

    async def _run_once(self) -> None:
        order = json.dumps({"name": self.name, "port": self.port, "bound": list(self.bound)})
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "paddler_trio.processes.announcement", order],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the balancer's to handle
            )
        except OSError as error:  # no further process, or no descriptors
            raise AnnouncementError(f"it cannot be started: {error.strerror}") from error
        rest, reason = "", ""
        try:
            assert process.stdout is not None
            async for chunk in process.stdout:
                *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
                rest = rest[-MAX_REASON_BYTES:]
                for line in lines:
                    if line.startswith(ANNOUNCED):
                        addresses = line.removeprefix(ANNOUNCED)
                        log.info("announced on the local network", name=self.name, at=addresses)
                    else:
                        reason = line
            status = await process.wait()
            raise AnnouncementError(reason or f"status {status}")
        finally:
            await end_process(process, name="announcement", grace_s=END_S)
