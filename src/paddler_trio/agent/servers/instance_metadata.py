"""Ask EC2 what a machine is, where an operator writes ``aws:metadata:ITEM``.

    --upstream http://aws:metadata:local-ipv4:8080     is http://10.0.3.17:8080 there

It is asked as version 2 of the instance metadata service wants it: a PUT brings a token, and a GET
with that token brings the value. Only a service that does not know of tokens is asked without one.
Nothing is asked elsewhere than at the link-local address that EC2 has for it, or at the endpoint in
``AWS_EC2_METADATA_SERVICE_ENDPOINT``, the variable of AWS's own libraries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs
import trio

from paddler_trio.agent.servers.metadata_items import check_item, filled_in, is_value_of, items_in
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.response_body import FailureKind, UpstreamError
from paddler_trio.net.client.upstream_address import (
    UpstreamAddress,
    UpstreamTimeouts,
    dial_cause,
    parse_upstream_address,
)
from paddler_trio.net.client.upstream_client import UpstreamClient, make_upstream_client

ENDPOINT: Final = "http://169.254.169.254"
ENDPOINT_VARIABLE: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
TRIES: Final = 3
TRY_S: Final = 1.0
PAUSE_S: Final = 0.2
"""The pause after the first try; it is twice as long after the second."""
TOKEN_TTL_S: Final = 60
MAX_TOKEN_BYTES: Final = 1024
MAX_VALUE_BYTES: Final = 253
_TOKEN: Final = re.compile(rb"[!-~]+")
_NO_SUCH_ROUTE: Final = frozenset({404, 405})
_BUSY: Final = frozenset({429, 500, 502, 503, 504})


def metadata_endpoint(environment: Mapping[str, str]) -> UpstreamAddress:
    """Return the address of the service. ConfigurationError for a variable that is no address of
    it."""
    text = environment.get(ENDPOINT_VARIABLE) or ENDPOINT
    try:
        address = parse_upstream_address(text)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{ENDPOINT_VARIABLE} is not the address of a metadata service: write {ENDPOINT} or "
            "another http://host:port"
        ) from error
    if address.is_tls:
        raise ConfigurationError(
            f"{ENDPOINT_VARIABLE} {text!r} is https, and the metadata service speaks http"
        )
    return address


async def resolved_text(
    text: str, environment: Mapping[str, str], *, is_address: bool = True
) -> str:
    """Return ``text`` with what the machine says in the place of each item; as it is if it has
    none.

    Args:
      environment: of the process.
      is_address: the items stand for hosts of addresses; else ``text`` is a name.

    Errors:
      ConfigurationError: an unknown item, one that this machine does not have, or no answer.
    """
    items = items_in(text)
    if not items:
        return text
    for item in items:
        check_item(item, is_address=is_address)
    timeouts = UpstreamTimeouts(connect_s=TRY_S, first_byte_s=TRY_S, idle_s=TRY_S)
    service = _MetadataService(
        make_upstream_client(metadata_endpoint(environment), timeouts=timeouts)
    )
    values = {item: await service.value(item) for item in dict.fromkeys(items)}
    return filled_in(text, values, is_address=is_address)


@attrs.define(eq=False)
class _MetadataService:
    """Asks for items; a token is fetched with the first one."""

    _client: UpstreamClient
    _token: bytes | None = attrs.field(default=None, init=False, repr=False)
    _needs_none: bool = attrs.field(default=False, init=False)

    async def value(self, item: str) -> str:
        """Return the value of an item; ConfigurationError, see `resolved_text`."""
        if self._token is None and not self._needs_none:
            await self._fetch_token(item)
        headers = [] if self._token is None else [(b"x-aws-ec2-metadata-token", self._token)]
        path = b"/latest/meta-data/" + item.encode()
        status, body = await self._answer(item, b"GET", path, headers, MAX_VALUE_BYTES)
        if status == 404:
            raise self._failure(item, "this instance has none")
        if status != 200:
            raise self._failure(item, f"the service answers with status {status}")
        value = body.decode("ascii", "replace").strip()
        if not is_value_of(item, value):
            raise self._failure(item, f"the service answers with no {item}")
        return value

    async def _fetch_token(self, item: str) -> None:
        lifetime = (b"x-aws-ec2-metadata-token-ttl-seconds", b"%d" % TOKEN_TTL_S)
        path = b"/latest/api/token"
        status, body = await self._answer(item, b"PUT", path, [lifetime], MAX_TOKEN_BYTES)
        if status in _NO_SUCH_ROUTE:
            self._needs_none = True
        elif status == 403:
            raise self._failure(item, "the metadata service is turned off for this instance")
        elif status != 200 or _TOKEN.fullmatch(body) is None:
            raise self._failure(item, f"the service gives no token, but status {status}")
        else:
            self._token = body

    async def _answer(
        self,
        item: str,
        method: bytes,
        path: bytes,
        headers: list[tuple[bytes, bytes]],
        limit_bytes: int,
    ) -> tuple[int, bytes]:
        """Return status and body, tried again while nobody answers or the service is busy."""
        reason = ""
        for number in range(TRIES):
            if number:
                await trio.sleep(PAUSE_S * 2 ** (number - 1))
            try:
                with trio.fail_after(TRY_S):
                    status, body = await self._exchange(item, method, path, headers, limit_bytes)
            except trio.TooSlowError:
                reason = f"no answer within {TRY_S:g} s"
            except UpstreamError as error:
                reason = _words(error, self._client.address)
            else:
                if status not in _BUSY:
                    return status, body
                reason = f"the service answers with status {status}"
        advice = (
            "; is this an instance of EC2? In a container its metadata needs a hop limit of 2"
            if ENDPOINT.endswith(self._client.address.host)
            else ""
        )
        raise self._failure(item, f"{reason}, {TRIES} times{advice}")

    async def _exchange(
        self,
        item: str,
        method: bytes,
        path: bytes,
        headers: list[tuple[bytes, bytes]],
        limit_bytes: int,
    ) -> tuple[int, bytes]:
        body = bytearray()
        headers = [*headers, (b"connection", b"close")]  # so that the client has none to keep
        async with self._client.request(method, path, headers) as response:
            async for part in response.body():
                body += part.data
                if len(body) > limit_bytes and response.status == 200:
                    raise self._failure(
                        item, f"the service answers with more than {limit_bytes} bytes"
                    )
            return response.status, bytes(body[:limit_bytes])

    def _failure(self, item: str, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"aws:metadata:{item} is not known: {reason} @ http://{self._client.address.authority}"
        )


def _words(error: UpstreamError, service: UpstreamAddress) -> str:
    """Return what went wrong, without the words that are for servers of models."""
    match error.kind:
        case FailureKind.CONNECT:
            return f"no connection: {dial_cause(error.__cause__ or error, service)}"
        case FailureKind.TIMEOUT:
            return f"no answer within {TRY_S:g} s"
        case FailureKind.CLOSED:
            return "the connection was closed before the answer was whole"
        case FailureKind.PROTOCOL | FailureKind.REQUEST:
            return "what answers there does not speak HTTP"
