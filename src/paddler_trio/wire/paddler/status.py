"""The status of agents, as they report it.

An agent's issues are a set: sorted by variant, then by what they carry, and without duplicates,
from the moment a snapshot exists.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from paddler_trio.wire.paddler.agent_issue import AgentIssue, sorted_issues
from paddler_trio.wire.scalars import Int32, Uint64


class AgentStateApplicationStatus(StrEnum):
    """The progress of an agent with the state it was sent last."""

    FRESH = "Fresh"
    ATTEMPTED_AND_RETRYING = "AttemptedAndRetrying"
    STUCK = "Stuck"
    ATTEMPTED_AND_NOT_APPLIABLE = "AttemptedAndNotAppliable"
    APPLIED = "Applied"


@attrs.frozen(kw_only=True)
class SlotAggregatedStatusSnapshot:
    """An agent's own view of itself.

    ``slots_total`` counts the slots usable now (0 until a model is loaded),
    ``desired_slots_total`` those the agent was started with. ``download_current`` and
    ``download_total`` are bytes. ``version`` grows while the agent process lives.
    """

    desired_slots_total: Int32
    download_current: Uint64
    download_filename: str | None
    download_indeterminate: bool
    download_total: Uint64
    issues: tuple[AgentIssue, ...] = attrs.field(converter=sorted_issues)
    model_path: str | None
    slots_processing: Int32
    slots_total: Int32
    state_application_status: AgentStateApplicationStatus
    uses_chat_template_override: bool
    version: Int32


@attrs.frozen
class ModelMetadata:
    """The key-value pairs of a model file, as text."""

    metadata: dict[str, str]


@attrs.frozen
class ChatTemplate:
    """A Jinja chat template, as text."""

    content: str
