"""The address of an upstream server: ``http(s)://host:port``, with a path before its own if any."""

from __future__ import annotations

import os
import re
import socket
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

import attrs
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_errors import tls_error_in
from paddler_trio.net.tls.client_tls import ClientTls, DistrustedError
from paddler_trio.system.config import split_address

MAX_CHARS: Final = 300
_ADDRESS: Final = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#@\s]+)(?P<prefix>/[!-~]*)?", re.IGNORECASE
)
_HOST: Final = re.compile(r"[0-9A-Za-z._:%-]+")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@attrs.frozen
class UpstreamAddress:
    """An IPv6 ``host`` has no brackets; ``prefix`` is empty or starts with a slash and ends with
    none. The text of one is what :func:`parse_upstream_address` reads."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def holds(self, target: bytes) -> bool:
        """Return whether a target stays below the prefix, however a server resolves its dots; ``*``
        stands for the whole server.
        """
        if not self.prefix:
            return True
        if target == b"*":
            return False
        depth = 0
        path, _, _ = target.partition(b"?")
        # what reads paths as browsers do takes a backslash for a slash
        for segment in unquote_to_bytes(path).replace(b"\\", b"/").split(b"/"):
            if segment == b"..":
                depth -= 1
            elif segment not in (b"", b"."):
                depth += 1
            if depth < 0:
                return False
        return True


def parse_upstream_address(text: str) -> UpstreamAddress:
    """Read ``http://host:port``, ``https://[ipv6]:port/prefix`` and the like. Without a port it is
    the scheme's own, 80 or 443.

    Errors:
      ConfigurationError: no scheme or another one, no host, a bad port, a user name, a query, or
        more than 300 characters. The text is not repeated when it may hold a password.
    """
    if len(text) > MAX_CHARS:
        raise ConfigurationError(
            f"--upstream has {len(text)} characters, the limit is {MAX_CHARS}: write "
            "http://host:port"
        )
    if "@" in text:
        raise ConfigurationError(
            "--upstream has a user name or password before '@': write http://host:port, and put a "
            "key into a file for --upstream-key-file"
        )
    matched = _ADDRESS.fullmatch(text.strip())
    if matched is None:
        raise _bad(text)
    scheme = matched["scheme"].lower()
    authority, prefix = matched["authority"], matched["prefix"] or ""
    if re.search(r":[0-9]*\Z", authority) is None or authority.endswith("]"):
        authority = f"{authority}:{_DEFAULT_PORTS[scheme]}"
    try:
        host, port = split_address(authority)
    except ConfigurationError as error:
        raise _bad(text) from error
    if port == 0 or _HOST.fullmatch(host) is None or "?" in prefix or "#" in prefix:
        raise _bad(text)
    return UpstreamAddress(host, port, scheme == "https", prefix.rstrip("/"))


def _bad(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"--upstream {text!r} is not the address of a server: write http://host:port or "
        "https://host:port, with a port from 1 to 65535 and without a query, such as "
        "http://127.0.0.1:8080"
    )


_EXPIRED: Final = 10
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21, 24, 27})
_WRONG_NAME: Final = frozenset({62, 64})
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)


def upstream_context(ca_file: Path | None) -> ssl.SSLContext:
    """Authorities of ``ca_file`` decide, or the machine's and certifi's. It blocks for 16 ms;
    ConfigurationError names the file and ``--upstream-ca``."""
    return ClientTls(ca_file=ca_file, ca_flag="--upstream-ca").context()


def tls_cause(error: BaseException, address: UpstreamAddress) -> str | None:
    """One line on what TLS objected to and what to do; None if TLS was not the cause."""
    problem = tls_error_in(error)
    if problem is None:
        return None
    if isinstance(problem, DistrustedError):
        match problem.verify_code:
            case code if code == _EXPIRED:
                return "its certificate has expired: renew it, and check this machine's clock"
            case code if code in _WRONG_NAME:
                return (
                    f"its certificate is for another name ({problem.verify_message}): use a name "
                    "that it has"
                )
            case code if code in _UNKNOWN_ISSUER:
                return (
                    f"no trusted authority vouches for its certificate ({problem.verify_message}): "
                    "give --upstream-ca FILE with its authority"
                )
        return f"its certificate cannot be verified: {problem.verify_message}"
    if problem.reason in _NO_TLS:
        return f"it speaks no TLS: write http://{address.authority}{address.prefix}"
    if isinstance(problem, ssl.SSLEOFError):
        return (
            "it closed the connection during the TLS handshake: if it speaks no TLS, write "
            f"http://{address.authority}{address.prefix}"
        )
    return f"no TLS with it: {problem.reason or problem}"


DIAL_ERRORS = (OSError, UnicodeError, ssl.SSLError, trio.BrokenResourceError)
"""What :func:`dial_upstream` raises; a name that cannot be encoded is a UnicodeError."""


async def dial_upstream(address: UpstreamAddress, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """A stream to the server; with ``tls`` the handshake is over, and the server is verified."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    if tls is None:
        return stream
    # compatible with HTTPS: the framing of HTTP says where an answer ends, not a goodbye of TLS
    encrypted = trio.SSLStream(stream, tls, server_hostname=address.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException:
        with trio.CancelScope(shield=True):  # nothing in it waits
            await trio.aclose_forcefully(stream)
        raise
    return encrypted


def dial_cause(error: BaseException, address: UpstreamAddress) -> str:
    """Return what TLS objected to, else the operating system's text if it was asked, else the
    library's.
    """
    cause = tls_cause(error, address)
    if cause is not None:
        return cause
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        elif isinstance(seen, OSError) and seen.strerror:
            is_name = isinstance(seen, socket.gaierror)
            return seen.strerror if is_name or not seen.errno else os.strerror(seen.errno)
        else:
            seen = seen.__cause__ or seen.__context__
    return str(error) or type(error).__name__


CONNECT_S: Final = 3.0


@attrs.frozen(kw_only=True)
class UpstreamTimeouts:
    """Seconds, each over zero; ``math.inf`` waits for ever.

    Args:
      connect_s: until there is a connection, name resolution and TLS included.
      first_byte_s: from the end of the request to the end of the answer's head.
      idle_s: between two reads of the body, and until a piece of the request's body is taken.
      kept_s: how long a connection stays open without a request. llama-server closes after five.
    """

    connect_s: float = CONNECT_S
    first_byte_s: float = 600.0
    idle_s: float = 120.0
    kept_s: float = 3.0
