"""Judge settings: addresses, labels, names, and defaults that the machine decides."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.machine import available_memory_bytes, granted_physical_cores
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import MAX_AGENT_NAME_CHARS, check_labels

DEFAULT_INFERENCE_ADDR = "127.0.0.1:8061"
DEFAULT_MANAGEMENT_ADDR = "127.0.0.1:8060"
MAX_SLOTS = 4096
"""More than llama.cpp can run (256); an agent that cannot start them reports an issue."""


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return labels from ``KEY=VALUE``; ConfigurationError names the one that is wrong."""
    labels: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"{text[:80]!r} is not a label: write KEY=VALUE")
        if labels.setdefault(key, value) != value:
            raise ConfigurationError(f"the label {key[:80]!r} is given twice")
    check_agent_labels(labels)
    return labels


def check_display_name(name: str) -> None:
    """Raise ConfigurationError if people could not tell an agent by it, or balancers refuse it.
    Those that join with a token have stricter rules."""
    if not name or name.isspace():
        raise ConfigurationError(f"{name[:80]!r} is no name: give one, or leave the option out")
    if len(name) > MAX_AGENT_NAME_CHARS:
        raise ConfigurationError(
            f"{name[:40]!r}... has {len(name)} characters, the limit is {MAX_AGENT_NAME_CHARS}"
        )


def check_agent_labels(labels: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless agents may have these labels."""
    try:
        check_labels(labels)
    except ShapeError as error:
        raise ConfigurationError(error.text) from error


def default_threads() -> int:
    """Return one thread for each physical core: threads give way where event loops or other
    programs need a core."""
    return granted_physical_cores()


def default_prefix_cache_bytes() -> int:
    """Return a tenth of the memory that is available now, 4 GiB at most: prefixes are worth less
    than room for a model."""
    available = available_memory_bytes() or 0
    return min(available // 10, 4 * 1024**3)


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, an IPv6 host in brackets.

    Errors:
      ConfigurationError: no host, no port, or a port outside 0 to 65535.
    """
    host, _, digits = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif any(each in host for each in ":[]"):
        host = ""
    is_port = digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= 65_535
    if not (host and is_port and _can_be_looked_up(host)):
        raise ConfigurationError(
            f"{address!r} is not an address: write host:port or [ipv6]:port with a port from 0 to "
            "65535, such as 127.0.0.1:8060"
        )
    return host, int(digits)


def _can_be_looked_up(host: str) -> bool:
    """Return whether the resolver takes the name: it crashes on empty labels and on those over 63
    bytes, also where a name that is not found would only be tried again."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine has what this name or address means."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
