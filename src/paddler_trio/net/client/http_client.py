"""A small HTTP/1.1 client for many servers, and for large bodies.

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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeAlias
from urllib.request import getproxies, proxy_bypass

import attrs
import certifi
import httpx
import trio

from paddler_trio.net.client.request_head import UnsendableRequestError, request_head
from paddler_trio.net.client.response_body import (
    SWITCHING,
    BodyPart,
    LengthBody,
    MalformedAnswerError,
    ResponseBody,
    ResponseHead,
    UntilClosedBody,
    body_of,
    head_end,
    parse_head,
)
from paddler_trio.net.client.tls_stream import TlsStream

PIECE_BYTES: Final = 256 * 1024
HEAD_READ_BYTES: Final = 64 * 1024
MAX_INFORMATIONAL: Final = 10
"""Answers with a status below 200 before the real one."""
MAX_PORT: Final = 65_535
MAX_IDLE: Final = 8
"""Connections kept for each origin."""
USER_AGENT: Final = "paddler-trio"

Origin = tuple[str, str, int]
"""Scheme, host and port."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA: Final = tuple(
    map(ipaddress.ip_network, ("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32"))
)
"""Addresses where clouds (AWS, Alibaba, Azure) tell machines who they are."""
_CARRIERS: Final = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::/96", "64:ff9b:1::/48")))
"""Networks whose last 32 bits are an address of IPv4: NAT64 and IPv4-compatible ones."""
_LOCAL_NAT64: Final = ipaddress.ip_network("64:ff9b:1::/48")
_ISATAP: Final = 0x0000_5EFE
"""The upper half of an interface identifier whose lower half is an address of IPv4."""


class NoAnswerError(Exception):
    """No connection, or no head of an answer; the text is the cause."""


class AnswerBrokenError(Exception):
    """The head of the answer breaks HTTP's rules; the text is the cause."""


class BodyBrokenError(Exception):
    """The body ended early or fell silent; the text is the cause."""


class BodyMalformedError(BodyBrokenError):
    """The body breaks HTTP's rules; the text is the cause."""


@attrs.define(eq=False)
class Connection:
    """An open connection to an origin, for one request at a time.

    Args:
      host: the name of the server in errors.
      silence_s: the longest time between two pieces of an answer.
      through: what precedes a request's target, for a proxy that forwards; else empty.
      keep: called with a connection that may be used for another request; returns whether it is
        kept.
    """

    stream: trio.abc.Stream
    host: str
    silence_s: float
    keep: Callable[[Connection], bool]
    through: str = ""
    is_used_before: bool = False

    async def ask(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: bytes = b""
    ) -> Answer:
        """Send a request and read the head of its answer.

        Errors:
          UnsendableRequestError, MalformedAnswerError.
          trio.BrokenResourceError, ssl.SSLError, OSError: the connection has ended.
        """
        head = request_head(
            method.encode("ascii"),
            url.raw_path,
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
            authority=url.netloc.rpartition(b"@")[2],
            origin=self.through.encode("ascii"),
            body_bytes=len(body),
        )
        await self.stream.send_all(head.data + body)
        received, rest = await _read_head(self.stream)
        following = body_of(received, method.encode("ascii"))
        return Answer(url=url, connection=self, head=received, body=following, received=rest)

    async def end(self) -> None:
        """Close at once, in a cancelled scope too."""
        await _end(self.stream)


@attrs.define(eq=False, kw_only=True)
class Answer:
    """The head of an answer, and its body piece by piece."""

    url: httpx.URL
    connection: Connection
    headers: Mapping[str, str] = attrs.field(init=False)
    """Names are lower case; of several with one name, the last counts."""
    _head: ResponseHead
    _body: ResponseBody
    _received: bytes
    """Bytes that came with the head."""
    _parts: deque[BodyPart] = attrs.field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        self.headers = {
            name.decode("ascii").lower(): value.decode("latin-1")
            for name, value in self._head.headers
        }

    @property
    def status(self) -> int:
        """Return the status: 200 or more."""
        return self._head.status

    @property
    def may_be_kept(self) -> bool:
        """Return whether the body was read and the connection may be used for another request."""
        return (
            self._head.allows_another
            and self._body.is_complete
            and not self._received
            and not self._parts
            and not self._body.has_excess
            and not isinstance(self._body, UntilClosedBody)
        )

    async def receive(self) -> bytes:
        """Return the next piece of the body, empty at its end. BodyBrokenError."""
        with self._named_errors():
            return await self._receive()

    async def peek(self, count: int) -> bytes:
        """Return the next ``count`` bytes of the body or more without taking them, or fewer if it
        ends there; raise BodyBrokenError if it breaks off.
        """
        seen = b""
        with self._named_errors():
            while len(seen) < count and (piece := await self._receive()):
                seen += piece
        self._put_back(seen)
        return seen

    async def receive_into(self, space: memoryview) -> int:
        """Write what comes next of the body to the beginning of ``space``, which is not empty, and
        return how many bytes that are, 0 at the end. BodyBrokenError.

        The kernel or OpenSSL writes there: no piece is allocated and copied once more.
        """
        stream, body = self.connection.stream, self._body
        with self._named_errors():
            if (
                isinstance(body, LengthBody)
                and body.remaining
                and not (self._parts or self._received)
            ):
                room = space[: body.remaining]
                if isinstance(stream, trio.SocketStream):
                    count = await stream.socket.recv_into(room)
                elif isinstance(stream, TlsStream):
                    count = await stream.receive_into(room)
                else:
                    raise TypeError(f"no bytes are written into place by {type(stream).__name__}")
                body.skip(count)
                if not count:
                    self._end()
                return count
            piece = await self._receive()
            count = min(len(piece), len(space))
            space[:count] = piece[:count]
            self._put_back(piece[count:])
            return count

    async def close(self) -> None:
        """Keep the connection for another request if the body was read, else end it."""
        if not self.may_be_kept or not self.connection.keep(self.connection):
            await self.connection.end()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise BodyBrokenError for whatever ends a body early, and for silence."""
        host, silence_s = self.connection.host, self.connection.silence_s
        try:
            with trio.fail_after(silence_s):
                yield
        except trio.TooSlowError as error:
            raise BodyBrokenError(f"{host} sent nothing for {silence_s:g} s") from error
        except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
            raise BodyBrokenError(f"{host} broke off: {cause_of(error)}") from error
        except MalformedAnswerError as error:
            raise BodyMalformedError(f"{host} broke HTTP's rules: {error}") from error

    async def _receive(self) -> bytes:
        while not self._parts and not self._body.is_complete:
            data, self._received = self._received, b""
            data = data or bytes(await self.connection.stream.receive_some(PIECE_BYTES))
            if data:
                self._body.feed(data, self._parts)
            else:
                self._end()
        return self._parts.popleft().data if self._parts else b""

    def _put_back(self, data: bytes) -> None:
        if data:
            self._parts.appendleft(BodyPart(data, starts_chunk=False, ends_chunk=False))

    def _end(self) -> None:
        """Raise BodyBrokenError unless the end of the connection is the body's."""
        missing = self._body.missing()
        if missing is not None:
            raise BodyBrokenError(f"{self.connection.host} broke off {missing}")


