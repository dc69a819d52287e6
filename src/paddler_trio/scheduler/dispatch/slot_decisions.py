"""Decisions of the ledger of slots about a request."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.agent_index import ANY, Constraint
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey


@attrs.frozen
class Choice:
    """The reason why an agent was chosen: it was the least loaded of those that could take the
    request.

    Args:
      candidates: how many agents had a free slot and might have it.
      busy: slots of the chosen one that were taken before.
      slots: all of them.
      wanted: what restricted the choice.
    """

    candidates: int
    busy: int
    slots: int
    wanted: Constraint = ANY


@attrs.frozen
class Granted:
    """The request holds a slot of ``agent`` until it is released."""

    request: RequestKey
    agent: AgentKey
    choice: Choice | None = attrs.field(default=None, eq=False)


@attrs.frozen
class Queued:
    """No slot is free; the request waits behind ``ahead`` others. For its sake ``displaced`` was
    taken out of the full buffer and is forgotten."""

    request: RequestKey
    ahead: int
    displaced: RequestKey | None = None


@attrs.frozen
class BufferFull:
    """No slot is free and ``limit`` requests wait already; the request is not remembered."""

    request: RequestKey
    limit: int


Decision: TypeAlias = Granted | Queued | BufferFull
