"""Decide when a server that fails gets no requests, and when it is tried again."""

from __future__ import annotations

from typing import Final

import attrs

FAILURES_TO_EJECT: Final = 3
FIRST_PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 30.0


@attrs.define(eq=False)
class Ejection:
    """Failures in a row eject, one good probe readmits.

    Requests that fail between two probes are one failure: a client whose request no server answers
    may send it as often as it likes, and a server that is well stays everybody's.

    Requests that succeed end a row of failures, and do not readmit: those that are under way when a
    server is ejected may end well and say nothing about the next.
    """

    reason: str | None = attrs.field(default=None, init=False)
    """Why the server is ejected; None while it is not."""
    next_probe_s: float | None = attrs.field(default=None, init=False)
    """The time at which it is probed again."""
    _num_failures: int = attrs.field(default=0, init=False)
    _num_bad_probes: int = attrs.field(default=0, init=False)
    _has_request_failed: bool = attrs.field(default=False, init=False)
    """A request has failed since the last probe."""

    @property
    def is_ejected(self) -> bool:
        """Return whether it gets no requests."""
        return self.reason is not None

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the last thing that happened was a failure."""
        return self._num_failures > 0

    def request_failed(self, reason: str, now_s: float, random: float) -> None:
        """Note that a request got no answer, or one that says that the server is broken."""
        if self._has_request_failed:
            return
        self._has_request_failed = True
        self._num_failures += 1
        if self._num_failures >= FAILURES_TO_EJECT and self.reason is None:
            self._eject(reason, now_s, random)

    def request_succeeded(self) -> None:
        """Note that a request was answered."""
        if self.reason is None:
            self._num_failures = 0

    def probe_failed(self, reason: str, now_s: float, random: float, *, is_final: bool) -> None:
        """Note that a probe got no good answer; a final one ejects alone: nobody listens there.

        Args:
          random: in [0, 1), a new one each time: servers that failed together are not probed
            together.
        """
        self._has_request_failed = False
        self._num_failures += 1
        if is_final or self.reason is not None or self._num_failures >= FAILURES_TO_EJECT:
            self._eject(reason, now_s, random)

    def probe_succeeded(self) -> None:
        """Note that the server is well."""
        self.reason = self.next_probe_s = None
        self._num_failures = self._num_bad_probes = 0
        self._has_request_failed = False

    def _eject(self, reason: str, now_s: float, random: float) -> None:
        delay_s = min(FIRST_PROBE_S * 2.0 ** min(self._num_bad_probes, 16), LONGEST_PROBE_S)
        self._num_bad_probes += 1
        self.reason = reason
        self.next_probe_s = now_s + delay_s * (0.5 + random / 2)
