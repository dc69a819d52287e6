"""The limits of API keys, behind authentication and in front of the applications for inference.

Every ``POST``, ``PUT`` and ``PATCH`` is a request, whatever becomes of it: also one that is wrong,
a count of tokens, a batch of texts. Each answer beyond the first that is to be generated is one
more, as soon as it is known how many there are. Reading (models, slots, stored responses) is not
counted.
It is under way from here to the last byte of its answer, so its wait for a slot counts, and it ends
with the task that serves it: also when the client leaves, the agent is lost, or the server stops.

A WebSocket for inference is no request; each of its messages is one. What admits them
is noted on its exchange. One that is passed on to a server is a request as long as it is open.

The tokens of each request are charged to its API key when it ends: an observer.

Charged are the tokens of the prompt, once, however often a loss made agents compute it, and every
token of the answer, also of one that was cut off. Each choice of an answer has a prompt of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import attrs

from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.front.rate_limit_fields import rate_limit_fields
from paddler_trio.balancer.keys.key_accounts import Admission, KeyAccounts, Refusal
from paddler_trio.net.server.asgi import Header, HttpProblem, Message
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Phase, Request
from paddler_trio.scheduler.limits.key_usage import Left

WORK_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})
"""A server behind an agent may take any of them for a ``POST``."""
LONG_WAIT_S: Final = 60
"""Official clients would sleep up to a minute and try again: after longer ones it is no use."""

Admit: TypeAlias = Callable[[], Admission | Refusal]
LimitFields: TypeAlias = Callable[[str, Sequence[Left], float], Iterable[Header]]
"""The fields of an API for a path and what is left at a time (UTC)."""


def no_more_fields(path: str, left: Sequence[Left], unix_s: float) -> Iterable[Header]:
    """Paddler's routes have none of their own."""
    return ()


def admit(exchange: Exchange) -> Admission | Refusal | None:
    """A message of a WebSocket is a request from now on; None where nothing is limited."""
    begin: Admit | None = exchange.admit
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

        async def answer(exchange: Exchange) -> None:
            name = exchange.identity.account
            if name and exchange.is_websocket:
                exchange.admit = partial(self.accounts.begin, name)
            is_work = exchange.is_http and (
                exchange.method in WORK_METHODS or exchange.upgrade is not None
            )
            if not name or not is_work:
                await app(exchange)
                return
            admission = self.accounts.begin(name)
            if isinstance(admission, Refusal):
                await refuse(exchange, self._problem(exchange, name, admission, fields))
                return

            def more(number: int) -> HttpProblem | None:
                refusal = self.accounts.more(name, number)
                return None if refusal is None else self._problem(exchange, name, refusal, fields)

            exchange.admit_more = more
            send, path = exchange.send, exchange.path

            async def send_with_fields(message: Message) -> None:
                if message["type"] == "http.response.start":
                    more = self._fields(path, name, fields)
                    message = {**message, "headers": [*message.get("headers", ()), *more]}
                await send(message)

            try:
                exchange.send = send_with_fields
                await app(exchange)
            finally:
                exchange.admit_more = None  # which knows this exchange
                admission.end()

        return answer

    def _fields(self, path: str, name: str, fields: LimitFields) -> list[Header]:
        left = self.accounts.left(name)
        if not left:
            return []
        return [*rate_limit_fields(left), *fields(path, left, self.accounts.unix_s())]

    def _problem(
        self, exchange: Exchange, name: str, refusal: Refusal, fields: LimitFields
    ) -> HttpProblem:
        if refusal.exceeded is None:
            return HttpProblem(refusal.status, refusal.text)
        retry_after_s = refusal.exceeded.retry_after_s
        headers = [(b"retry-after", b"%d" % retry_after_s)]
        if retry_after_s > LONG_WAIT_S:
            headers.append((b"x-should-retry", b"false"))
        headers += self._fields(exchange.path, name, fields)
        return HttpProblem(refusal.status, refusal.text, headers)


@attrs.define(eq=False)
class KeyTokens(DispatchObserver):
    """See the module docstring.

    Args:
      finished: the records of requests that ended; the newest is there before this is called.
    """

    accounts: KeyAccounts
    finished: FinishedRequests

    def moved(self, request: Request, left: Phase) -> None:
        if request.account and isinstance(request.phase, Ended):
            self.accounts.charge(request.account, self._tokens_of(request))

    def _tokens_of(self, request: Request) -> int:
        record = self.finished.last
        if record is None or record.key != request.key:
            return 0
        prompts = (placement.prompt_tokens for placement in record.placements)
        prompt = next((tokens for tokens in prompts if tokens is not None), 0)
        return prompt + (record.tokens if record.kind == "generation" else 0)
