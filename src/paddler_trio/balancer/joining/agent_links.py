"""The open connections of agents with credentials, and which of them look like those of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import trio

OVERLAP_S: Final = 15.0
"""How long two processes may show one credential: the link of one that crashed may look alive until
it is silent for too long."""
REVOKED: Final = "its credential was revoked"


@attrs.define(eq=False)
class AgentLink:
    """One open connection.

    Args:
      process: the same for all links of one process of an agent.
      scope: ends it.
    """

    process: str
    address: str
    since_s: float
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, repr=False)


@attrs.define(eq=False, repr=False)
class AgentLinks:
    """All of one balancer, by the ids of their credentials."""

    _links: dict[str, list[AgentLink]] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return sum(map(len, self._links.values()))

    def __contains__(self, credential_id: str) -> bool:
        """Return whether an agent is connected with this credential."""
        return credential_id in self._links

    def __repr__(self) -> str:
        return f"<AgentLinks: {len(self)} of {len(self._links)} credentials>"

    def open(self, credential_id: str, process: str, address: str) -> AgentLink:
        """Count one more."""
        link = AgentLink(process, address, trio.current_time())
        self._links.setdefault(credential_id, []).append(link)
        return link

    def close(self, credential_id: str, link: AgentLink) -> None:
        """It has ended."""
        links = self._links[credential_id]
        links.remove(link)
        if not links:
            del self._links[credential_id]

    def connected(self) -> frozenset[str]:
        """Return the ids of the credentials with which agents are connected."""
        return frozenset(self._links)

    def cut(self, credential_id: str) -> None:
        """End those of a credential that was revoked."""
        for link in self._links.get(credential_id, ()):
            link.scope.cancel(reason=REVOKED)

    def in_two_places(self, now_s: float) -> Iterator[tuple[str, str]]:
        """Return credentials that two processes have used at once for long enough, and what was
        seen."""
        for credential_id, links in self._links.items():
            if len(links) < 2:
                continue
            steady = (each for each in links if each.since_s + OVERLAP_S <= now_s)
            processes = {each.process: each for each in steady}
            if len(processes) > 1:
                places = " and ".join(sorted({each.address for each in processes.values()}))
                yield credential_id, f"{len(processes)} processes use it at once, from {places}"
