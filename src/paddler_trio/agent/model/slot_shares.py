"""Decide which link may offer how many of an agent's slots, while a balancer takes over from
another.

A balancer that leaves says how many slots it still needs, never more than the last time; its link
offers those, and the newest link what is left. So no slot is offered twice, whatever is on its way.
"""

from __future__ import annotations

import attrs

from paddler_trio.agent.link.agent_status import AgentStatus


@attrs.define(eq=False)
class SlotShare:
    """The share of one link. ``kept`` is what its balancer still needs; None as long as it does not
    leave."""

    kept: int | None = None


@attrs.define(eq=False)
class SlotShares:
    """The shares of all links of one instance, the oldest first."""

    status: AgentStatus
    _shares: list[SlotShare] = attrs.field(factory=list, init=False)

    def __repr__(self) -> str:
        kept = [each.kept for each in self._shares if each.kept is not None]
        return f"<SlotShares of {len(self._shares)} links, kept by those that leave: {kept}>"

    def open(self) -> SlotShare:
        """Return the share of a new link."""
        share = SlotShare()
        self._shares.append(share)
        return share

    def leave(self, share: SlotShare, slots: int) -> None:
        """Note that a link's balancer leaves, and needs no more than these slots."""
        share.kept = slots if share.kept is None else min(share.kept, slots)
        self.status.changes.notify()

    def close(self, share: SlotShare) -> None:
        """Note that the link has ended: others may offer its slots."""
        self._shares.remove(share)
        self.status.changes.notify()

    def offered(self, share: SlotShare) -> int:
        """Return how many slots this link may offer now."""
        free = self.status.slots_total
        for each in self._shares:
            mine = free if each.kept is None else min(free, each.kept)
            if each is share:
                return mine
            free -= mine
        return 0
