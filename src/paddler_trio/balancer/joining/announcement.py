"""The process that announces this balancer on the local network, and ends with it.

The library for mDNS has threads or an event loop of its own, and reads what anybody on the network
sends: it is kept out of the balancer's process. What this task owns is a child: it is there while
the task runs, and takes the announcement back when the task is cancelled.

Find where new machines are told to reach the management service, as far as that can be known
here.
"""

from __future__ import annotations

import ipaddress
import json
import socket
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
from paddler_trio.net.joining.join_token import TLS_SCHEME
from paddler_trio.net.joining.pin_exchange import MISSING as NO_SPAKE2
from paddler_trio.net.joining.pin_exchange import can_exchange
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.system.config import is_loopback_host, split_address
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


@attrs.frozen
class AdvertisedAddress:
    """The address that a join token carries if none was asked for.

    It is the name under which the operator reached the balancer, if other machines may use that
    too; else the address that the port is bound to, else this machine's name.

    Args:
      sockets: of the management service.
      names: of this machine, the most complete last.
    """

    sockets: Sequence[socket.socket]
    has_tls: bool
    names: Sequence[str]

    @property
    def port(self) -> int:
        """Return the port of the management service; 0 without a socket."""
        return int(self.sockets[0].getsockname()[1]) if self.sockets else 0

    def __call__(self, exchange: Exchange) -> str:
        """``host:port``, with ``https://`` before it if there is TLS."""
        bound = [each.getsockname() for each in self.sockets]
        port = self.port
        text = (exchange.header(b"host") or b"").decode("latin-1")
        host, asked_port = _split(text)
        if asked_port is None or (exchange.scope.get("server") or ("", None))[1] != port:
            asked_port = port  # it came over the panel's port, or through none that it names
        if host and not is_loopback_host(host):
            return self._text(host, asked_port)
        addresses = [ipaddress.ip_address(each[0].partition("%")[0]) for each in bound]
        for address in addresses:
            if not (address.is_loopback or address.is_unspecified):
                return self._text(str(address), port)
        names = [name for name in self.names if not name.startswith("localhost")]
        if any(address.is_unspecified for address in addresses) and names:
            return self._text(names[-1], port)
        return self._text(host or str(addresses[0]), port)

    def _text(self, host: str, port: int) -> str:
        scheme = TLS_SCHEME if self.has_tls else ""
        return f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}"


def _split(text: str) -> tuple[str, int | None]:
    """Return the host and port of a ``Host`` header; no host if it is none."""
    try:
        return split_address(text)
    except ConfigurationError:
        pass
    try:
        host, _ = split_address(f"{text}:1")
    except ConfigurationError:
        return "", None
    return host, None
