"""Why the balancer cannot be dialled."""

from __future__ import annotations

import socket

import pytest

from paddler_trio.agent.link.balancer_dial import dial
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_what_the_system_said_is_in_the_error(host: str, is_tls: bool) -> None:
    with socket.socket() as taken:  # bound, so no other process has it, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = BalancerAddress(host, taken.getsockname()[1], is_tls=is_tls)
        with pytest.raises(OSError, match=r"failed: Connection refused"):
            await dial(address, SYSTEM_TRUST)
