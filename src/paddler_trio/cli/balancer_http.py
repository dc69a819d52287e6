"""Requests to a balancer, with errors that name the service, its address and the next step.

Lines of an answer that comes in pieces, as a balancer means them.

``httpx`` ends a line at U+0085, U+2028 and U+2029 as well, which JSON may have in a text.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Self

import attrs
import httpx

from paddler_trio.cli.client_flags import InferenceFlags, ManagementFlags, checked_address
from paddler_trio.errors import PaddlerError
from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.tls.address import parse_address
from paddler_trio.net.tls.client_errors import tls_error_in, tls_problem
from paddler_trio.system.durable import read_secret

bound_parsing()

CONNECT_S = 5.0
ANSWER_S = 10.0
CAUSE_CHARS = 200
"""Of what httpx says, which quotes what it cannot read."""


REFUSAL_CHARS = 8_000
"""Of what a balancer says when it refuses; what is no balancer may say a page."""


class BalancerUnreachableError(PaddlerError):
    """No conversation with the balancer, or it broke off."""


class NoBalancerError(BalancerUnreachableError):
    """Nothing is there, or nothing that one can connect to."""


class BalancerVersionError(BalancerUnreachableError):
    """The balancer answers in a shape that is not known here; to ask again is no use."""


class BalancerRefusedError(PaddlerError):
    """The balancer said no; the text is its own. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def open_http(
    service: ManagementFlags | InferenceFlags, *, answer_s: float = ANSWER_S
) -> httpx.Client:
    """Open a client of a balancer's service; errors are those of `http_settings`."""
    return httpx.Client(**http_settings(service, answer_s=answer_s))


def http_settings(
    service: ManagementFlags | InferenceFlags, *, answer_s: float = ANSWER_S
) -> dict[str, Any]:
    """Return what httpx's clients are made with; files are read, which blocks.

    A key comes from a file: every user of the machine could read an argument. Proxies of the
    environment are not asked: a balancer is on this network.

    Errors:
      typer.BadParameter: the address is no `[https://]host:port`.
      ConfigurationError: a file cannot be read, or the file of the key holds none.
    """
    key_file, tls = service.trust.key_file, service.trust.tls
    address = checked_address(service.address, tls, option=service.flag)
    key = {} if key_file is None else {"Authorization": f"Bearer {read_secret(key_file)}"}
    # a plain connection uses no context, and reading all roots takes 16 ms
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {
        "headers": key,
        "base_url": address.url,
        "timeout": httpx.Timeout(answer_s, connect=min(answer_s, CONNECT_S)),
        "trust_env": False,
        "verify": tls.context() if address.is_tls else unused,
    }


@attrs.frozen(eq=False)
class BalancerClient:
    """A conversation with one service; use it as a context manager."""

    address: str
    _http: httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()


@contextmanager
def clear_errors(address: str) -> Iterator[None]:
    """Everything httpx raises inside becomes a BalancerUnreachableError."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        _refuse_tls(error, address)
        raise NoBalancerError(
            f"cannot reach the balancer at {address}: {_cause(error, address)}; "
            "start one with `paddler-trio balancer`"
        ) from error
    except httpx.TimeoutException as error:
        raise BalancerUnreachableError(f"the balancer at {address} does not answer") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last of "xn--…"
        _refuse_tls(error, address)
        raise BalancerUnreachableError(
            f"lost the balancer at {address}: {_cause(error, address)}"
        ) from error


def _refuse_tls(error: Exception, address: str) -> None:
    """BalancerUnreachableError with advice if it was about TLS."""
    problem = tls_error_in(error)
    if problem is not None:
        raise BalancerUnreachableError(tls_problem(problem, parse_address(address))) from error


def read_json(text: str) -> object:
    """Return the JSON of an answer; ValueError for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def refuse_unless_success(answer: httpx.Response) -> None:
    """BalancerRefusedError with the server's text, or the status if it said nothing."""
    if answer.is_success:
        return
    text = answer.read().decode(errors="replace").strip()
    try:
        phrase = HTTPStatus(answer.status_code).phrase
    except ValueError:
        phrase = "no known status"
    said = (text if len(text) <= REFUSAL_CHARS else f"{text[:REFUSAL_CHARS]}…") or phrase
    if answer.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        said += "; give --key-file or PADDLER_TRIO_KEY_FILE"
    raise BalancerRefusedError(
        answer.status_code, f"the balancer refused ({answer.status_code}): {said}"
    )


def _cause(error: BaseException, address: str) -> str:
    """The operating system's words if it was asked, else httpx's."""
    if isinstance(error, httpx.ConnectTimeout):
        what = (
            "no connection, or no TLS handshake," if parse_address(address).is_tls else "no answer"
        )
        return f"{what} within {CONNECT_S:g} s"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, socket.gaierror)) and not isinstance(cause, ssl.SSLError):
            return (cause.strerror or str(cause)).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error)[:CAUSE_CHARS] or type(error).__name__


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of ``pieces`` as they end, the last one also if nothing ends it."""
    lines = _Lines()
    for piece in pieces:
        yield from lines.ended_by(piece)
    yield from lines.last()


async def async_lines_of(pieces: AsyncIterable[bytes]) -> AsyncGenerator[str]:
    """Yield the same lines as ``lines_of``, of pieces that are waited for."""
    lines = _Lines()
    async for piece in pieces:
        for line in lines.ended_by(piece):
            yield line
    for line in lines.last():
        yield line


@attrs.define
class _Lines:
    """The beginning of a line that has not ended, in the pieces in which it came."""

    _begun: list[bytes] = attrs.field(factory=list, init=False)

    def ended_by(self, piece: bytes) -> list[str]:
        first, *others = piece.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        ended = [b"".join(self._begun), *others[:-1]]
        self._begun = others[-1:]
        return [_text(line) for line in ended]

    def last(self) -> list[str]:
        line = _text(b"".join(self._begun))
        return [line] if line else []


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")
