"""Keep what agents have said of their machines, for as long as they are connected."""

from __future__ import annotations

import attrs
import structlog
import trio

from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.wire.trio.operations.machine_facts import MachineFacts

log = structlog.get_logger("agents")


@attrs.frozen
class KnownMachine:
    """``told_s``: when its agent said so."""

    facts: MachineFacts
    told_s: float


@attrs.define(eq=False)
class AgentMachines:
    """See the module docstring. One of several connections of an agent tells of its machine."""

    _known: dict[AgentConnection, KnownMachine] = attrs.field(factory=dict, init=False)

    def __repr__(self) -> str:
        return f"<AgentMachines: {len(self._known)} are known>"

    def note(self, agent: AgentConnection, facts: MachineFacts) -> None:
        """An agent says how its machine is; what it is made of is logged once."""
        before = self._known.get(agent)
        words = _made_of(facts)
        if before is None or _made_of(before.facts) != words:
            log.info("the machine of an agent is known", agent=agent.label, **words)
        self._known[agent] = KnownMachine(facts, trio.current_time())

    def forget(self, agent: AgentConnection) -> None:
        """The connection is over."""
        self._known.pop(agent, None)

    def of(self, agent: AgentConnection) -> KnownMachine | None:
        """Return what this connection said; None for nothing."""
        return self._known.get(agent)


def _made_of(facts: MachineFacts) -> dict[str, str]:
    gpus = ", ".join(gpu.name for gpu in facts.gpus)
    return {"cpu": facts.cpu, "gpus": gpus, "version": facts.version}
