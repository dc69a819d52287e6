"""Look for balancers that announce themselves on the local network. It blocks, for commands only.

What is found was said by anybody: names and addresses to try, and nothing to trust. The library's
threads end before this returns.
"""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining import service_type
from paddler_trio.net.joining.join_token import TLS_SCHEME
from paddler_trio.net.joining.service_type import SERVICE_TYPE, VERSION

if TYPE_CHECKING:
    from zeroconf import Zeroconf

LOOK_S: Final = 3.0
SETTLE_S: Final = 1.0
"""How long others may take to answer once one has."""
MAX_FOUND: Final = 32
MAX_ADDRESSES: Final = 8
BALANCER_NAME: Final = re.compile(r"[!-~]{1,80}", re.ASCII)


@attrs.frozen
class FoundBalancer:
    """A balancer as it was announced; ``addresses`` are of its management service, with TLS."""

    name: str
    addresses: tuple[str, ...]


def found_balancers(look_s: float = LOOK_S) -> Sequence[FoundBalancer]:
    """Return those that answer in this time, by name; ConfigurationError if none can be asked."""
    try:
        from zeroconf import IPVersion, ServiceBrowser, ServiceStateChange, Zeroconf
    except ImportError as error:
        raise ConfigurationError(f"--discover {service_type.MISSING}") from error
    names: queue.Queue[str] = queue.Queue(MAX_FOUND)

    def heard(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Added and not names.full():
            names.put_nowait(name)

    try:
        try:
            zeroconf = Zeroconf(ip_version=IPVersion.All)
        except OSError:  # without IPv6
            zeroconf = Zeroconf(ip_version=IPVersion.V4Only)
    except OSError as error:
        raise ConfigurationError(
            f"the local network cannot be asked for balancers: {error.strerror or error}; give "
            "--management-addr, or join with a token (`paddler-trio join`)"
        ) from error
    with zeroconf:
        browser = ServiceBrowser(zeroconf, SERVICE_TYPE, handlers=[heard])
        try:
            return _resolved(zeroconf, names, time.monotonic() + look_s)
        finally:
            browser.cancel()


def _resolved(
    zeroconf: Zeroconf, names: queue.Queue[str], until_s: float
) -> Sequence[FoundBalancer]:
    """Return what is behind the names that come in until then."""
    from zeroconf import IPVersion

    found: dict[tuple[str, ...], FoundBalancer] = {}
    while (left_s := until_s - time.monotonic()) > 0 and len(found) < MAX_FOUND:
        try:
            name = names.get(timeout=left_s)
        except queue.Empty:
            break
        info = zeroconf.get_service_info(SERVICE_TYPE, name, timeout=int(left_s * 1000) + 1)
        if info is None or info.properties.get(b"v") != VERSION.encode() or not info.port:
            continue
        said = (info.properties.get(b"name") or b"").decode("latin-1")
        v4 = info.parsed_addresses(IPVersion.V4Only)
        v6 = [f"[{each}]" for each in info.parsed_scoped_addresses(IPVersion.V6Only)]
        addresses = tuple(f"{TLS_SCHEME}{host}:{info.port}" for host in (*v4, *v6)[:MAX_ADDRESSES])
        if addresses and BALANCER_NAME.fullmatch(said) is not None:
            found[addresses] = FoundBalancer(said, addresses)
            until_s = min(until_s, time.monotonic() + SETTLE_S)
    return sorted(found.values(), key=lambda each: (each.name, each.addresses))
