"""Protection against DNS rebinding: the ``Host`` names allowed on a port without API keys.

A page can let its own name resolve to an address of its reader's network, the loopback included.
For the browser, page and service are then one origin, and the page may send and read anything. It
cannot change the ``Host`` of its requests, which is its name.

So on such a port the ``Host`` has to be a name that an attacker cannot rebind: an address;
``localhost``; on a port bound beyond the loopback also this machine's own name, or one that no
public DNS resolves; and the names that the operator allows. Where a key is required there is no
such check: a page has none.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.net.server.router import refuse_upgrade

log = structlog.get_logger("hosts")

FLAG = "--allowed-host"
LOCAL_SUFFIXES = (".local", ".internal", ".home.arpa")
"""Reserved for private networks: like a name without a dot, no public DNS resolves them."""
FQDN_TIMEOUT_S = 1.0
MAX_SHOWN_CHARS = 100

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]*)\]|([^\[\]:@/\\?#\s]*))(?::[0-9]*)?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")


@attrs.frozen(eq=False)
class AllowedHosts:
    """Wraps applications so that they answer only under names that cannot be rebound.

    Args:
      names: beside addresses and ``localhost``; lower case. See `allowed_names`, `own_names`.
      is_loopback: the port is bound to the loopback alone.
      requires_key: whether the port requires an API key, at this moment.
    """

    names: frozenset[str]
    is_loopback: bool
    requires_key: Callable[[], bool]

    def __call__(self, app: App, *, refuse: Refuse = refuse_in_plain_text) -> App:
        """Return ``app`` with the hosts of its requests checked."""

        async def answer(exchange: Exchange) -> None:
            host = exchange.header(b"host")
            if not host or self.requires_key() or self.allows(host.decode("latin-1")):
                await app(exchange)  # without a Host it is no browser
                return
            problem = self._problem(host.decode("latin-1"))
            log.warning("refused: a foreign Host", reason=problem.text)
            if exchange.is_websocket:
                await refuse_upgrade(exchange.send, problem)
            else:
                await refuse(exchange, problem)

        return answer

    def allows(self, host: str) -> bool:
        """Return whether the value of a ``Host`` header is allowed; its port does not matter."""
        name = _name_in(host)
        if name is None:
            return False
        if _is_address(name) or name in self.names:
            return True
        if name == "localhost" or name.endswith(".localhost"):
            return True
        return not self.is_loopback and ("." not in name or name.endswith(LOCAL_SUFFIXES))

    def _problem(self, host: str) -> HttpProblem:
        name = _name_in(host)
        advice = "use an address or localhost"
        if name is not None and _NAME.fullmatch(name) and len(name) <= MAX_SHOWN_CHARS:
            advice += f", or start the balancer with {FLAG} {name} if that is its name"
        shown = repr(host[:MAX_SHOWN_CHARS])
        return HttpProblem(
            403, f"Host {shown} is not allowed on a port that asks for no API key: {advice}"
        )


def allowed_names(values: Iterable[str]) -> frozenset[str]:
    """The names that an operator allows; ConfigurationError for one that is no host name."""
    names = frozenset(value.lower().removesuffix(".") for value in values)
    for name in names:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{FLAG} {name!r} is not the name of a host: give it without scheme, port and "
                "path, such as llm.example.org"
            )
    return names


async def own_names() -> frozenset[str]:
    """This machine's name, and the name with its domain if that resolves within a second."""
    names = {socket.gethostname()}
    with trio.move_on_after(FQDN_TIMEOUT_S):
        names.add(await trio.to_thread.run_sync(socket.getfqdn, abandon_on_cancel=True))
    return frozenset(name.lower().removesuffix(".") for name in names)


def _name_in(host: str) -> str | None:
    """The name or address in a ``Host`` header, lower case; None if there is none."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    return (found[1] or found[2] or "").lower().removesuffix(".") or None


def _is_address(name: str) -> bool:
    return len(name) <= MAX_SHOWN_CHARS and _is_short_address(name)


@lru_cache(maxsize=64)
def _is_short_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
