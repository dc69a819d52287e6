"""Tell systemd how we are: ready, alive, reloading, stopping (the ``sd_notify`` datagrams).

A unit of ``Type=notify`` counts as started when ``READY=1`` arrives, and with ``WatchdogSec`` it
is restarted when ``WATCHDOG=1`` stops arriving. The ping is sent by a task of the event loop it
vouches for: a loop that is stuck cannot ping.

A service has one main process. When that is another one from now on (``MAINPID=``), this one is
silent: with ``NotifyAccess=main`` systemd would only complain.

Invariants: nothing here blocks or raises for what the other end does, since a daemon must not
fall over its own status line; failures are logged, the same one in a row once. The three
environment variables are taken out of the environment when they are read, so that no child of ours
can speak in our name.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Final

import structlog
import trio

log = structlog.get_logger("systemd_notify")

PAUSE_S: Final = 1.0
EXTENSION_S: Final = 10.0
"""The time that systemd waits for the next word: a stuck event loop is killed after it."""


class SystemdNotifier:
    """One end of systemd's notification socket; without systemd every call is a quiet no-op.

    Args:
      address: of the datagram socket, ``bytes`` as the kernel takes it; None without systemd.
      watchdog_s: systemd's limit between two pings; None when it does not watch this process.
    """

    def __init__(self, *, address: bytes | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._status = ""
        self._problem: str | None = None
        self.is_stopping = False

    @classmethod
    def from_environment(
        cls, environment: MutableMapping[str, str] | None = None
    ) -> SystemdNotifier:
        """Take what systemd left in ``environment`` (``os.environ`` by default) out of it."""
        left = os.environ if environment is None else environment
        address_text = left.pop("NOTIFY_SOCKET", "")
        watchdog_text = left.pop("WATCHDOG_USEC", "")
        watched_pid_text = left.pop("WATCHDOG_PID", "")

        address = _parse_address(address_text)
        watched = watched_pid_text in ("", str(os.getpid()))
        watchdog_s = _parse_interval_s(watchdog_text) if watched and address else None
        return cls(address=address, watchdog_s=watchdog_s)

    def __repr__(self) -> str:
        return f"<SystemdNotifier address={self._address!r} watchdog_s={self._watchdog_s}>"

    @property
    def is_listening(self) -> bool:
        """Return whether systemd runs this process and receives its notifications."""
        return self._address is not None

    @property
    def watchdog_s(self) -> float | None:
        """The longest silence systemd allows, in seconds; None when it is not listening."""
        return self._watchdog_s

    def ready(self, status: str) -> None:
        """Say that we accept work; ``status`` is what ``systemctl status`` shows."""
        self._status = status
        self._send("READY=1", _status_line(status))

    def status(self, text: str) -> None:
        """Replace the line that ``systemctl status`` shows."""
        self._status = text
        self._send(_status_line(text))

    def reloading(self) -> None:
        """Say that a reload has begun (``Type=notify-reload``); :meth:`reloaded` says that it has
        ended. The stamp tells systemd for which of its reloads that counts."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Say that the reload has ended; the status is as before."""
        self._send("READY=1", _status_line(self._status))

    def stopping(self) -> None:
        """Say that the end is wanted: no restart, and the stop time limit counts."""
        self.is_stopping = True
        self._send("STOPPING=1")

    def extend_timeout(self, by_s: float, status: str) -> None:
        """Say that stopping goes on, and ask not to be killed within ``by_s`` seconds from now."""
        self._status = status
        self._send(f"EXTEND_TIMEOUT_USEC={round(by_s * 1e6)}", _status_line(status))

    def main_process(self, pid: int) -> None:
        """Say that another process is the service's main one; this one says nothing from now on."""
        self._send(f"MAINPID={pid}")
        self._address = None

    def variables(self) -> dict[str, str]:
        """Return what a process needs in its environment to speak in our place, once it is the main
        one; whom the watchdog watches is left out, so that it is that process."""
        if self._address is None:
            return {}
        address = os.fsdecode(self._address)
        named = {"NOTIFY_SOCKET": f"@{address[1:]}" if address.startswith("\0") else address}
        if self._watchdog_s is not None:
            named["WATCHDOG_USEC"] = str(round(self._watchdog_s * 1e6))
        return named

    async def run_watchdog(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Ping at half the allowed silence until cancelled; without a watchdog, only wait."""
        task_status.started()
        if self._watchdog_s is None:
            await trio.sleep_forever()
        while True:
            self._send("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)

    def _send(self, *assignments: str) -> None:
        """Send one datagram now or never. A socket each time: a few a minute, and nothing to
        close."""
        if self._address is None:
            return
        message = "\n".join(assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
                notifications.setblocking(False)
                notifications.sendto(message.encode(), self._address)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("systemd was not notified", message=message, error=str(error))
        else:
            if self._problem is not None:
                self._problem = None
                log.info("systemd is notified again", message=message)


def _status_line(text: str) -> str:
    return "STATUS=" + " ".join(text.splitlines())  # a line feed would start another assignment


def _parse_address(text: str) -> bytes | None:
    """Return a path, or ``@name`` for Linux's abstract sockets; None for none and for other
    families."""
    if text.startswith("@"):
        return b"\0" + os.fsencode(text[1:])
    if text.startswith("/"):
        return os.fsencode(text)
    if text:
        log.warning("not notifying: neither a path nor an @abstract name", NOTIFY_SOCKET=text)
    return None


def _parse_interval_s(text: str) -> float | None:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text) / 1e6
    if text:
        log.warning("no watchdog: not a number of microseconds", WATCHDOG_USEC=text)
    return None


async def show_status(notifier: SystemdNotifier, describe: Callable[[], str]) -> None:
    """Show what ``describe`` returns as it changes, looked at once a second until the stop."""
    shown = ""
    while not notifier.is_stopping:
        if (text := describe()) != shown:
            notifier.status(text)
            shown = text
        await trio.sleep(PAUSE_S)


async def show_drain(notifier: SystemdNotifier, num_left: Callable[[], int]) -> None:
    """Show how far a drain is, once a second until cancelled.

    A unit's ``TimeoutStopSec`` is for services that hang. One that drains says so again and again,
    and its own drain timeout is what ends it.
    """
    while True:
        left = num_left()
        words = f"draining: {left} request{'' if left == 1 else 's'} left"
        notifier.extend_timeout(EXTENSION_S, words)
        await trio.sleep(PAUSE_S)
