"""Paddler's gauges to a StatsD server: a datagram each, at once and then at an interval.

A metric that does not arrive must cost nothing else: datagrams are sent without waiting, a name is
looked up under a deadline and again after each failure, and what fails is in the log once until it
works again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.scheduler.dispatch.slot_ledger import LedgerStatistics
from paddler_trio.system.config import split_address
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.system.settings.balancer_config import BalancerConfig

log = structlog.get_logger("statsd")

LOOK_UP_S: Final = 5.0
MAX_PREFIX_CHARS: Final = 200
"""A datagram stays far below what every network passes whole."""
FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS})


def current_gauges(statistics: LedgerStatistics) -> Mapping[str, int]:
    """Return the gauges by their names since Paddler 2.0."""
    return {
        "slots_processing": statistics.slots_processing,
        "slots_total": statistics.slots_total,
        "requests_buffered": statistics.requests_buffered,
    }


def gauges_of_paddler_1(statistics: LedgerStatistics) -> Mapping[str, int]:
    """Return the gauges by their names up to Paddler 1.2: idle slots instead of all. While an agent
    that offers none any more finishes what it has, more may be busy than there are."""
    return {
        "slots_idle": max(0, statistics.slots_total - statistics.slots_processing),
        "slots_processing": statistics.slots_processing,
        "requests_buffered": statistics.requests_buffered,
    }


def datagrams(prefix: str, gauges: Mapping[str, int]) -> list[bytes]:
    """Return ``prefix.name:value|g`` each; none at all if a value is negative: a sign would make a
    gauge relative. Dots at the end of ``prefix`` count as one."""
    if any(value < 0 for value in gauges.values()):
        return []
    stem = prefix.rstrip(".")
    return [
        f"{stem}.{name}:{value}|g".encode() if stem else f"{name}:{value}|g".encode()
        for name, value in gauges.items()
    ]


def check_statsd(address: str, prefix: str) -> tuple[str, int]:
    """Return host and port; ConfigurationError if it is no address that can be sent to, or the
    prefix would be read as something else."""
    host, port = split_address(address)
    if port == 0:
        raise ConfigurationError(f"--statsd-addr {address!r} has port 0; StatsD servers use 8125")
    wrong = next((each for each in prefix if each in ":|@#" or not each.isprintable()), None)
    if wrong is not None or " " in prefix:
        raise ConfigurationError(
            f"--statsd-prefix has {wrong or ' '!r}, which StatsD would not read as part of a name"
        )
    if len(prefix) > MAX_PREFIX_CHARS:
        raise ConfigurationError(
            f"--statsd-prefix has {len(prefix)} characters, the limit is {MAX_PREFIX_CHARS}"
        )
    return host, port


@attrs.define(eq=False)
class StatsdExporter:
    """Sends what ``gauges`` returns; see :func:`check_statsd` for the other arguments."""

    host: str
    port: int
    prefix: str
    interval_s: float = attrs.field(validator=attrs.validators.gt(0))
    gauges: Callable[[], Mapping[str, int]] = attrs.field(repr=False)
    sent: int = attrs.field(default=0, init=False)
    failures: int = attrs.field(default=0, init=False)
    """Reports that were not sent whole."""
    _is_failing: bool = attrs.field(default=False, init=False)

    @classmethod
    def of(
        cls, config: BalancerConfig, statistics: Callable[[], LedgerStatistics]
    ) -> StatsdExporter | None:
        """Return None if metrics are sent nowhere; ConfigurationError."""
        if config.statsd_addr is None:
            return None
        host, port = check_statsd(config.statsd_addr, config.metrics_prefix)
        names = gauges_of_paddler_1 if config.statsd_v1_names else current_gauges
        return cls(
            host,
            port,
            config.metrics_prefix,
            config.statsd_interval_s,
            lambda: names(statistics()),
        )

    async def run(self) -> None:
        """Send until cancelled."""
        explain_this_task(lambda: f"{self.sent} datagrams sent, {self.failures} reports failed")
        next_s = trio.current_time()
        while True:
            try:
                with await self._connected() as sock:
                    while True:
                        self._send(sock, datagrams(self.prefix, self.gauges()))
                        self._works()
                        next_s = max(next_s + self.interval_s, trio.current_time())
                        await trio.sleep_until(next_s)
            except OSError as error:
                self._fails(error)
            except trio.TooSlowError:
                self._fails(OSError(errno.ETIMEDOUT, f"not resolved within {LOOK_UP_S:g} s"))
            next_s = max(next_s + self.interval_s, trio.current_time())
            await trio.sleep_until(next_s)

    async def _connected(self) -> socket.socket:
        """Return a socket that sends there; OSError, trio.TooSlowError."""
        with trio.fail_after(LOOK_UP_S):
            found = await trio.socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _send(self, sock: socket.socket, report: Iterable[bytes]) -> None:
        """Send a report; OSError for an answer that nobody listens there, to this report or the one
        before."""
        for datagram in report:
            try:
                sock.send(datagram)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.failures += 1  # the next report has newer values
                return
            self.sent += 1

    def _works(self) -> None:
        if self._is_failing:
            self._is_failing = False
            log.info("StatsD takes metrics again", address=f"{self.host}:{self.port}")

    def _fails(self, error: OSError) -> None:
        self.failures += 1
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "metrics do not reach StatsD; trying again at every report",
                address=f"{self.host}:{self.port}",
                reason=error.strerror or str(error),
            )
