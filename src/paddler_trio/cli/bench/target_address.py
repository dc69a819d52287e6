"""The base URL of a load test, as people write it. Pure."""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError

MAX_CHARS: Final = 300
_URL: Final = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~%-]+)*)/?"
)


@attrs.frozen
class BaseUrl:
    """An IPv6 ``host`` has no brackets; ``path`` begins with a slash and ends with none, or is
    empty, and has no ``/v1`` at its end."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_base_url(text: str) -> BaseUrl:
    """``host:port``, ``http://host[:port][/path]`` or the same with ``https``; a ``/v1`` at the end
    may be given or not.

    Errors:
      ConfigurationError: it is none of these.
    """
    match = _URL.fullmatch(text.strip()) if len(text) <= MAX_CHARS else None
    scheme = None if match is None else match["scheme"]
    port = 0
    if match is not None:
        default = {"http": 80, "https": 443}.get(scheme or "", 0)
        port = default if match["port"] is None else int(match["port"])
    if match is None or not 1 <= port <= 65_535:
        raise ConfigurationError(
            f"{text[:MAX_CHARS]!r} is no base URL: write host:port, http://host:port or "
            "https://host:port, with a port from 1 to 65535 and perhaps a path, such as "
            "http://127.0.0.1:8080/v1"
        )
    path = match["path"].removesuffix("/v1")
    return BaseUrl(match["host"].strip("[]"), port, scheme == "https", path)
