"""``info``: what the page has to know of its balancer before it shows anything.

{"version", "addresses": {"inference", "management", "openai", "ollama", "panel"}, "encrypted",
 "join": {"address", "problem", "needs_key"}, "capture"}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from paddler_trio import __version__
from paddler_trio.balancer.panel.join_address import join_address
from paddler_trio.net.server.asgi import send_json
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router


@attrs.frozen(eq=False)
class InfoRoutes:
    """The handler of ``/info``.

    Args:
      addresses: of all listeners, ``host:port`` each.
      agents_need_key: whether an agent that dials in has to bring one.
      captures: whether the balancer keeps the beginnings of prompts and answers.
      is_encrypted: the ports have TLS.
    """

    addresses: Mapping[str, Sequence[str]]
    agents_need_key: Callable[[], bool]
    captures: bool = False
    is_encrypted: bool = False

    def add_to(self, routes: Router) -> None:
        """Answer this path too."""
        routes.http("GET", "/info", self._show)

    async def _show(self, exchange: Exchange, params: Params) -> None:
        join = join_address(exchange, self.addresses["management"], is_encrypted=self.is_encrypted)
        document = {
            "version": __version__,
            "addresses": {name: list(each) for name, each in self.addresses.items()},
            "encrypted": self.is_encrypted,
            "join": {**attrs.asdict(join), "needs_key": self.agents_need_key()},
            "capture": self.captures,
        }
        await send_json(exchange.send, 200, document, headers=[(b"cache-control", b"no-store")])
