"""One HTTP request to a server that may be hostile, or to the one it redirects to.

Redirects are followed here and not by the client: the token goes to the origin that it belongs to
and nowhere else, ``https`` never leads to ``http``, and circles end. Nothing of a request is
logged: signed addresses are secrets too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
import httpx

from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    RequestRejectedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    SourceNotFoundError,
    Subject,
    TransferInterruptedError,
    stores_error,
)
from paddler_trio.net.client.http_client import (
    Answer,
    AnswerBrokenError,
    BodyBrokenError,
    HttpClient,
    NoAnswerError,
)

MAX_REDIRECTS: Final = 10
MAX_RETRY_AFTER_S: Final = 600
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOCATION_GONE = frozenset({401, 403, 404, 410})
"""What a server answers to a signed address that has expired."""


@attrs.define(eq=False)
class Location:
    """The address at which a file is asked for, and the one to which that redirects.

    Args:
      url: the address that does not expire.
      token: goes to the origin of ``url`` only.
      resolved: the last redirect's target, used again until it expires.
      is_store: a balancer's model store answers there, and names its errors; see ``store_errors``.
    """

    url: str
    token: str | None = attrs.field(default=None, repr=False)
    is_store: bool = False
    resolved: str | None = attrs.field(default=None, init=False, repr=False)


@asynccontextmanager
async def exchange(
    client: HttpClient,
    method: str,
    location: Location,
    subject: Subject,
    *,
    headers: Mapping[str, str] | None = None,
    stays_on_origin: bool = False,
) -> AsyncIterator[Answer]:
    """The answer, its body unread. 2xx, 304 and 416 come back; anything else is a DownloadError.

    Args:
      stays_on_origin: a redirect to another origin is the answer, not a step: the hub's metadata
        is in that answer's headers.
    """
    answer = await _final_answer(client, method, location, subject, headers or {}, stays_on_origin)
    try:
        yield answer
    finally:
        await answer.close()


async def read_body(answer: Answer, subject: Subject, limit: int) -> bytes:
    """The whole body; ServerFailedError if it is over ``limit`` bytes."""
    body = bytearray()
    while piece := await next_piece(answer, subject):
        body += piece
        if len(body) > limit:
            raise ServerFailedError(subject, f"the answer is over the limit of {limit} bytes")
    return bytes(body)


async def next_piece(answer: Answer, subject: Subject) -> bytes:
    """The next piece of the body, empty at its end; TransferInterruptedError if it ends early or
    falls silent."""
    try:
        return await answer.receive()
    except BodyBrokenError as error:
        raise TransferInterruptedError(subject, str(error)) from error


async def next_bytes(answer: Answer, subject: Subject, space: memoryview) -> int:
    """Write the next bytes of the body to the beginning of ``space`` and return their number."""
    try:
        return await answer.receive_into(space)
    except BodyBrokenError as error:
        raise TransferInterruptedError(subject, str(error)) from error


async def first_bytes(answer: Answer, subject: Subject, count: int) -> bytes:
    """The first bytes of an unread body, fewer if it has no more; they are still to be read."""
    try:
        return (await answer.peek(count))[:count]
    except BodyBrokenError as error:
        raise TransferInterruptedError(subject, str(error)) from error


async def _final_answer(
    client: HttpClient,
    method: str,
    location: Location,
    subject: Subject,
    headers: Mapping[str, str],
    stays_on_origin: bool,
) -> Answer:
    home = _parsed(location.url, subject)
    url = home
    is_shortcut = location.resolved is not None and not stays_on_origin
    if location.resolved is not None and is_shortcut:
        url = httpx.URL(location.resolved)
    seen = set()
    while True:
        seen.add(url)
        answer = await _send(client, method, url, home, location.token, headers, subject)
        if is_shortcut and answer.status in _LOCATION_GONE:
            await answer.close()
            location.resolved, is_shortcut, url = None, False, home
            seen.clear()
            continue
        if answer.status not in _REDIRECTS:
            break
        target = await _target(answer, subject)
        if stays_on_origin and _origin(target) != _origin(home):
            return answer
        await answer.close()
        if target in seen or len(seen) > MAX_REDIRECTS:
            raise ServerFailedError(
                subject,
                f"{home.host} redirects in a circle"
                if target in seen
                else f"{home.host} redirects more than {MAX_REDIRECTS} times",
            )
        url = target
    if answer.status >= 300 and answer.status not in {304, 416}:
        await answer.close()
        retry_after_s = retry_after_of(answer.headers.get("retry-after"))
        stores = stores_error(answer.headers, subject, retry_after_s) if location.is_store else None
        raise stores or _refusal(answer, subject, has_token=location.token is not None)
    if url != home and not stays_on_origin:
        location.resolved = str(url)
    return answer


async def _send(
    client: HttpClient,
    method: str,
    url: httpx.URL,
    home: httpx.URL,
    token: str | None,
    headers: Mapping[str, str],
    subject: Subject,
) -> Answer:
    sent = dict(headers)
    if token is not None and _origin(url) == _origin(home):
        sent["Authorization"] = f"Bearer {token}"
    try:
        answer = await client.send(method, url, sent)
    except NoAnswerError as error:
        raise ServerUnreachableError(subject, str(error)) from error
    except AnswerBrokenError as error:
        raise ServerFailedError(subject, str(error)) from error
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding != "identity" and answer.status < 300:
        await answer.close()
        raise ServerFailedError(subject, f"{url.host} encodes the file as {encoding[:40]!r}")
    return answer


async def _target(answer: Answer, subject: Subject) -> httpx.URL:
    text = answer.headers.get("location")
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
    await answer.close()
    raise ServerFailedError(subject, f"{answer.url.host} redirects {problem}")


def _refusal(answer: Answer, subject: Subject, *, has_token: bool) -> DownloadError:
    """The error of a status that is no success."""
    status, host = answer.status, answer.url.host
    code = answer.headers.get("x-error-code", "")
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
        whose = "refuses the token" if has_token else "asks for a token"
        return AccessDeniedError(
            subject, f"{host} {whose if subject.is_hub else 'denies access'} ({status})"
        )
    if status in {404, 410}:
        return SourceNotFoundError(subject, f"{host} has nothing there ({status})")
    if 400 <= status < 500 and status not in {408, 429}:
        return RequestRejectedError(subject, f"{host} rejected the request ({status})")
    return ServerFailedError(
        subject, f"{host} answered {status}", retry_after_of(answer.headers.get("retry-after"))
    )


def retry_after_of(text: str | None) -> float | None:
    """The seconds of a Retry-After, within bounds; None if it has none. A date is not compared with
    this machine's, which may be another one."""
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
