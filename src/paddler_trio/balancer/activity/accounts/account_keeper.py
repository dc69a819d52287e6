"""Find which requests to agents belong to which request of a client: an observer of the dispatcher.

They are found by their trace: a client's request and the requests that it becomes share one
``TraceContext``, the very object. One that comes without an account, as on a WebSocket, has an
account of its own. Nothing is done for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from paddler_trio.balancer.activity.accounts.request_account import RequestAccount, status_of
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Phase, Request
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.wire.trace_parent import TraceContext


@attrs.define(eq=False, repr=False)
class AccountKeeper(DispatchObserver):
    """See the module docstring.

    Args:
      in_flight: the records of requests that have not ended; that of a new one is there before
        this observer sees it.
      on_complete: called with each account once it is complete.
    """

    in_flight: Mapping[RequestKey, RequestRecord]
    on_complete: Sequence[Callable[[RequestAccount], None]]
    _accounts: dict[int, RequestAccount] = attrs.field(factory=dict, init=False)
    """Whose answer has not ended, by the identity of their trace, which the account holds."""
    _requests: dict[RequestKey, tuple[RequestAccount, RequestRecord]] = attrs.field(
        factory=dict, init=False
    )

    def __repr__(self) -> str:
        return f"<AccountKeeper {len(self._accounts)} accounts, {len(self._requests)} requests>"

    # ------------------------------------------------------------- clients

    def open(self, account: RequestAccount) -> None:
        """A client's request has come in."""
        self._accounts[id(account.trace)] = account

    def close(self, account: RequestAccount) -> None:
        """Note that its answer has ended."""
        del self._accounts[id(account.trace)]
        account.ended_s = trio.current_time()
        if account.is_complete:
            self._complete(account)

    def refused(self, account: RequestAccount, status: int) -> None:
        """A request on a WebSocket was refused before it came to the dispatcher."""
        account.status, account.ended_s = status, trio.current_time()
        self._complete(account)

    # ----------------------------------------------------------- observing

    def arrived(self, request: Request) -> None:
        trace = request.trace
        if trace is not None:
            record = self.in_flight[request.key]
            account = self._accounts.get(id(trace)) or _own(request, trace)
            account.request = account.request or request.log_id
            account.began(record)
            self._requests[request.key] = account, record

    def moved(self, request: Request, left: Phase) -> None:
        if isinstance(request.phase, Ended) and request.key in self._requests:
            account, record = self._requests.pop(request.key)
            account.ended(record)
            if account.is_alone:
                self._accounts.pop(id(account.trace), None)
                account.status, account.ended_s = status_of(record), record.ended_s
            if account.is_complete:
                self._complete(account)

    def _complete(self, account: RequestAccount) -> None:
        for take in self.on_complete:
            take(account)


def _own(request: Request, trace: TraceContext) -> RequestAccount:
    route = request.route or ""
    return RequestAccount(
        trace, request.log_id, route, route=route, client=request.client_name, is_alone=True
    )
