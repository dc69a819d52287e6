"""Decisions of the ledger of slots about a request."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import attrs

from paddler_trio.scheduler.dispatch.agent_index import ANY, Constraint
from paddler_trio.scheduler.dispatch.fair_order import RequestKey
from paddler_trio.scheduler.dispatch.placement import AgentKey


class Option(NamedTuple):
    """An agent that a request could be given to, by its name.

    Args:
      tokens_there: of the prompt, those that it is believed to have computed.
      predicted_s: when the first token is expected.
      wait_s: how much of that is the wait for a slot; 0 if it has a free one.
    """

    agent: str
    tokens_there: int
    predicted_s: float
    wait_s: float = 0.0


class Prediction(NamedTuple):
    """The agents that were compared for a request, the one that was to have it at once first; the
    prompt is believed to have so many ``tokens``."""

    tokens: int
    options: tuple[Option, ...]


class Pick(NamedTuple):
    """The agent that a request shall have; or, with ``until_s``, the one that it waits for until
    then at the latest, though others have free slots."""

    agent: AgentKey
    prediction: Prediction | None = None
    until_s: float | None = None


@attrs.frozen
class Choice:
    """The reason why an agent was chosen: it was the least loaded of those that could take the
    request, or the first token is predicted to come first there.

    Args:
      candidates: how many agents had a free slot and might have it.
      busy: slots of the chosen one that were taken before.
      slots: all of them.
      wanted: what restricted the choice.
      prediction: what was compared; None if only loads were.
      held: the request let other slots pass for this one.
    """

    candidates: int
    busy: int
    slots: int
    wanted: Constraint = ANY
    prediction: Prediction | None = None
    held: bool = False


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
