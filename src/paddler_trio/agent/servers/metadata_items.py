"""``aws:metadata:ITEM`` in what operators write: its items, and texts with their values. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final

from paddler_trio.errors import ConfigurationError

HOSTS: Final = (
    "local-ipv4",
    "public-ipv4",
    "ipv6",
    "local-hostname",
    "public-hostname",
    "hostname",
)
"""Items that an address may have for a host."""
NAMES: Final = (*HOSTS, "instance-id")
"""Items that may be a name."""
MAX_SHOWN_CHARS: Final = 80
_WRITTEN: Final = re.compile(r"\[?aws:metadata:(?P<item>[0-9A-Za-z_-]*)\]?")
_VALUE: Final = re.compile(r"[0-9A-Za-z._:-]+")
_IP_ITEMS: Final = {"local-ipv4": 4, "public-ipv4": 4, "ipv6": 6}


def items_in(text: str) -> list[str]:
    """Return the items that ``text`` asks for, in their order."""
    return [found["item"] for found in _WRITTEN.finditer(text)]


def check_item(item: str, *, is_address: bool) -> None:
    """Check an item; ConfigurationError for one item that is none, or no host where a host is to
    be."""
    allowed = HOSTS if is_address else NAMES
    if item not in allowed:
        kind = "host" if is_address else "name"
        raise ConfigurationError(
            f"aws:metadata:{item[:MAX_SHOWN_CHARS]} is no {kind} that an instance has: write "
            f"aws:metadata: and one of {', '.join(allowed)}"
        )


def stood_in(text: str, *, is_address: bool = True) -> str:
    """Return ``text`` with something plausible for each item, to be judged before any is asked for.

    ConfigurationError for an item that `check_item` refuses.
    """
    items = items_in(text)
    for item in items:
        check_item(item, is_address=is_address)
    return filled_in(text, dict.fromkeys(items, "127.0.0.1"), is_address=is_address)


def is_value_of(item: str, value: str) -> bool:
    """Return whether this is an IP address of the item's version; or else a host's or an instance's
    name."""
    version = _IP_ITEMS.get(item)
    if version is None:
        return _VALUE.fullmatch(value) is not None and ":" not in value
    try:
        return ipaddress.ip_address(value).version == version and "%" not in value
    except ValueError:
        return False


def filled_in(text: str, values: Mapping[str, str], *, is_address: bool) -> str:
    """Return ``text`` with a value for each item; in an address an IPv6 one gets brackets."""

    def value(found: re.Match[str]) -> str:
        told = values[found["item"]]
        return f"[{told}]" if is_address and ":" in told else told

    return _WRITTEN.sub(value, text)
