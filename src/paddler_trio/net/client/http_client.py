"""A small HTTP/1.1 client for large bodies: h11 for heads, the socket itself for what follows.

A body with a Content-Length goes from the socket to its reader in large pieces; nothing parses it.
Connections are kept and used again. The proxies of the environment are used (``HTTP_PROXY``,
``HTTPS_PROXY``, ``NO_PROXY``), and its certificates (``SSL_CERT_FILE``, ``SSL_CERT_DIR``) beside
certifi's.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias
from urllib.request import getproxies, proxy_bypass

import attrs
import certifi
import h11
import httpx
import trio

from paddler_trio.net.client.tls_stream import TlsStream
from paddler_trio.net.h11_bounds import bound_parsing

bound_parsing()

PIECE_BYTES: Final = 256 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_PORT: Final = 65_535
MAX_IDLE: Final = 8
"""Connections kept for each origin."""
USER_AGENT: Final = "paddler-trio"
_NO_BODY = frozenset({204, 304})
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA: Final = tuple(
    map(ipaddress.ip_network, ("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32"))
)
"""Where clouds tell machines who they are, beside link-local addresses: of AWS, Alibaba, Azure."""
_CARRIERS: Final = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::/96", "64:ff9b:1::/48")))
"""Whose last 32 bits are an address of IPv4: NAT64, and IPv4-compatible addresses."""
_LOCAL_NAT64: Final = ipaddress.ip_network("64:ff9b:1::/48")
_ISATAP: Final = 0x0000_5EFE
"""The upper half of an interface identifier whose lower half is an address of IPv4."""


class NoAnswerError(Exception):
    """No connection, or no head of an answer; the text is the cause."""


class AnswerBrokenError(Exception):
    """The head of the answer breaks HTTP's rules; the text is the cause."""


class BodyBrokenError(Exception):
    """The body ended early or fell silent; the text is the cause."""


@attrs.define(eq=False)
class Connection:
    """An open connection to an origin.

    Args:
      through: what a request line is preceded by, for a proxy that forwards; else empty.
    """

    stream: trio.SocketStream | TlsStream
    key: tuple[str, str, int]
    through: str = ""
    is_used_before: bool = False


