"""Show a balancer the server behind an agent, from what its monitor knows."""

from __future__ import annotations

from typing import Final

import attrs
import structlog

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.servers.upstream_monitor import NOT_ASKED_YET, WELL, UpstreamMonitor
from paddler_trio.agent.servers.upstream_state import Reachability, UpstreamState
from paddler_trio.wire.trio.upstream_messages import (
    MAX_DETAIL_CHARS,
    MAX_MODEL_CHARS,
    MAX_MODELS,
    Upstream,
)

log = structlog.get_logger("upstream")

_PHASES: Final = {
    Reachability.READY: "serving",
    Reachability.SLEEPING: "serving",
    Reachability.LOADING: "loading",
}
ANOTHER_MODEL: Final = "it serves another model than at first"


@attrs.define(eq=False)
class UpstreamShown:
    """Follows the monitor; ``offer`` is what is sent beside the status.

    Args:
      address: what people know the server by.
    """

    status: AgentStatus
    monitor: UpstreamMonitor
    address: str
    offer: Upstream = attrs.field(factory=lambda: Upstream(phase="unreachable"), init=False)
    _shown: UpstreamState | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Show every change, until cancelled."""
        while True:
            self.show()
            await self.monitor.wait_changed(self.monitor.state)

    def show(self) -> None:
        """Show what is known now, in this step."""
        state = self.monitor.state
        before, self._shown = self._shown, state
        if state == before:
            return
        self._log(before, state)
        offered = state.slots_offered
        reason = state.reason or (ANOTHER_MODEL if state.changed_model else "")
        self.offer = Upstream(
            phase=state.reachability.value,
            detail=reason[:MAX_DETAIL_CHARS] or None,
            models=_names(state),
            context_tokens=state.context_tokens,
            busy_elsewhere=state.slots_busy_elsewhere + state.still_generating,
            build=state.build[:MAX_DETAIL_CHARS] or None,
            address=self.address,
            slots_endpoint=state.has_slots_endpoint if state.reachability in WELL else None,
        )
        self.status.set(
            slots=max(1, offered),
            is_serving=offered > 0,
            phase=_PHASES.get(state.reachability, "failed"),
            detail=reason or None,
            model_path=state.model_path or None,
        )

    def _log(self, before: UpstreamState | None, state: UpstreamState) -> None:
        known = None if before is None or before.reason == NOT_ASKED_YET else before.reachability
        if state.reason != NOT_ASKED_YET and state.reachability is not known:
            (log.info if state.reachability in WELL else log.warning)(
                "upstream server",
                state=state.reachability.value,
                reason=state.reason,
                slots=state.slots_total,
                build=state.build,
                models=list(_names(state)),
            )
        if state.changed_model and not (before is not None and before.changed_model):
            log.warning("the upstream server serves another model", models=list(_names(state)))


def _names(state: UpstreamState) -> tuple[str, ...]:
    """Return the names of the models that need not be loaded first; a name too long for a request
    is left out."""
    names = (model.name for model in state.models if model.is_loaded)
    return tuple(name for name in names if 0 < len(name) <= MAX_MODEL_CHARS)[:MAX_MODELS]
