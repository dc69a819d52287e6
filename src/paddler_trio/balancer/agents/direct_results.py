"""Results on their way to a client, written in the step in which the agent delivers them.

A token that is put in a queue for the task of its request costs a wake-up and a turn of the event
loop, which is more than all else that is done with it. So as long as the client reads as fast as
results come, nothing is queued: they are rendered where they arrive, and those of one pass of the
engine go out in one write that waits for nothing. The task of the request sleeps meanwhile.

It is woken when the kernel did not take everything, and when rendering failed. From then on results
go to the outbox, as they do before the response has begun, until the task has sent all of it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from paddler_trio.net.server.asgi import ClientGoneError
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.streaming import WritesNow
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.step_results import Results


@attrs.define(eq=False, repr=False)
class DirectResults:
    """A ``ResultSink``.

    Args:
      render: what a client is sent of these results; None leaves them to the outbox. It must not
        change anything when it returns None or raises.
    """

    request: Request
    body: WritesNow
    render: Callable[[Results], bytes | None]
    _is_idle: bool = attrs.field(default=False, init=False)
    """The consumer has sent everything, and waits."""
    _pieces: list[bytes] = attrs.field(factory=list, init=False)

    def __repr__(self) -> str:
        state = "direct" if self._is_idle else "through the outbox"
        return f"<DirectResults of {self.request.id} {state}: {len(self._pieces)} to flush>"

    def consumer_waits(self) -> None:
        """Call it before each wait for the outbox."""
        self._is_idle = self.request.outbox.statistics().current_buffer_used == 0

    def consumer_works(self) -> None:
        """Call it when that wait is over."""
        self._is_idle = False
        self.flush()

    def take(self, results: Results) -> bool:
        """Take a result, as in ``ResultSink``."""
        if not self._is_idle:
            return False
        try:
            piece = self.render(results)
        except Exception:  # noqa: BLE001  # it fails again in the task of the request, alone
            piece = None
        if piece is None:
            self._is_idle = False
            return False
        if piece:
            self._pieces.append(piece)
        return True

    def flush(self) -> None:
        """Flush, as in ``ResultSink``."""
        if not self._pieces:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        try:
            is_sent = self.body.write_now(data)
        except ClientGoneError:  # the task of the request is cancelled for it
            is_sent = False
        if not is_sent:
            self._is_idle = False
            self.request.wake_consumer()


def send_directly(
    exchange: Exchange, request: Request, render: Callable[[Results], bytes | None]
) -> DirectResults | None:
    """Have results of ``request`` written past its outbox, once the response has begun; None where
    that is impossible: everything comes through the outbox then. A request that is over has its
    last results there, and would never let go of a sink."""
    body = None if request.is_over else exchange.open_body()
    if body is None:
        return None
    direct = request.sink = DirectResults(request, body, render)
    return direct
