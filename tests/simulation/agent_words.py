"""The frames of a simulated agent, as bytes; nothing here knows when they are sent."""

from __future__ import annotations

import attrs
from language import Result
from sim_engine import Produced

from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.messages import UpdateAgentStatus, render
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.trio.request_frame import step_entry, step_frame
from paddler_trio.wire.trio.trio_link import Report, render_extension


@attrs.frozen
class AgentSwapState:
    """What an agent says of itself, whichever way it says it."""

    slots: int
    slots_offered: int
    slots_running: int
    is_loaded: bool
    is_leaving: bool
    wanted: str | None
    served: str | None
    weights: str | None
    version: int

    def snapshot(self) -> SlotAggregatedStatusSnapshot:
        """Paddler's status."""
        status = AgentStateApplicationStatus
        return SlotAggregatedStatusSnapshot(
            desired_slots_total=self.slots,
            download_current=0,
            download_filename=None,
            download_indeterminate=True,
            download_total=0,
            issues=(),
            model_path=self.weights,
            slots_processing=self.slots_running,
            slots_total=self.slots_offered,
            state_application_status=status.APPLIED if self.is_loaded else status.FRESH,
            uses_chat_template_override=False,
            version=self.version,
        )

    def status_frame(self) -> bytes:
        return render(UpdateAgentStatus(self.snapshot()))

    def stale_frame(self) -> bytes:
        """From before the newest one, with slots that nobody has."""
        stale = attrs.evolve(self.snapshot(), version=self.version - 1, slots_total=99)
        return render(UpdateAgentStatus(stale))

    def report_frame(self) -> bytes:
        """What only a balancer of ours understands."""
        return render_extension(
            Report(
                phase="serving" if self.is_loaded else "loading",
                wanted_state=self.wanted,
                served_state=None if self.is_leaving else self.served,
                model=self.weights,
                progress=None,
                detail=None,
            )
        )


def response_frame(wire_id: str, family: str, result: Result | str | None) -> bytes:
    """One of Paddler's responses."""
    response = {family: result}
    return dumps({"Response": {"generated_by": None, "request_id": wire_id, "response": response}})


def pass_frame(produced: list[Produced]) -> bytes:
    """Everything of one pass, for a balancer of ours."""
    return step_frame(step_entry(one.running.wire_id, one.tokens, one.results) for one in produced)


def summary(produced: list[Produced]) -> str:
    """For the trace: which request is how far, and how much of it became visible."""
    return " ".join(
        f"{one.running.wire_id}@{len(one.running.tokens)}+{len(one.results)}" for one in produced
    )
