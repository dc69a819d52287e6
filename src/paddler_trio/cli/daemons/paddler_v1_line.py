"""A command line of Paddler before 2.0, taken apart: its own flags, and everything else.

There were three generations of flags: Go up to 0.10 (a flag each for host, port and scheme), Rust
1.0 to 1.2 (``host:port``, durations in seconds), and the last state before 2.0, which was never
released.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

METADATA: Final = "aws:metadata:"
_UNITS_MS: Final = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "m": 60e3,
    "h": 3600e3,
}
_DURATION: Final = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ns|us|µs|ms|s|m|h))+")
_PART: Final = re.compile(r"([\d.]+)([a-zµ]+)")


def _addresses(*stems: str) -> frozenset[str]:
    return frozenset(f"{stem}-{part}" for stem in stems for part in ("host", "port", "scheme"))


@attrs.frozen
class Flags:
    """The flags of one command, without dashes.

    Args:
      go, rust: those that we lack; of rust, the unreleased ones as well.
      both: those that we have too and that matter for the translation.
    """

    go: frozenset[str]
    rust: frozenset[str]
    both: frozenset[str]


AGENT: Final = Flags(
    go=_addresses("local-llamacpp", "external-llamacpp", "management", "status-server")
    | {"local-llamacpp-api-key", "agent-reporting-interval-miliseconds"},
    rust=frozenset({"local-llamacpp-addr", "external-llamacpp-addr", "llamacpp-api-key"}),
    both=frozenset({"management-addr", "upstream"}),
)
BALANCER: Final = Flags(
    go=_addresses("management", "reverseproxy", "statsd")
    | {"statsd-enable", "request-buffer-size", "request-buffer-timeout"},
    rust=frozenset({"management-dashboard-enable"}),
    both=frozenset(
        {
            "management-addr",
            "reverseproxy-addr",
            "statsd-addr",
            "statsd-prefix",
            "statsd-reporting-interval",
            "buffered-request-timeout",
        }
    ),
)
SWITCHES: Final = frozenset({"statsd-enable", "management-dashboard-enable"})
"""Flags without a value; Go also took ``=true`` and ``=false``."""


@attrs.frozen
class OldLine:
    """Values are by name without dashes, the last one where a flag is repeated.

    Args:
      old: of flags that we lack; ``true`` or ``false`` for switches.
      both: of flags that we have too, as ``Flags.both`` names them.
      rest: every other word, in its order.
      is_go: whether a flag of Go's generation is among them.
      incomplete: names of flags whose value is missing.
    """

    old: Mapping[str, str]
    both: Mapping[str, str]
    rest: tuple[str, ...]
    is_go: bool
    incomplete: tuple[str, ...]

    @classmethod
    def read(cls, words: Sequence[str], flags: Flags) -> OldLine:
        """Take a command's words apart; ``-name`` and ``--name=value`` are as good as others."""
        known = flags.go | flags.rust | flags.both
        values: dict[str, str] = {}
        rest: list[str] = []
        incomplete: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            name, has_value, value = word.lstrip("-").partition("=")
            if not word.startswith("-") or name not in known:
                rest.append(word)
                continue
            if not has_value and name in SWITCHES:
                value = "true"
            elif not has_value and left:
                value = left.pop(0)
            elif not has_value:
                incomplete.append(name)
            values[name] = value
        return cls(
            old={name: value for name, value in values.items() if name not in flags.both},
            both={name: value for name, value in values.items() if name in flags.both},
            rest=tuple(rest),
            is_go=any(name in flags.go for name in values),
            incomplete=tuple(incomplete),
        )


def milliseconds_of_go(duration: str) -> int | None:
    """``60s``, ``1m30s`` or ``500ms``, as Go writes durations; None if it is none."""
    if duration == "0":
        return 0
    if not _DURATION.fullmatch(duration):
        return None
    return round(sum(float(n) * _UNITS_MS[unit] for n, unit in _PART.findall(duration)))


def joined_address(host: str, port: str) -> str:
    """``host:port``, an IPv6 address in brackets; ``aws:metadata:ITEM`` is a host, too."""
    is_ipv6 = ":" in host and not host.startswith(METADATA)
    return f"[{host}]:{port}" if is_ipv6 else f"{host}:{port}"
