"""Work that is not sent over an agent's link: an HTTP request that an upstream server answers.

The task that has the client carries it out. It waits for the request's slot, exchanges what there
is to exchange through a tunnel of the agent, and says when that is done. When the slot is lost, or
the request is stopped, the dispatcher cuts the exchange, in the step in which that happens.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class ForwardedWork:
    """An exchange, as far as the dispatcher knows it.

    Args:
      response_timeout_s: the server may be silent for so long, before its answer and in it.
    """

    response_timeout_s: float
    excess: None = attrs.field(default=None, init=False)
    """No frame carries it, so it is too long for none."""
    needs_ours: None = attrs.field(default=None, init=False)
    features: tuple[str, ...] = attrs.field(default=(), init=False)
    needs: frozenset[str] = attrs.field(default=frozenset(), init=False)
    sent_as: str | None = attrs.field(default=None, init=False)
    """The id of the last lease whose agent may have got it: that one says when it is done with it.
    The slot may have been lost, and another one be held, before the task that forwards it runs."""
    _wire_id: str | None = attrs.field(default=None, init=False)
    _cut: Callable[[], None] | None = attrs.field(default=None, init=False)
    _close: Callable[[], None] | None = attrs.field(default=None, init=False)

    def begin(self, wire_id: str, cut: Callable[[], None]) -> None:
        """An exchange is under way in the slot of the lease with this id; ``cut`` ends it without
        waiting, and may be called once."""
        self._wire_id, self._cut = wire_id, cut

    def sent(self, close: Callable[[], None]) -> None:
        """There is a tunnel, through which it is sent from now on; ``close`` ends that, by which
        the agent knows that nobody wants the answer. It does not wait: the exchange may be in a
        write to a client that reads nothing, which nothing cuts short."""
        self.sent_as, self._close = self._wire_id, close

    def finish(self) -> None:
        """Note that the exchange is over: there is nothing left to cut."""
        self._cut = self._close = None

    def cut(self) -> None:
        """End the exchange in progress, if there is one."""
        cut, close, self._cut, self._close = self._cut, self._close, None, None
        if cut is not None:
            cut()
        if close is not None:
            close()