@attrs.define(eq=False)
class HttpClient:
    """Make one with :func:`open_client`."""

    timeouts: Timeouts
    is_public: bool = True
    """For servers that anybody may name: proxies are used, and no address is dialled where machines
    of a cloud tell who they are: see :func:`_refuse_forbidden`."""
    make_context: Callable[[], ssl.SSLContext] | None = None
    """Called once, in a thread; None for what verifies public servers."""
    _idle: dict[Origin, list[Connection]] = attrs.field(factory=dict, init=False)
    _tls: ssl.SSLContext | None = attrs.field(default=None, init=False)

    async def send(self, method: str, url: httpx.URL, headers: Mapping[str, str]) -> Answer:
        """Send a request without body; NoAnswerError, AnswerBrokenError. Close the answer.

        A connection that was kept may have been closed since: then another one is used.
        """
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        sent = {
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        }
        if url.userinfo and "Authorization" not in sent:
            sent["Authorization"] = f"Basic {base64.b64encode(url.userinfo).decode()}"
        while True:
            kept = self._idle.get(origin)
            connection = kept.pop() if kept else await self._connect(origin)
            try:
                with trio.fail_after(self.timeouts.silence_s):
                    return await connection.ask(method, url, sent)
            except trio.TooSlowError as error:
                await connection.end()
                raise NoAnswerError(
                    f"no answer from {url.host} within {self.timeouts.silence_s:g} s"
                ) from error
            except UnsendableRequestError as error:
                await connection.end()
                raise NoAnswerError(f"{url.host} was not asked: {error}") from error
            except MalformedAnswerError as error:
                await connection.end()
                raise AnswerBrokenError(f"{url.host} broke HTTP's rules: {error}") from error
            except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
                await connection.end()
                if not connection.is_used_before:
                    raise NoAnswerError(f"{url.host} did not answer: {cause_of(error)}") from error
            except BaseException:
                await connection.end()
                raise

    async def close(self) -> None:
        """End all connections that wait for a request."""
        for connections in self._idle.values():
            for connection in connections:
                await connection.end()
        self._idle.clear()

    def keep(self, origin: Origin, connection: Connection) -> bool:
        """Use the connection again for the next request to its origin, unless enough are kept."""
        kept = self._idle.setdefault(origin, [])
        if len(kept) >= MAX_IDLE:
            return False
        connection.is_used_before = True
        kept.append(connection)
        return True

    async def _connect(self, origin: Origin) -> Connection:
        scheme, host, port = origin
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
        return Connection(
            stream,
            host,
            self.timeouts.silence_s,
            partial(self.keep, origin),
            f"http://{host}:{port}" if forwards else "",
        )

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


async def _read_head(stream: trio.abc.Stream) -> tuple[ResponseHead, bytes]:
    """Return the head of an answer, and the bytes that came with it."""
    received = bytearray()
    for _ in range(MAX_INFORMATIONAL + 1):
        searched = 0
        while not (end := head_end(received, searched)):
            searched = len(received)
            data = await stream.receive_some(HEAD_READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("the connection was closed")
            received += data
        head = parse_head(received[:end])
        del received[:end]
        if head.status == SWITCHING:
            raise MalformedAnswerError("it switches to a protocol that nobody asked for")
        if head.status >= 200:
            return head, bytes(received)
    raise MalformedAnswerError(f"it sent more than {MAX_INFORMATIONAL} informational answers")


async def _tunnel(stream: trio.abc.Stream, proxy: httpx.URL, host: str, port: int) -> None:
    """Have the proxy connect to ``host``."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n"
    if proxy.userinfo:
        credentials = base64.b64encode(proxy.userinfo).decode()
        request += f"Proxy-Authorization: Basic {credentials}\r\n"
    await stream.send_all(f"{request}\r\n".encode("ascii"))
    try:
        head, _ = await _read_head(stream)
    except MalformedAnswerError as error:
        raise trio.BrokenResourceError(f"the proxy broke HTTP's rules: {error}") from error
    if not 200 <= head.status < 300:
        raise trio.BrokenResourceError(f"the proxy {proxy.host} answered {head.status}")


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
