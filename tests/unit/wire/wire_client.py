"""What clients of a balancer read: the messages of its inference socket, and its snapshots."""

from __future__ import annotations

import attrs

from paddler_trio.wire.codec import loads, structure
from paddler_trio.wire.paddler.agent_issue import AgentIssue, sorted_issues
from paddler_trio.wire.paddler.messages import InferenceClientMessage
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus
from paddler_trio.wire.scalars import Int32, Uint64


def parse_inference_client_message(text: str | bytes) -> InferenceClientMessage:
    """Read a frame or a line that a balancer sent to a client. Raises WireError."""
    return structure(loads(text), InferenceClientMessage)


@attrs.frozen(kw_only=True)
class AgentControllerSnapshot:
    """The balancer's view of an agent; ``slots_processing`` is the balancer's own count."""

    desired_slots_total: Int32
    download_current: Uint64
    download_filename: str | None
    download_indeterminate: bool
    download_total: Uint64
    id: str
    issues: tuple[AgentIssue, ...] = attrs.field(converter=sorted_issues)
    model_path: str | None
    name: str | None
    slots_processing: Int32
    slots_total: Int32
    state_application_status: AgentStateApplicationStatus
    uses_chat_template_override: bool


@attrs.frozen
class AgentControllerPoolSnapshot:
    """All registered agents, in no particular order."""

    agents: tuple[AgentControllerSnapshot, ...]


@attrs.frozen
class BufferedRequestManagerSnapshot:
    """How many requests wait for a slot."""

    buffered_requests_current: Int32
