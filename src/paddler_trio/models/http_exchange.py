"""One HTTP request to a server that may be hostile, or to the one it redirects to.

Redirects are followed here and not by the client: the token goes to the origin that it belongs to
and nowhere else, ``https`` never leads to ``http``, and circles end. Nothing of a request is
logged: signed addresses are secrets too.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
import httpx

from paddler_trio.models.download_errors import (
    AccessDeniedError,
    DownloadError,
    RequestRejectedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    SourceNotFoundError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.models.hub_settings import Timeouts

MAX_REDIRECTS: Final = 10
MAX_RETRY_AFTER_S: Final = 600
USER_AGENT: Final = "paddler-trio"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOCATION_GONE = frozenset({401, 403, 404, 410})
"""What a server answers to a signed address that has expired."""


@attrs.define(eq=False)
class Location:
    """Where a file is asked for, and where that redirects to.

    Args:
      url: the address that does not expire.
      token: goes to the origin of ``url`` only.
      resolved: the last redirect's target, used again until it expires.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    resolved: str | None = attrs.field(default=None, init=False, repr=False)


def open_client(timeouts: Timeouts, *, connections: int = 16) -> httpx.AsyncClient:
    """A client for :func:`exchange`. Proxies and certificates of the environment are used."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx.AsyncClient(
        timeout=httpx.Timeout(timeouts.silence_s, connect=timeouts.connect_s, pool=None),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        headers={"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity"},
        follow_redirects=False,
    )


@asynccontextmanager
async def exchange(
    client: httpx.AsyncClient,
    method: str,
    location: Location,
    subject: Subject,
    *,
    headers: Mapping[str, str] | None = None,
    stays_on_origin: bool = False,
) -> AsyncIterator[httpx.Response]:
    """The answer, its body unread. 2xx, 304 and 416 come back; anything else is a DownloadError.

    Args:
      stays_on_origin: a redirect to another origin is the answer, not a step: the hub's metadata
        is in that answer's headers.
    """
    answer = await _final_answer(client, method, location, subject, headers or {}, stays_on_origin)
    try:
        yield answer
    finally:
        await answer.aclose()


async def read_body(answer: httpx.Response, subject: Subject, limit: int) -> bytes:
    """The whole body; ServerFailedError if it is over ``limit`` bytes."""
    body = bytearray()
    async for piece in pieces(answer, subject):
        body += piece
        if len(body) > limit:
            raise ServerFailedError(subject, f"the answer is over the limit of {limit} bytes")
    return bytes(body)


async def pieces(answer: httpx.Response, subject: Subject) -> AsyncIterator[bytes]:
    """The body as it arrives; TransferInterruptedError if it ends early or falls silent."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    except httpx.TimeoutException as error:
        silence_s = answer.request.extensions["timeout"]["read"]
        raise TransferInterruptedError(
            subject, f"{answer.url.host} sent nothing for {silence_s:g} s"
        ) from error
    except httpx.TransportError as error:
        raise TransferInterruptedError(
            subject, f"{answer.url.host} broke off: {_cause(error)}"
        ) from error


async def _final_answer(
    client: httpx.AsyncClient,
    method: str,
    location: Location,
    subject: Subject,
    headers: Mapping[str, str],
    stays_on_origin: bool,
) -> httpx.Response:
    home = _parsed(location.url, subject)
    url = home
    is_shortcut = location.resolved is not None and not stays_on_origin
    if location.resolved is not None and is_shortcut:
        url = httpx.URL(location.resolved)
    seen = set()
    while True:
        seen.add(url)
        answer = await _send(client, method, url, home, location.token, headers, subject)
        if is_shortcut and answer.status_code in _LOCATION_GONE:
            await answer.aclose()
            location.resolved, is_shortcut, url = None, False, home
            seen.clear()
            continue
        if answer.status_code not in _REDIRECTS:
            break
        target = await _target(answer, subject)
        if stays_on_origin and _origin(target) != _origin(home):
            return answer
        await answer.aclose()
        if target in seen or len(seen) > MAX_REDIRECTS:
            raise ServerFailedError(
                subject,
                f"{home.host} redirects in a circle"
                if target in seen
                else f"{home.host} redirects more than {MAX_REDIRECTS} times",
            )
        url = target
    if answer.status_code >= 300 and answer.status_code not in {304, 416}:
        await answer.aclose()
        raise _refusal(answer, subject, has_token=location.token is not None)
    if url != home and not stays_on_origin:
        location.resolved = str(url)
    return answer


