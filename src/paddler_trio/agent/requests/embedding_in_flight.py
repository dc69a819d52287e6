"""One embedding request while it is worked on, and where its results go."""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.requests.request_spans import RequestTimes
from paddler_trio.errors import EngineError
from paddler_trio.language.embedding_results import RawEmbeddingResult
from paddler_trio.wire.engine.engine_pipe import Embedded

_LISTED_PROBLEMS = 3


class EmbeddingReply(Protocol):
    """The connection that a request came in on, where its results go."""

    @property
    def speaks_trio(self) -> bool:
        """Return whether the balancer is ours: a request may be handed back instead of failed."""
        ...

    async def send_large(self, frame: bytes) -> None:
        """Send, waiting for those before; trio.BrokenResourceError if the connection has ended."""
        ...

    def respond(self, wire_id: str, response: object) -> None:
        """Queue a small response; it may overtake large ones."""
        ...

    def acknowledge(self, wire_id: str) -> None:
        """Send the empty entry that :class:`~paddler_trio.wire.trio.trio_link.Start` describes, at
        once."""
        ...

    async def sent(self) -> None:
        """Wait until everything queued was sent."""
        ...

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None: ...


class EngineLostError(EngineError):
    """The engine is gone in the middle of it; ``suspects`` is as in a
    :class:`~paddler_trio.wire.trio.trio_link.HandBack`, None if no engine died."""

    def __init__(self, reason: str, suspects: int | None) -> None:
        super().__init__(reason)
        self.suspects = suspects


@attrs.define
class Portion:
    """Chunks that the engine was given under one key: ``num_left`` of them have not come back,
    and the first was the request's chunk ``first``."""

    first: int
    num_left: int


@attrs.define(eq=False)
class EmbeddingInFlight:
    """One request."""

    wire_id: str
    reply: EmbeddingReply
    is_extended: bool
    """The request is one of ours, not Paddler's: its results may be too."""
    times: RequestTimes
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    isolated: bool = False
    """An engine crash may be due to it."""
    waits_for_model: bool = False
    is_disconnected: bool = False
    is_over: bool = False
    """Its ending was sent."""
    engine: EngineProcess | None = None
    """The engine that computes it; None before and after."""
    portions: dict[int, Portion] = attrs.field(factory=dict)
    """The documents that the engine has of it, by key."""
    arrived: list[Embedded] = attrs.field(factory=list)
    news: trio.Event = attrs.field(factory=trio.Event)
    lost: EngineLostError | None = None
    num_tokens: int = 0
    num_results: int = 0
    problems: list[str] = attrs.field(factory=list)

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"{len(self.portions)} portions on the engine"
        return f"<EmbeddingInFlight {self.wire_id}: {state}, {self.num_results} results>"

    async def next_embedded(self) -> list[Embedded]:
        """Return what the engine sent since the last time; waits for some."""
        while not self.arrived:
            if self.lost is not None:
                raise self.lost
            self.news = trio.Event()
            await self.news.wait()
        arrived, self.arrived = self.arrived, []
        return arrived

    def ending(self) -> RawEmbeddingResult:
        """Return the ending result, from the results so far."""
        if self.problems:
            more = len(self.problems) - _LISTED_PROBLEMS
            listed = "; ".join(self.problems[:_LISTED_PROBLEMS])
            return {"Error": listed if more <= 0 else f"{listed}; and {more} more like this"}
        return "Done" if self.num_results else "NoEmbeddingsProduced"

    def answer(self, ending: RawEmbeddingResult) -> None:
        """End it at once, without other results."""
        self.reply.respond(self.wire_id, {"Embedding": ending})

    def return_unfinished(self, reason: str, *, suspects: int | None = None) -> None:
        """Hand it back for another agent to take; to a Paddler balancer, fail it."""
        if self.is_over or self.is_disconnected:
            return
        self.is_over = True
        self.times.ending = "handed back"
        if self.reply.speaks_trio:
            self.reply.hand_back(self.wire_id, reason, suspects=suspects)
        else:
            self.answer({"Error": reason})
