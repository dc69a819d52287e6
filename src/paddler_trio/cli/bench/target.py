"""A server under test: how to reach it, and what to ask of it."""

from __future__ import annotations

import json
import socket
import ssl
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Protocol

import attrs
import trio

from paddler_trio.cli.bench.target_address import BaseUrl
from paddler_trio.cli.bench.workloads import Ask
from paddler_trio.errors import ConfigurationError, PaddlerError


class TargetUnreachableError(PaddlerError):
    """No conversation with a target, or it refused; the text names it and the cause."""


class Dial(Protocol):
    """Opens a plain connection to a target."""

    async def __call__(self) -> trio.abc.Stream: ...


@attrs.frozen(kw_only=True)
class Target:
    """See the module docstring.

    Args:
      label: what it is called in tables.
      model: the name in requests.
      key: the API key to show; None for none. It is in no text that is shown.
      tls: what to verify the server with; None for a plain connection.
      ignores_end: ask for answers of full length (``ignore_eos``), which llama.cpp, vLLM and this
        package know.
    """

    label: str
    url: BaseUrl
    dial: Dial
    model: str = ""
    key: str | None = attrs.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    ignores_end: bool = True

    async def connect(self) -> trio.abc.Stream:
        """Errors: OSError, ssl.SSLError, trio.BrokenResourceError."""
        stream = await self.dial()
        if self.tls is None:
            return stream
        try:
            encrypted = trio.SSLStream(
                stream, self.tls, server_hostname=self.url.host, https_compatible=True
            )
            await encrypted.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return encrypted

    def headers(self, num_bytes: int) -> list[tuple[str, str]]:
        """Return the headers of a request with a body of so many bytes."""
        headers = [("Host", self.url.authority), ("User-Agent", "paddler-trio-bench")]
        if self.key is not None:
            headers.append(("Authorization", f"Bearer {self.key}"))
        if num_bytes:
            headers.append(("Content-Type", "application/json"))
            headers.append(("Content-Length", str(num_bytes)))
        return headers

    def body_of(self, ask: Ask) -> bytes:
        """A chat completion that is streamed, sampled greedily, and tells its usage."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": ask.text}],
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_end:
            body["ignore_eos"] = True
        return json.dumps(body).encode()


MAX_ADDRESSES: Final = 8
CONNECT_S: Final = 5.0


@attrs.frozen
class Resolved:
    """A base URL, and its IP addresses as texts, the system's favourite first: a link-local one has
    its zone."""

    url: BaseUrl
    ips: tuple[str, ...]

    @property
    def public_ip(self) -> str | None:
        """One that may be a machine of other people; None if all are of one's own network."""
        return next((ip for ip in self.ips if _is_public(ip)), None)

    async def answering_ip(self) -> str:
        """The one address that all connections go to: the first that takes one, else the first.

        A host may have several and its server listen on one: ``localhost`` often is ``::1`` first,
        and llama-server is at 127.0.0.1.
        """
        for ip in self.ips if len(self.ips) > 1 else ():
            try:
                stream = await connected(ip, self.url.port)
            except OSError:
                continue
            await trio.aclose_forcefully(stream)
            return ip
        return self.ips[0]


async def connected(ip: str, port: int) -> trio.SocketStream:
    """A connection within ``CONNECT_S``; OSError."""
    try:
        with trio.fail_after(CONNECT_S):
            return await trio.open_tcp_stream(ip, port)
    except trio.TooSlowError as error:
        raise OSError(f"no connection within {CONNECT_S:g} s") from error


def _is_public(ip: str) -> bool:
    address: IPv4Address | IPv6Address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_global


async def resolve(url: BaseUrl) -> Resolved:
    """Ask for the addresses once: what was asked about is what gets the load.

    Errors:
      ConfigurationError: there is no such host.
    """
    try:
        found = await trio.socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot find the host of {url}: {reason}") from error
    ips = dict.fromkeys(str(address[0]) for *_, address in found)
    return Resolved(url, tuple(ips)[:MAX_ADDRESSES])