async def _send(
    client: httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    home: httpx.URL,
    token: str | None,
    headers: Mapping[str, str],
    subject: Subject,
) -> httpx.Response:
    sent = dict(headers)
    if token is not None and _origin(url) == _origin(home):
        sent["Authorization"] = f"Bearer {token}"
    try:
        answer = await client.send(client.build_request(method, url, headers=sent), stream=True)
    except httpx.TimeoutException as error:
        what = "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer"
        raise ServerUnreachableError(subject, f"{what} from {url.host} in time") from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.LocalProtocolError) as error:
        raise SourceMalformedError(subject, f"it cannot be asked for: {error}") from error
    except httpx.TransportError as error:
        raise ServerUnreachableError(
            subject, f"cannot reach {url.host}: {_cause(error)}"
        ) from error
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity" and answer.status_code < 300:
        await answer.aclose()
        raise ServerFailedError(subject, f"{url.host} encodes the file as {encoding[:40]!r}")
    return answer


async def _target(answer: httpx.Response, subject: Subject) -> httpx.URL:
    text = answer.headers.get("Location")
    problem = "without a target"
    if text is not None:
        try:
            target = answer.url.join(text)
        except httpx.InvalidURL:
            problem = "to an address that is none"
        else:
            if target.scheme == "https" or (
                target.scheme == "http" and answer.url.scheme == "http"
            ):
                return target
            problem = f"from {answer.url.scheme} to {target.scheme[:20]!r}"
    await answer.aclose()
    raise ServerFailedError(subject, f"{answer.url.host} redirects {problem}")


def _refusal(answer: httpx.Response, subject: Subject, *, has_token: bool) -> DownloadError:
    """The error of a status that is no success."""
    status, host = answer.status_code, answer.url.host
    code = answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        return AccessDeniedError(
            subject,
            "the repository is gated: accept its conditions on its page, "
            + ("the token's account has not" if has_token else "and give a token (HF_TOKEN)"),
        )
    missing = {
        "RepoNotFound": "no such repository, or a private one that the token does not open"
        if has_token
        else "no such repository, or a private one and there is no token (HF_TOKEN)",
        "RevisionNotFound": "the repository has no such revision",
        "EntryNotFound": "the revision has no such file",
    }.get(code)
    if missing is not None:
        return SourceNotFoundError(subject, missing)
    if status in {401, 403}:
        whose = "refuses the token" if has_token else "wants a token"
        return AccessDeniedError(
            subject, f"{host} {whose if subject.is_hub else 'denies access'} ({status})"
        )
    if status in {404, 410}:
        return SourceNotFoundError(subject, f"{host} has nothing there ({status})")
    if 400 <= status < 500 and status not in {408, 429}:
        return RequestRejectedError(subject, f"{host} rejected the request ({status})")
    return ServerFailedError(
        subject, f"{host} answered {status}", _retry_after(answer.headers.get("Retry-After"))
    )


def _retry_after(text: str | None) -> float | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return min(int(text), MAX_RETRY_AFTER_S)


def _parsed(url: str, subject: Subject) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceMalformedError(subject, f"it is no URL: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise SourceMalformedError(subject, "it is no http or https URL")
    return parsed


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port  # httpx leaves out the scheme's own port


def _cause(error: BaseException) -> str:
    """The operating system's text if it was asked, else the library's."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
