"""What happens in one simulation: who takes part, how fast, and which faults strike when.

A scenario is a value, drawn from its seed (``dice``) before anything runs; nothing in it depends on
what the balancer does.
"""

from __future__ import annotations

import math
from enum import Enum

import attrs


class Fault(Enum):
    """What may befall an agent; those with a duration last ``for_s``."""

    RESET = "the connection is closed without a word"
    BURST_RESET = "the same in the middle of the frames of one engine pass"
    VANISH = "the machine is gone; it boots again"
    STALL = "the engine draws no token"
    FREEZE = "the whole process stands still"
    CRASH = "the engine dies and is started again"
    LEAVE = "it finishes what it has, deregisters and goes; it comes back"
    MALFORMED = "it sends a frame that is none"
    UNKNOWN = "it answers what nobody asked"
    STALE = "an older status arrives late"
    BINARY = "it sends a binary message"
    TWIN = "another connection registers under its id"
    SHRINK = "it offers one slot fewer"


@attrs.frozen
class Strike:
    at_s: float
    fault: Fault
    for_s: float


@attrs.frozen
class AgentPlan:
    """``weights`` differ where the same path leads to another file: no continuation between."""

    id: str
    name: str | None
    is_paddler: bool
    slots: int
    weights: int
    pass_s: float
    prefill_s: float
    load_s: float
    drain_s: float
    latency_s: float
    joins_at_s: float
    ignores_stops: bool
    strikes: tuple[Strike, ...]
    deployment: str = "default"


@attrs.frozen
class Reading:
    """How a client reads: a pause before every message; after ``stops_after`` messages no more."""

    pause_s: float = 0.0
    stops_after: float = math.inf

    @property
    def is_quick(self) -> bool:
        return self.pause_s == 0.0 and self.stops_after == math.inf


class Shape(Enum):
    RAW = "raw prompt"
    CONVERSATION = "conversation"
    EMBEDDING = "embedding batch"
    OTHER = "raw prompt to the other deployment"
    MALFORMED = "not a request"
    DUPLICATE = "a request under an id that is in flight"


class Poison(Enum):
    """What a request kills, whoever works on it."""

    ENGINE = "the engine that computes it"
    AGENT = "the agent that prepares it"


@attrs.frozen
class Ask:
    """One request. ``max_tokens`` counts documents in an embedding batch. ``stop_after_s`` only on
    sockets: when ``StopRespondingTo`` is sent."""

    prompt: str
    shape: Shape
    at_s: float
    max_tokens: int
    stop_after_s: float = math.inf
    poison: Poison | None = None


@attrs.frozen
class ClientPlan:
    """A client of HTTP has one ask, one of the inference socket several. ``headers`` say for whom
    they are and how urgent."""

    name: str
    is_socket: bool
    at_s: float
    asks: tuple[Ask, ...]
    reading: Reading
    leaves_after_s: float
    kernel_messages: int
    headers: tuple[tuple[bytes, bytes], ...]


@attrs.frozen
class Order:
    """What the operator does at ``at_s``, to a model's path or an agent's id, maybe for a while."""

    at_s: float
    subject: str
    for_s: float = 0.0


@attrs.frozen
class Scenario:
    """``swaps``: when which model is put; the first at 0. ``stop_at_s``: the first SIGTERM, at the
    latest; ``kill_after_s``: the second one, so much later."""

    seed: int
    temper: str
    max_buffered: int
    buffered_timeout_s: float
    item_timeout_s: float
    stop_confirmation_s: float
    silence_s: float
    write_timeout_s: float
    drain_timeout_s: float
    outbox_steps: int
    outgoing_frames: int
    agents: tuple[AgentPlan, ...]
    clients: tuple[ClientPlan, ...]
    swaps: tuple[Order, ...]
    drains: tuple[Order, ...]
    queries: tuple[Order, ...]
    stop_at_s: float
    kill_after_s: float
    patience_s: float
    """When the first SIGTERM comes if some clients never finish reading."""
