"""A request on an agent: from the moment it is sent until the agent is done with it.

The agent's reader delivers into it synchronously; the request's task only waits for the outcome.
So a token costs one task switch, the one of the consumer that writes it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from paddler_trio.nursery_tree.request import RawResult, Request, Results, Stopped
from paddler_trio.nursery_tree.synchronization import Verdict

if TYPE_CHECKING:
    from paddler_trio.nursery_tree.agent_connection import AgentConnection


@attrs.frozen
class Finished:
    """The agent sent the ending result, and it was passed on."""


@attrs.frozen
class AgentLost:
    """The agent, or its engine, is gone. ``refusal`` says why the request may not go on
    elsewhere; None means that it waits for another slot already."""

    refusal: str | None


@attrs.frozen
class BrokenFrame:
    """The agent sent something that is not a result; ``detail`` says what."""

    detail: str


@attrs.frozen
class SlowReader:
    """The client reads so slowly that its outbox is full."""


@attrs.frozen
class NoToken:
    """The agent said nothing for the item timeout."""


Outcome: TypeAlias = Finished | AgentLost | BrokenFrame | SlowReader | NoToken | Stopped


@attrs.define(eq=False)
class Lease:
    """One request in one slot of one agent. ``wire_id`` is ours, unique on the connection;
    ``isolated``: what the agent was told that the request may have killed, see
    :class:`~paddler_trio.wire.trio.trio_link.Start`; None for nothing."""

    request: Request
    agent: AgentConnection
    wire_id: str
    item_timeout_s: float
    isolated: str | None = None
    num_deliveries: int = attrs.field(default=0, init=False)
    """How often the agent said something of it."""
    verdict: Verdict[Outcome] = attrs.field(factory=Verdict, init=False)
    agent_done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _patience: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def deliver(
        self,
        family: str,
        results: list[RawResult],
        *,
        ends: bool,
        tokens: list[int] | None = None,
    ) -> None:
        """The agent produced these; called by its reader, never blocks.

        ``tokens`` are what the results were made of; None if the agent does not say. Without
        knowing the model that drew them, nobody can go on after them.
        """
        self.num_deliveries += 1
        if ends:
            self.agent_done.set()
        if self.verdict.answer is not None:  # stopped: we only wait for the agent's ending
            return
        self._patience.deadline = trio.current_time() + self.item_timeout_s
        if tokens is None or self.agent.model is None:
            self.request.is_continuable = False
        else:
            self.request.tokens += tokens
            self.request.model = self.agent.model
        if not results and not tokens and not ends:
            return  # it only says that it works on it
        step = Results(self.agent.name, family, results, tokens or ())
        if not self.request.emit(step, ends=ends):
            self.verdict.give(SlowReader())
        elif ends:
            self.verdict.give(Finished())

    @property
    def is_announced(self) -> bool:
        """The agent says when it begins to prepare it."""
        return self.isolated == "agent"

    @property
    def is_being_prepared(self) -> bool:
        """For all we know: an agent of ours says when it has prepared a request."""
        return self.num_deliveries == (1 if self.is_announced else 0)

    def lost(self, refusal: str | None) -> None:
        """The agent will not finish it; see :class:`AgentLost`. Its route is closed at once: the
        request's task may be on its way to another agent before it ever saw this lease."""
        self.agent_done.set()
        self.verdict.give(AgentLost(refusal))
        self.agent.forget(self)

    async def outcome(self) -> Outcome:
        """Wait for the end, as long as something arrives within every item timeout."""
        self._patience.deadline = trio.current_time() + self.item_timeout_s
        with self._patience:
            return await self.verdict.wait()
        self.verdict.give(NoToken())
        assert self.verdict.answer is not None
        return self.verdict.answer  # in this very step: the agent may be about to leave
