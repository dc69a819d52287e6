"""A view of the balancer's state as JSON text, rendered once for all of its readers.

A single read returns the state as it is now. Watchers get every text that differs from the last,
but no more often than all of them together can be served cheaply: the more bytes a change costs,
the longer the pause after it. Changes in between count as one, and the last state is always sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

import attrs
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.codec import dumps

WATCHERS_BYTES_A_SECOND: Final = 4 * 1024 * 1024
"""To all watchers of a view together: a few hundredths of a core."""
BYTES_OF_A_SEND: Final = 16 * 1024
"""What one event costs besides its own bytes, in bytes."""
LONGEST_PAUSE_S: Final = 1.0


@attrs.define(eq=False)
class SharedView:
    """See the module docstring.

    Args:
      render: the text, from the current state; synchronous, called at most once a change.
      changes: notified when the text may differ.
    """

    render: Callable[[], bytes]
    changes: Changes
    watchers: int = attrs.field(default=0, init=False)
    _text: bytes = attrs.field(default=b"", init=False)
    _rendered: int = attrs.field(default=-1, init=False)
    """The number of changes that ``_text`` shows."""
    _sent: bytes = attrs.field(default=b"", init=False)
    """The text that watchers get; the same object for all of them."""
    _sent_changes: int = attrs.field(default=-1, init=False)
    _pause_ends_s: float = attrs.field(default=0.0, init=False)

    def current(self) -> bytes:
        """Return the text as it is now."""
        if self._rendered != self.changes.ordinal:
            self._rendered = self.changes.ordinal
            self._text = self.render()
        return self._text

    def begin(self) -> bytes:
        """Return the first text for a new watcher; :meth:`next` has the others."""
        self._refresh()
        return self._sent

    async def next(self, last: bytes) -> bytes:
        """Return the next text that is not ``last``."""
        while True:
            has_news = self._sent_changes != self.changes.ordinal
            if has_news and trio.current_time() >= self._pause_ends_s:
                self._refresh()
            if self._sent != last:
                await trio.lowlevel.checkpoint()
                return self._sent
            if self._sent_changes == self.changes.ordinal:
                await self.changes.wait_beyond(self._sent_changes)
            else:
                await trio.sleep_until(self._pause_ends_s)

    def _refresh(self) -> None:
        text = self.current()
        self._sent_changes = self.changes.ordinal
        if text != self._sent:
            self._sent = text
            cost = (len(text) + BYTES_OF_A_SEND) * self.watchers
            pause_s = min(LONGEST_PAUSE_S, cost / WATCHERS_BYTES_A_SECOND)
            self._pause_ends_s = trio.current_time() + pause_s


@attrs.define(eq=False)
class AgentsView:
    """All agents as JSON text; each is rendered again only when something about it changed.

    Args:
      show: one agent, with the number of its busy slots, as plain JSON.
      head: fields that stand before ``agents``.
      hides: the connections that are left out.
    """

    dispatcher: Dispatcher
    show: Callable[[AgentConnection, int], Mapping[str, object]]
    head: Callable[[], Mapping[str, object]] = dict
    hides: Callable[[Collection[AgentConnection]], Collection[AgentKey]] = lambda agents: ()
    _shown: dict[AgentKey, tuple[tuple[object, ...], bytes]] = attrs.field(factory=dict, init=False)

    def render(self) -> bytes:
        before, self._shown = self._shown, {}
        hidden = self.hides(self.dispatcher.agents.values())
        for key, agent in self.dispatcher.agents.items():
            if key in hidden:
                continue
            slots = self.dispatcher.slots_processing(key)
            looks = (
                agent.status,
                agent.report,
                agent.upstream,
                agent.is_accepting,
                agent.is_drained,
                agent.usable_slots,
                slots,
            )
            known = before.get(key)
            if known is None or known[0] != looks:
                known = looks, dumps(self.show(agent, slots))
            self._shown[key] = known
        head = b"".join(
            dumps(name) + b":" + dumps(value) + b"," for name, value in self.head().items()
        )
        agents = b",".join(text for _, text in self._shown.values())
        return b"{" + head + b'"agents":[' + agents + b"]}"


def without_models(agents: Collection[AgentConnection]) -> frozenset[AgentKey]:
    """Return the connections that only stand for a machine whose deployments have others.

    An agent has a first connection, for ``default``, and one for each other deployment. Where
    ``default`` has no model the first one has neither a model nor a slot: Paddler's clients would
    count one machine twice.
    """
    several = Counter(agent.host for agent in agents)
    return frozenset(
        agent.key
        for agent in agents
        if several[agent.host] > 1
        and agent.host == agent.id
        and agent.status.model_path is None
        and agent.status.slots_total == 0
        and not agent.status.issues
    )
