"""The TLS of a running balancer: which context new handshakes use, and when it is another one.

The files are read again on SIGHUP and when they have changed. Connections keep the context that
they began with. Files that cannot be used change nothing: the old context stays, and the log has
the reason. They are tried again now and then, since what was wrong need not have been in them: a
certificate that begins to be valid in an hour, or a process without a descriptor left.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.certificate import Certificate, date_of
from paddler_trio.net.tls.server_context import ServerCertificate, TlsFiles, read_server_certificate
from paddler_trio.system.settings.balancer_config import BalancerConfig

DAY_S: Final = 86_400.0
WARN_DAYS: Final = (1, 7, 30)
LIFE_SHARE: Final = 0.5
"""No warning before this part of the validity is over: certificates that live for a day are
renewed every few hours."""


def warning_due(certificate: Certificate, now_s: float) -> int | None:
    """Return for how many days before the end a warning is due: 0 once it has expired, None while
    it is far off.
    """
    left_s = certificate.not_after_s - now_s
    if left_s <= 0:
        return 0
    life_s = certificate.not_after_s - certificate.not_before_s
    for days in WARN_DAYS:
        if left_s <= days * DAY_S:
            return days if left_s <= life_s * LIFE_SHARE else None
    return None


@attrs.define(eq=False)
class ExpiryWatch:
    """Logs each warning of a certificate once."""

    _warned: tuple[str, int] | None = None
    """Fingerprint and days of the latest."""

    def look(self, certificate: Certificate, now_s: float) -> None:
        """Call it now and then."""
        due = warning_due(certificate, now_s)
        if due is None:
            return
        if self._warned == (certificate.fingerprint, due):
            return
        self._warned = (certificate.fingerprint, due)
        until = date_of(certificate.not_after_s)
        if due == 0:
            log.error("THE TLS CERTIFICATE HAS EXPIRED: clients refuse it; renew it", expired=until)
        else:
            left_days = (certificate.not_after_s - now_s) / DAY_S
            log.warning(
                "the TLS certificate expires soon: renew it; it is read again by itself",
                expires=until,
                days=round(left_days, 1),
            )


log = structlog.get_logger("tls")

LOOK_S: Final = 0.5
"""Between two looks at the files. A change is read at the second look that finds it: of a pair the
files are replaced one after the other."""
RETRY_S: Final = 30.0
"""After a reading that failed, of files that have not changed since."""
HANDSHAKE_THREADS: Final = 4

Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


@attrs.define(eq=False)
class ServerTls:
    """See the module docstring. One for all ports of a balancer."""

    files: TlsFiles
    _current: ServerCertificate
    _seen: Signature
    """Of the files when they were read last, with success or without."""
    now_s: Callable[[], float] = time.time
    reloads: int = attrs.field(default=0, init=False)
    """How often a reading brought a context into use after the first."""
    failed_reloads: int = attrs.field(default=0, init=False)
    handshakes: int = attrs.field(default=0, init=False)
    turns: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(HANDSHAKE_THREADS), init=False, repr=False
    )
    """For the threads that do handshakes, those of all ports together."""
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False, repr=False)
    _problem: str | None = attrs.field(default=None, init=False)
    """Why the latest reading failed; None if it did not."""
    _retry_s: float = attrs.field(default=inf, init=False)
    """On trio's clock."""
    _expiry: ExpiryWatch = attrs.field(factory=ExpiryWatch, init=False, repr=False)

    def __repr__(self) -> str:
        until = date_of(self.not_after_s)
        return f"<ServerTls {self.fingerprint[:12]} until {until}: {self.reloads} reloads>"

    @classmethod
    def read(cls, files: TlsFiles) -> ServerTls:
        """Blocks for some milliseconds; ConfigurationError for files that cannot be used."""
        seen = signature(files.paths)
        current = read_server_certificate(files)
        _warn_about_key(files)
        return cls(files, current, seen)

    def log_use(self, where: str) -> None:
        """Name the certificate: its fingerprint is what clients pin."""
        log.info(
            "TLS",
            on=where,
            fingerprint=self.fingerprint,
            until=date_of(self.not_after_s),
            client_certificates=self.files.client_auth.value,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context of the next handshake."""
        return self._current.context

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the server's own certificate, 64 hexadecimal digits."""
        return self._current.own.fingerprint

    @property
    def ca_hash(self) -> str:
        """SHA-256 of the last certificate in the file: of the authority if it is there, of the
        certificate itself if it stands alone. Those who join compare it."""
        return self._current.chain[-1].fingerprint

    @property
    def chain(self) -> tuple[Certificate, ...]:
        """Return the certificates that the ports show, the server's own first."""
        return self._current.chain

    @property
    def not_after_s(self) -> float:
        """Return when the server's certificate expires, in seconds since 1970."""
        return self._current.own.not_after_s

    @property
    def expires_in_s(self) -> float:
        """Negative once it has expired."""
        return self.not_after_s - self.now_s()

    async def reload(self) -> None:
        """Read the files again, whether they have changed or not."""
        async with self._turn:
            await self._read_again()

    async def run(self) -> None:
        """Read the files again whenever they have changed, and warn before the end of the
        certificate; until cancelled."""
        before = self._seen
        while True:
            self._expiry.look(self._current.own, self.now_s())
            await trio.sleep(LOOK_S)
            found = await trio.to_thread.run_sync(signature, self.files.paths)
            if found == before and found != self._seen:
                async with self._turn:
                    if found != self._seen:
                        await self._read_again()
            elif found == self._seen and trio.current_time() >= self._retry_s:
                async with self._turn:
                    await self._read_again(is_retry=True)
            before = found

    async def _read_again(self, *, is_retry: bool = False) -> None:
        seen = await trio.to_thread.run_sync(signature, self.files.paths)
        try:
            current = await trio.to_thread.run_sync(read_server_certificate, self.files)
        except ConfigurationError as error:
            self.failed_reloads += 1
            reason = str(error)
            if not is_retry or reason != self._problem:
                log.error("certificate not read again, the old one stays", reason=reason)
            self._problem, self._retry_s = reason, trio.current_time() + RETRY_S
            return
        finally:
            self._seen = seen
        self._problem, self._retry_s = None, inf
        self._current = current
        self.reloads += 1
        log.info(
            "certificate read again", fingerprint=self.fingerprint, until=date_of(self.not_after_s)
        )


def server_tls(config: BalancerConfig) -> ServerTls | None:
    """Return the TLS that the flags ask for, or None; ConfigurationError if it cannot be."""
    files = TlsFiles.of(
        config.tls_cert, config.tls_key, config.tls_client_ca, config.tls_client_auth
    )
    if files is None:
        return None
    tls = ServerTls.read(files)
    tls.log_use("every port")
    return tls


def signature(paths: Iterable[Path]) -> Signature:
    """Return a value that differs when a file was written, replaced or given to another owner; None
    stands for a file that is not there.
    """
    found: list[tuple[int, int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(None)  # the reading says why
        else:
            times = status.st_mtime_ns, status.st_ctime_ns
            found.append((*times, status.st_size, status.st_ino))
    return tuple(found)


def _warn_about_key(files: TlsFiles) -> None:
    try:
        mode = files.key.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {files.flags}-key {files.key}: {error.strerror}"
        ) from error
    if mode & 0o077:
        log.warning(
            "the TLS key can be read by other users: chmod 600 it",
            file=str(files.key),
            mode=f"{mode:04o}",
        )