@attrs.define(eq=False, kw_only=True)
class Answer:
    """The head of an answer, and its body piece by piece.

    Args:
      headers: names are lower case; of several with one name, the last.
    """

    url: httpx.URL
    status: int
    headers: Mapping[str, str]
    _client: HttpClient
    _connection: Connection
    _protocol: h11.Connection
    _remaining: int | None
    """Bytes of the body still to come; None if h11 finds its end."""
    _buffered: bytes
    _may_be_kept: bool

    async def receive(self) -> bytes:
        """The next piece of the body; empty at its end. BodyBrokenError."""
        with self._named_errors():
            return await self._receive(PIECE_BYTES)

    async def peek(self, count: int) -> bytes:
        """What comes next of the body, ``count`` bytes or more; fewer if it ends there. It comes
        again. BodyBrokenError."""
        seen = b""
        with self._named_errors():
            while len(seen) < count and (piece := await self._receive(PIECE_BYTES)):
                seen += piece
        self._buffered = seen
        if self._remaining is not None:
            self._remaining += len(seen)
        return seen

    async def receive_into(self, space: memoryview) -> int:
        """Write what comes next of the body to the beginning of ``space``, which is not empty;
        returns how many bytes, 0 at the end. BodyBrokenError.

        The kernel or OpenSSL writes there: no piece is allocated and copied once more.
        """
        stream = self._connection.stream
        with self._named_errors():
            if self._remaining and not self._buffered:
                if isinstance(stream, trio.SocketStream):
                    count = await stream.socket.recv_into(space[: self._remaining])
                else:
                    count = await stream.receive_into(space[: self._remaining])
                self._count(count)
                return count
            piece = await self._receive(len(space))
            count = min(len(piece), len(space))
            space[:count] = piece[:count]
            if count < len(piece):
                self._buffered = piece[count:]
                if self._remaining is not None:
                    self._remaining += len(piece) - count
            return count

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """What ends a body early is a BodyBrokenError; so is silence."""
        silence_s = self._client.timeouts.silence_s
        try:
            with trio.fail_after(silence_s):
                yield
        except trio.TooSlowError as error:
            raise BodyBrokenError(f"{self.url.host} sent nothing for {silence_s:g} s") from error
        except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
            raise BodyBrokenError(f"{self.url.host} broke off: {cause_of(error)}") from error
        except h11.RemoteProtocolError as error:
            raise BodyBrokenError(f"{self.url.host} broke HTTP's rules: {error}") from error

    async def _receive(self, most: int) -> bytes:
        """``most`` bounds what is asked of the network; what is here already may be more."""
        if self._buffered:
            piece, self._buffered = self._buffered, b""
        elif self._remaining is None:
            return await self._receive_framed()
        elif self._remaining == 0:
            return b""
        else:
            count = min(self._remaining, most, PIECE_BYTES)
            piece = bytes(await self._connection.stream.receive_some(count))
        if self._remaining is not None:
            self._count(len(piece))
        return piece

    def _count(self, received: int) -> None:
        assert self._remaining
        if not received:
            raise BodyBrokenError(
                f"{self.url.host} broke off {self._remaining} bytes before the end"
            )
        self._remaining -= received

    async def _receive_framed(self) -> bytes:
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(
                    bytes(await self._connection.stream.receive_some(PIECE_BYTES))
                )
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            else:
                self._remaining = 0
                self._may_be_kept = self._may_be_kept and not self._protocol.trailing_data[0]
                return b""

    async def close(self) -> None:
        """Keep the connection for another request if the body was read, else end it."""
        if self._may_be_kept and self._remaining == 0:
            self._client.keep(self._connection)
        else:
            await _end(self._connection.stream)


