"""Decide when a failed download is tried again."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.net.client.download_errors import DownloadError, ServerFailedError

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 60.0
PERMANENT_RETRY_S: Final = 600.0
"""The pause after a permanent error, unless the token or the desired state changes before."""


@attrs.define
class RetryDelay:
    """Doubles from 1 s to 60 s; a server's Retry-After counts up to ten minutes.

    Args:
      random: a number in [0, 1), a new one for each delay: machines that failed together do not
        come back together.
    """

    _failures: int = attrs.field(default=0, init=False)

    def after(self, error: Exception, random: float) -> float:
        """Return the seconds until the next attempt; one more failure is counted."""
        if isinstance(error, DownloadError) and error.is_permanent:
            return PERMANENT_RETRY_S
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(self._failures, 16), LONGEST_RETRY_S)
        self._failures += 1
        delay_s *= 0.5 + random / 2
        if isinstance(error, ServerFailedError) and error.retry_after_s is not None:
            return min(max(delay_s, error.retry_after_s), PERMANENT_RETRY_S)
        return delay_s

    def reset(self) -> None:
        """Note that something succeeded, or something else is asked for."""
        self._failures = 0
