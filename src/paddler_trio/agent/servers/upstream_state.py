"""Values for what is known about an upstream server."""

from __future__ import annotations

import enum

import attrs


class Reachability(enum.Enum):
    """The answers to whether a server takes requests now."""

    READY = "ready"
    LOADING = "loading"
    """It answers, and loads its model."""
    SLEEPING = "sleeping"
    """It has unloaded its model; the next request loads it again."""
    UNAUTHORISED = "unauthorised"
    """It wants a key, or another one."""
    UNREACHABLE = "unreachable"
    """Nobody answers at its address."""
    FAILING = "failing"
    """It answers nothing useful, or its requests failed."""


@attrs.frozen
class UpstreamModel:
    """Args:
    status: of a model that a router may load: ``loaded``, ``loading``, ``sleeping``,
      ``unloaded``, ``downloading``, ``downloaded``, or ``failed``. Empty elsewhere: it is served.
    context_tokens: None if the server does not say.
    """

    name: str
    status: str = ""
    context_tokens: int | None = None

    @property
    def is_loaded(self) -> bool:
        """Return whether a request does not have to wait until it is loaded."""
        return self.status in {"", "loaded"}


@attrs.frozen
class Modalities:
    """The kinds of input that a model takes beside text, as llama-server says it."""

    vision: bool = False
    audio: bool = False
    video: bool = False


@attrs.frozen(kw_only=True)
class ServerFacts:
    """Facts that change only when the server or its model is another one.

    Args:
      total_slots: requests at once; None if it does not say.
      context_tokens: of each slot; None if it does not say.
      has_slots, has_metrics: whether these endpoints are on; None if it does not say.
      is_router: it loads models when requests name them.
    """

    total_slots: int | None = None
    context_tokens: int | None = None
    build: str = ""
    model_path: str = ""
    modalities: Modalities = Modalities()
    has_slots: bool | None = None
    has_metrics: bool | None = None
    is_router: bool = False
    is_sleeping: bool = False


@attrs.frozen(kw_only=True)
class UpstreamState:
    """A picture of the server.

    Args:
      reason: one line on why it is not ready; empty if it is.
      slots_total: how many requests it takes at once; None if neither it nor the operator says.
      slots_busy_elsewhere: how many of these serve others.
      still_generating: how many of these may serve requests of ours that were cancelled.
      has_slots_endpoint: whether others and cancelled requests can be noticed at all.
      changed_model: another model than at first.
      next_probe_s: of Trio's clock, while the server is not asked at its usual interval.
      num_failed: requests that it broke on, at the last look at it. So each look after one is told.
    """

    reachability: Reachability
    reason: str = ""
    slots_total: int | None = None
    slots_busy_elsewhere: int = 0
    still_generating: int = 0
    models: tuple[UpstreamModel, ...] = ()
    context_tokens: int | None = None
    has_slots_endpoint: bool = False
    build: str = ""
    model_path: str = ""
    modalities: Modalities = Modalities()
    is_router: bool = False
    changed_model: bool = False
    next_probe_s: float | None = None
    num_failed: int = 0

    @property
    def slots_offered(self) -> int:
        """The number of requests of ours that it can have in flight; those that it has are counted
        in."""
        if self.reachability not in {Reachability.READY, Reachability.SLEEPING}:
            return 0
        taken = self.slots_busy_elsewhere + self.still_generating
        return max(0, (self.slots_total or 0) - taken)