@attrs.define(eq=False)
class HttpClient:
    """Make one with :func:`open_client`."""

    timeouts: Timeouts
    is_public: bool = True
    """For servers that anybody may name: proxies are used, and no address is dialled where machines
    of a cloud tell who they are: see :func:`_refuse_forbidden`."""
    make_context: Callable[[], ssl.SSLContext] | None = None
    """Called once, in a thread; None for what verifies public servers."""
    _idle: dict[tuple[str, str, int], list[Connection]] = attrs.field(factory=dict, init=False)
    _tls: ssl.SSLContext | None = attrs.field(default=None, init=False)

    async def send(self, method: str, url: httpx.URL, headers: Mapping[str, str]) -> Answer:
        """Send a request without body; NoAnswerError, AnswerBrokenError. Close the answer.

        A connection that was kept may have been closed since: then another one is used.
        """
        key = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        while True:
            kept = self._idle.get(key)
            connection = kept.pop() if kept else await self._connect(key)
            try:
                with trio.fail_after(self.timeouts.silence_s):
                    return await self._ask(connection, method, url, headers)
            except trio.TooSlowError as error:
                await _end(connection.stream)
                raise NoAnswerError(
                    f"no answer from {url.host} within {self.timeouts.silence_s:g} s"
                ) from error
            except h11.ProtocolError as error:
                await _end(connection.stream)
                raise AnswerBrokenError(f"{url.host} broke HTTP's rules: {error}") from error
            except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
                await _end(connection.stream)
                if not connection.is_used_before:
                    raise NoAnswerError(f"{url.host} did not answer: {cause_of(error)}") from error
            except BaseException:
                await _end(connection.stream)
                raise

    def keep(self, connection: Connection) -> None:
        """Use the connection again for the next request to its origin."""
        connection.is_used_before = True
        kept = self._idle.setdefault(connection.key, [])
        if len(kept) < MAX_IDLE:
            kept.append(connection)

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                await _end(connection.stream)
        self._idle.clear()

    async def _ask(
        self, connection: Connection, method: str, url: httpx.URL, headers: Mapping[str, str]
    ) -> Answer:
        protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        sent = {
            "Host": url.netloc.decode("ascii").rpartition("@")[2],
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        }
        if url.userinfo and "Authorization" not in sent:
            sent["Authorization"] = f"Basic {base64.b64encode(url.userinfo).decode()}"
        target = connection.through.encode() + url.raw_path
        request = h11.Request(method=method, target=target, headers=list(sent.items()))
        await connection.stream.send_all(protocol.send(request) + protocol.send(h11.EndOfMessage()))
        head = await _head(connection.stream, protocol)
        received = {name.decode().lower(): value.decode("latin-1") for name, value in head.headers}
        has_no_body = method == "HEAD" or head.status_code in _NO_BODY
        length = received.get("content-length")
        remaining = None
        if has_no_body:
            remaining = 0
        elif length is not None and "transfer-encoding" not in received:
            remaining = int(length)  # h11 let only digits through
        buffered = protocol.trailing_data[0] if remaining else b""
        tokens = received.get("connection", "").lower()
        return Answer(
            url=url,
            status=head.status_code,
            headers=received,
            client=self,
            connection=connection,
            protocol=protocol,
            remaining=remaining,
            buffered=buffered[:remaining],
            may_be_kept=head.http_version == b"1.1"
            and "close" not in tokens
            and (remaining is None or len(protocol.trailing_data[0]) <= remaining),
        )

    async def _connect(self, key: tuple[str, str, int]) -> Connection:
        scheme, host, port = key
        if port > MAX_PORT:  # the system would take the lower 16 bits
            raise NoAnswerError(f"cannot reach {host}: its port is {port}, the last is {MAX_PORT}")
        try:
            with trio.fail_after(self.timeouts.connect_s):
                proxy = _proxy_for(scheme, host, port) if self.is_public else None
                if proxy is None:
                    transport = await self._dial(host, port)
                else:
                    # it resolves names, and decides about them; what is an address is judged here
                    _refuse_forbidden(_literal(host))
                    transport = await trio.open_tcp_stream(proxy.host, proxy.port or 80)
                stream: trio.SocketStream | TlsStream = transport
                try:
                    if proxy is not None and scheme == "https":
                        await _tunnel(transport, proxy, host, port)
                    if scheme == "https":
                        stream = await self._encrypted(transport, host)
                except BaseException:
                    await _end(transport)
                    raise
        except trio.TooSlowError as error:
            raise NoAnswerError(
                f"no connection to {host} within {self.timeouts.connect_s:g} s"
            ) from error
        except (OSError, ValueError, OverflowError, trio.BrokenResourceError) as error:
            raise NoAnswerError(f"cannot reach {host}: {cause_of(error)}") from error
        forwards = proxy is not None and scheme == "http"
        return Connection(stream, key, f"http://{host}:{port}" if forwards else "")

    async def _dial(self, host: str, port: int) -> trio.SocketStream:
        """A connection; OSError where there is none, or its address is one that is never dialled.

        A name may be another one's when it is looked up again: the address that was reached is
        judged too, before anything is sent to it.
        """
        if self.is_public:
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
            _refuse_forbidden(str(each[4][0]) for each in found)
        transport = await trio.open_tcp_stream(host, port)
        if self.is_public:
            try:
                _refuse_forbidden([str(transport.socket.getpeername()[0])])
            except OSError:
                await _end(transport)
                raise
        return transport

    async def _encrypted(self, stream: trio.SocketStream, host: str) -> TlsStream:
        if self._tls is None:
            self._tls = await trio.to_thread.run_sync(self.make_context or _tls_context)
        return await TlsStream.open(stream, self._tls, host)


