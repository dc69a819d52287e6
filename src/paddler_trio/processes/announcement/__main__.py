"""Entry of the process: ``-m paddler_trio.processes.announcement '{"name", "port", "bound"}'``.

``bound`` is where the port listens; an address that stands for all of the machine's is replaced by
those. The announcement is taken back when standard input ends, which it does with the balancer.
Changed addresses are announced anew. Each announcement is a line `announced ADDRESSES port PORT` on
standard output, a problem one on standard error.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import sys
from collections.abc import Sequence
from typing import Final

import ifaddr
from zeroconf import Error, IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from paddler_trio.net.joining.service_type import SERVICE_TYPE, VERSION

LOOK_S: Final = 10.0
"""Between two looks at the machine's addresses."""
MAX_ADDRESSES: Final = 16


def main() -> None:
    """Announce until standard input ends."""
    order = json.loads(sys.argv[1])
    try:
        asyncio.run(_announce(order["name"], order["port"], order["bound"]))
    except (Error, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _announce(name: str, port: int, bound: Sequence[str]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    while not ended.is_set():
        addresses = reachable(bound)
        if addresses:
            await _announce_once(name, port, addresses, bound, ended)
        else:
            await _ended_within(ended, LOOK_S)


async def _announce_once(
    name: str, port: int, addresses: Sequence[str], bound: Sequence[str], ended: asyncio.Event
) -> None:
    """Announce until the end, or until the machine's addresses are others."""
    has_v6 = any(":" in each for each in addresses)
    zeroconf = AsyncZeroconf(
        interfaces=list(addresses), ip_version=IPVersion.All if has_v6 else IPVersion.V4Only
    )
    try:
        info = ServiceInfo(
            SERVICE_TYPE,
            f"{name.replace(':', '-')}.{SERVICE_TYPE}",
            port=port,
            properties={"v": VERSION, "name": name},
            server=f"{socket.gethostname().partition('.')[0] or 'balancer'}.local.",
            parsed_addresses=[each.partition("%")[0] for each in addresses],
        )
        await (await zeroconf.async_register_service(info, allow_name_change=True))
        sys.stdout.write(f"announced {', '.join(addresses)} port {port}\n")
        sys.stdout.flush()
        while not ended.is_set() and reachable(bound) == addresses:
            await _ended_within(ended, LOOK_S)
        await (await zeroconf.async_unregister_service(info))
    finally:
        await zeroconf.async_close()


async def _ended_within(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return


def reachable(bound: Sequence[str]) -> Sequence[str]:
    """Return the addresses under which other machines reach sockets that are bound to these."""
    asked = [ipaddress.ip_address(each) for each in bound]
    found = [each for each in asked if not (each.is_unspecified or each.is_loopback)]
    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            text = each.ip if isinstance(each.ip, str) else f"{each.ip[0]}%{each.ip[2]}"
            own = ipaddress.ip_address(text)
            is_asked = any(
                other.is_unspecified and (other.version == own.version or other.version == 6)
                for other in asked
            )
            if is_asked and not own.is_loopback:
                found.append(own)
    return [str(each) for each in dict.fromkeys(found)][:MAX_ADDRESSES]


if __name__ == "__main__":
    main()
