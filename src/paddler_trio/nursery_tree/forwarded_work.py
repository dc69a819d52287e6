"""Work that is not sent over an agent's link: an HTTP request that an upstream server answers.

The task that has the client carries it out. It waits for the request's slot, exchanges what there
is to exchange through a tunnel of the agent, and says when that is done. When the slot is lost, or
the request is stopped, the dispatcher cuts the exchange, in the step in which that happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

UPSTREAM: Final = frozenset({"upstream"})
"""What an agent in front of a server offers."""


@attrs.define(eq=False)
class ForwardedWork:
    """What of an exchange the dispatcher knows.

    Args:
      response_timeout_s: the server may be silent for so long, before its answer and in it.
    """

    response_timeout_s: float
    excess: None = attrs.field(default=None, init=False)
    """No frame carries it, so it is too long for none."""
    needs_ours: None = attrs.field(default=None, init=False)
    is_with_agent: bool = attrs.field(default=False, init=False)
    """The agent that it has a slot of may have got it, and says when it is done with it."""
    _cut: Callable[[], None] | None = attrs.field(default=None, init=False)

    def begin(self, cut: Callable[[], None]) -> None:
        """An exchange is under way; ``cut`` ends it without waiting, and may be called once."""
        self._cut = cut

    def sent(self) -> None:
        """There is a tunnel, through which it is sent from now on."""
        self.is_with_agent = True

    def finish(self) -> None:
        """It is over: there is nothing left to cut."""
        self._cut = None

    def cut(self) -> None:
        """End the exchange in progress, if there is one."""
        cut, self._cut = self._cut, None
        if cut is not None:
            cut()