def _refuse_forbidden(addresses: Iterable[str]) -> None:
    """Raise OSError for an address at which a cloud tells machines who they are, in any of the
    forms in which IPv6 carries one of IPv4."""
    for address in addresses:
        for meant in _meant(ipaddress.ip_address(address.partition("%")[0])):
            if meant.is_link_local:
                raise OSError(f"its address {address} is link-local, which is never dialled")
            if any(meant in network for network in _METADATA):
                raise OSError(f"its address {address} is a cloud's own, which is never dialled")


def _meant(address: Address) -> Iterator[Address]:
    """Yield the address, and those of IPv4 that it stands for, or packets to it may end at."""
    yield address
    if not isinstance(address, ipaddress.IPv6Address):
        return
    carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    low = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    number = int(address)
    is_isatap = (number >> 32) & 0xFDFF_FFFF == _ISATAP
    if is_isatap or any(address in network for network in _CARRIERS):
        carried.append(low)
    if address in _LOCAL_NAT64:  # a prefix of 48 bits: the address is around the bits 64 to 71
        carried.append(ipaddress.IPv4Address((number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF))
    yield from (each for each in carried if each is not None)


def _literal(host: str) -> list[str]:
    """Return the address that a host's name is, in any notation that a resolver takes; none if it
    is a name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return []
    return [str(each[4][0]) for each in found]


@asynccontextmanager
async def open_client(timeouts: Timeouts) -> AsyncIterator[HttpClient]:
    """A client for the public network, whose connections end with the block."""
    client = HttpClient(timeouts)
    try:
        yield client
    finally:
        await client.close()


def cause_of(error: BaseException) -> str:
    """The operating system's text if it was asked, else the library's."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {seen.verify_message}"
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
            continue
        seen = seen.__cause__ or seen.__context__
    return str(error) or type(error).__name__


async def _end(stream: trio.abc.Stream) -> None:
    """Close at once, in a cancelled scope too."""
    with trio.CancelScope(shield=True):  # nothing in it waits
        await trio.aclose_forcefully(stream)


async def _head(stream: trio.abc.Stream, protocol: h11.Connection) -> h11.Response:
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            received = bytes(await stream.receive_some(MAX_HEAD_BYTES))
            if not received:
                raise trio.BrokenResourceError("the connection was closed")
            protocol.receive_data(received)
        elif isinstance(event, h11.Response):
            return event


async def _tunnel(stream: trio.abc.Stream, proxy: httpx.URL, host: str, port: int) -> None:
    """Have the proxy connect to ``host``."""
    protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [("Host", place)]
    if proxy.userinfo:
        credentials = base64.b64encode(proxy.userinfo).decode()
        headers.append(("Proxy-Authorization", f"Basic {credentials}"))
    request = h11.Request(method="CONNECT", target=place, headers=headers)
    await stream.send_all(protocol.send(request) + protocol.send(h11.EndOfMessage()))
    try:
        head = await _head(stream, protocol)
    except h11.RemoteProtocolError as error:
        raise trio.BrokenResourceError(f"the proxy broke HTTP's rules: {error}") from error
    if not 200 <= head.status_code < 300:
        raise trio.BrokenResourceError(f"the proxy {proxy.host} answered {head.status_code}")


def _proxy_for(scheme: str, host: str, port: int) -> httpx.URL | None:
    proxies = getproxies()
    text = proxies.get(scheme) or proxies.get("all")
    if not text or proxy_bypass(f"{host}:{port}"):
        return None
    proxy = httpx.URL(text if "://" in text else f"http://{text}")
    if proxy.scheme != "http":
        raise trio.BrokenResourceError(f"proxies of the kind {proxy.scheme} are not supported")
    return proxy


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@attrs.frozen(kw_only=True)
class Timeouts:
    """All in seconds.

    Args:
      connect_s: for a connection, TLS included.
      silence_s: between two pieces of an answer, and before its headers.
      lock_s: how long another process may hold a file's lock without any progress.
      lock_poll_s: between two looks at a lock.
    """

    connect_s: float = 10.0
    silence_s: float = 30.0
    lock_s: float = 120.0
    lock_poll_s: float = 0.5
