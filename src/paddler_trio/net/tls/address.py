"""The address of a balancer's service as people write it: ``host:port``, with or without TLS."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import split_address

_TLS_SCHEMES: Final = ("https://", "wss://")
_PLAIN_SCHEMES: Final = ("http://", "ws://")
MAX_CHARS: Final = 300


@attrs.frozen
class BalancerAddress:
    """An IPv6 ``host`` has no brackets. The text of one is what :func:`parse_address` reads."""

    host: str
    port: int
    is_tls: bool = False

    def __str__(self) -> str:
        return f"https://{self.authority}" if self.is_tls else self.authority

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL that HTTP clients want, without a slash at the end."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def parse_address(text: str) -> BalancerAddress:
    """``host:port`` and ``http://host:port`` are plain, ``https://`` and ``wss://`` mean TLS.

    Errors:
      ConfigurationError: another scheme, a path behind it, or no host and port.
    """
    rest, is_tls = text.strip(), False
    lower = rest.lower()
    for scheme in (*_TLS_SCHEMES, *_PLAIN_SCHEMES):
        if lower.startswith(scheme):
            rest, is_tls = rest[len(scheme) :].removesuffix("/"), scheme in _TLS_SCHEMES
            break
    if "/" in rest or "@" in rest or len(rest) > MAX_CHARS:
        raise ConfigurationError(
            f"{text[:MAX_CHARS]!r} is not an address: write host:port, or https://host:port for "
            "TLS, without a path or a name before it"
        )
    try:
        host, port = split_address(rest)
    except ConfigurationError as error:
        if rest == text:
            raise
        raise ConfigurationError(
            f"{text!r} is not an address: write https://host:port or https://[ipv6]:port with a "
            "port from 0 to 65535, such as https://127.0.0.1:8060"
        ) from error
    return BalancerAddress(host, port, is_tls)
