"""The limits of API keys, behind authentication and in front of the applications for inference.

Every ``POST`` is a request, whatever becomes of it: also one that is wrong, a count of tokens, one
with several choices or a batch of texts. Reading (models, slots, stored responses) is not counted.
It is under way from here to the last byte of its answer, so its wait for a slot counts, and it ends
with the task that serves it: also when the client leaves, the agent is lost, or the server stops.

A WebSocket for inference is no request; each of its messages is one. It finds what admits them in
its scope. One that is passed on to a server is a request as long as it is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import attrs

from paddler_trio.balancer.front.rate_limit_fields import rate_limit_fields
from paddler_trio.balancer.keys.key_accounts import Admission, KeyAccounts, Refusal
from paddler_trio.net.server.asgi import (
    App,
    Header,
    HttpProblem,
    Message,
    Receive,
    Refuse,
    Scope,
    Send,
    refuse_in_plain_text,
)
from paddler_trio.net.server.client_identity import LIMITED_KEY
from paddler_trio.net.server.upgrade import upgrade_of
from paddler_trio.scheduler.limits.key_usage import Left

ADMIT: Final = "paddler_trio.admit"
"""The member of a WebSocket's scope that admits its messages; none where no key is known."""
LONG_WAIT_S: Final = 60
"""Official clients would sleep up to a minute and try again: after longer ones it is no use."""

Admit: TypeAlias = Callable[[], Admission | Refusal]
LimitFields: TypeAlias = Callable[[str, Sequence[Left], float], Iterable[Header]]
"""The fields of an API for a path and what is left at a time (UTC)."""


def no_more_fields(path: str, left: Sequence[Left], unix_s: float) -> Iterable[Header]:
    """Paddler's routes have none of their own."""
    return ()


def admit(scope: Scope) -> Admission | Refusal | None:
    """A message of a WebSocket is a request from now on; None where nothing is limited."""
    begin: Admit | None = scope.get(ADMIT)
    return None if begin is None else begin()


@attrs.frozen(eq=False)
class KeyLimiter:
    """Wraps applications so that keys keep to their limits."""

    accounts: KeyAccounts

    def __call__(
        self,
        app: App,
        *,
        refuse: Refuse = refuse_in_plain_text,
        fields: LimitFields = no_more_fields,
    ) -> App:
        """``app`` within the limits of the key of each request."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            name: str | None = scope.get(LIMITED_KEY)
            if name is not None and scope["type"] == "websocket":
                scope[ADMIT] = partial(self.accounts.begin, name)
            is_work = scope["type"] == "http" and (
                scope["method"] == "POST" or upgrade_of(scope) is not None
            )
            if name is None or not is_work:
                await app(scope, receive, send)
                return
            admission = self.accounts.begin(name)
            if isinstance(admission, Refusal):
                await refuse(scope, receive, send, self._problem(scope, name, admission, fields))
                return

            async def send_with_fields(message: Message) -> None:
                if message["type"] == "http.response.start":
                    more = self._fields(scope["path"], name, fields)
                    message = {**message, "headers": [*message.get("headers", ()), *more]}
                await send(message)

            try:
                await app(scope, receive, send_with_fields)
            finally:
                admission.end()

        return answer

    def _fields(self, path: str, name: str, fields: LimitFields) -> list[Header]:
        left = self.accounts.left(name)
        if not left:
            return []
        return [*rate_limit_fields(left), *fields(path, left, self.accounts.unix_s())]

    def _problem(
        self, scope: Scope, name: str, refusal: Refusal, fields: LimitFields
    ) -> HttpProblem:
        if refusal.exceeded is None:
            return HttpProblem(refusal.status, refusal.text)
        retry_after_s = refusal.exceeded.retry_after_s
        headers = [(b"retry-after", b"%d" % retry_after_s)]
        if retry_after_s > LONG_WAIT_S:
            headers.append((b"x-should-retry", b"false"))
        headers += self._fields(scope["path"], name, fields)
        return HttpProblem(refusal.status, refusal.text, headers)
