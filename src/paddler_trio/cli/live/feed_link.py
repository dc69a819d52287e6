"""The balancer's event feed, and orders beside it, for commands that live in a Trio run.

The feed goes on where it was after a gap: the balancer sends what was missed, or everything again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final
from urllib.parse import quote

import attrs
import httpx

from paddler_trio.cli.balancer_http import (
    CONNECT_S,
    BalancerRefusedError,
    BalancerUnreachableError,
    BalancerVersionError,
    async_lines_of,
    clear_errors,
    http_settings,
    read_json,
    refuse_unless_success,
)
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.management_client import SILENCE_S, Json
from paddler_trio.net.h11_bounds import bound_parsing

bound_parsing()

EVENTS_PATH: Final = "/api/v2/events"
REQUESTS_PATH: Final = "/api/v2/requests"


@attrs.define(eq=False)
class FeedLink:
    """A conversation with one balancer; ``async with``.

    Every method raises BalancerUnreachableError or BalancerRefusedError.
    """

    address: str
    _http: httpx.AsyncClient

    @classmethod
    def open(cls, management: ManagementFlags) -> FeedLink:
        """Return a link that has sent nothing yet and needs no Trio; errors are those of
        `http_settings`."""
        return cls(management.address, httpx.AsyncClient(**http_settings(management)))

    async def close(self) -> None:
        await self._http.aclose()

    async def events(
        self, topics: Sequence[str], *, after: str | None = None
    ) -> AsyncGenerator[Json]:
        """Events as they come, until the balancer ends the stream or is silent.

        Args:
          after: the id of the last event that is known; None to get everything.
        """
        headers = {} if after is None else {"Last-Event-ID": after}
        with clear_errors(self.address):
            async with self._http.stream(
                "GET",
                EVENTS_PATH,
                params={"topics": ",".join(topics)},
                headers=headers,
                timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S),
            ) as answer:
                await self._checked(answer, EVENTS_PATH)
                async for line in async_lines_of(answer.aiter_bytes()):
                    if line.startswith("data: "):
                        yield self._object(line.removeprefix("data: "))
        raise BalancerUnreachableError(f"the balancer at {self.address} ended the stream")

    async def cancel(self, key: int) -> None:
        """End a request."""
        await self._order("DELETE", f"{REQUESTS_PATH}/{key}")

    async def drain(self, agent: str, *, drained: bool) -> None:
        """Give the agent of this id nothing new, or work again."""
        path = f"/api/v2/agents/{quote(agent, safe='')}/drain"
        await self._order("POST" if drained else "DELETE", path)

    async def request(self, key: int) -> Json:
        """A ``RequestDetail`` as plain JSON."""
        with clear_errors(self.address):
            answer = await self._http.get(f"{REQUESTS_PATH}/{key}")
            await self._checked(answer, REQUESTS_PATH)
        return self._object(answer.text)

    async def _order(self, method: str, path: str) -> None:
        with clear_errors(self.address):
            answer = await self._http.request(method, path)
            await answer.aread()
            refuse_unless_success(answer)

    async def _checked(self, answer: httpx.Response, path: str) -> None:
        """BalancerRefusedError unless it is a success."""
        if answer.is_success:
            return
        await answer.aread()
        if answer.status_code == 404 and not answer.text:
            raise BalancerRefusedError(
                404,
                f"{self.address} is no management service of this version: it has no {path}",
            )
        refuse_unless_success(answer)

    def _object(self, text: str) -> Json:
        try:
            value = read_json(text)
        except ValueError as error:
            raise BalancerVersionError(f"{self.address} sent no JSON: {error}") from error
        if not isinstance(value, dict):
            raise BalancerVersionError(f"{self.address} sent {value!r:.80}, not an object")
        return value
