"""The days on which to warn that a certificate expires: 30, 7 and 1 before, and the last."""

from __future__ import annotations

from typing import Final

import attrs
import structlog

from paddler_trio.net.tls.certificate import Certificate, date_of

log = structlog.get_logger("tls")

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
