"""One request of a client, and the requests to agents that it became: none, one or many.

It is complete when its answer has ended and no agent works on it any more. What is kept of it is
bounded, however many requests it became: sums, and the first records.
"""

from __future__ import annotations

import time
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.measures.endings import request_outcome
from paddler_trio.balancer.activity.request_record import RequestRecord
from paddler_trio.telemetry.label_values import REQUEST_OUTCOMES
from paddler_trio.telemetry.line_writer import MAX_AGENTS, AccessEntry
from paddler_trio.wire.trace_parent import TraceContext

MAX_RECORDS: Final = 16
"""Of one account, for its spans."""
COMPLETED, STOPPED, REFUSED, FAILED = "completed", "stopped", "refused", "failed"
_SEVERITY: Final = {outcome: place for place, outcome in enumerate(REQUEST_OUTCOMES)}
"""The outcome of several requests is the worst of them."""


@attrs.define(eq=False, repr=False)
class RequestAccount:
    """See the module docstring.

    Args:
      request: its id in logs.
      method: None for a request on a WebSocket.
      is_alone: it is one request to an agent, without a response of its own that ends it.
      route: the template that its path matched; None for none.
      address: of the client's connection.
    """

    trace: TraceContext
    request: str
    path: str
    method: str | None = None
    route: str | None = None
    address: str = ""
    client: str = ""
    is_alone: bool = False
    arrived_s: float = attrs.field(factory=trio.current_time)
    status: int | None = None
    """Of HTTP, as it was sent."""
    ended_s: float | None = None
    """When its answer ended."""
    records: list[RequestRecord] = attrs.field(factory=list, init=False)
    num_requests: int = attrs.field(default=0, init=False)
    num_open: int = attrs.field(default=0, init=False)
    """Requests to agents that have not ended."""
    agents: list[str] = attrs.field(factory=list, init=False)
    deployment: str | None = attrs.field(default=None, init=False)
    queue_s: float = attrs.field(default=0.0, init=False)
    first_s: float | None = attrs.field(default=None, init=False)
    prompt_tokens: int | None = attrs.field(default=None, init=False)
    cached_tokens: int | None = attrs.field(default=None, init=False)
    generated_tokens: int | None = attrs.field(default=None, init=False)
    continuations: int = attrs.field(default=0, init=False)
    _outcome: str | None = attrs.field(default=None, init=False)
    """The worst of the requests to agents."""

    def __repr__(self) -> str:
        return f"<RequestAccount {self.request!r} {self.outcome}, {self.num_open} open>"

    @property
    def is_complete(self) -> bool:
        return self.ended_s is not None and not self.num_open

    @property
    def outcome(self) -> str:
        """See :class:`~paddler_trio.telemetry.line_writer.AccessEntry`."""
        if self._outcome not in (None, COMPLETED):
            return str(self._outcome)
        if self.status is None:
            return self._outcome or STOPPED
        if self.status < 400:
            return COMPLETED
        return REFUSED if self.status < 500 or self.status in (501, 503) else FAILED

    def began(self, record: RequestRecord) -> None:
        """It became this request to an agent, too."""
        self.num_requests += 1
        self.num_open += 1
        if len(self.records) < MAX_RECORDS:
            self.records.append(record)

    def ended(self, record: RequestRecord) -> None:
        """This one of its requests to agents holds nothing any more."""
        self.num_open -= 1
        self.deployment = record.deployment
        self.client = self.client or record.client
        waited_s = [
            stay.until_s - stay.since_s for stay in record.stays if stay.until_s is not None
        ]
        self.queue_s = max(self.queue_s, sum(waited_s))
        if record.kind == "generation":
            self.generated_tokens = (self.generated_tokens or 0) + record.tokens
            if record.first_s is not None:
                self.first_s = min(self.first_s or record.first_s, record.first_s)
        for placement in record.placements:
            if placement.agent not in self.agents and len(self.agents) < MAX_AGENTS:
                self.agents.append(placement.agent)
        counted = next((p for p in record.placements if p.prompt_tokens is not None), None)
        if counted is not None:  # later placements compute it again
            self.prompt_tokens = (self.prompt_tokens or 0) + (counted.prompt_tokens or 0)
            self.cached_tokens = (self.cached_tokens or 0) + (counted.cached_tokens or 0)
        self.continuations += record.continuations
        refusal = record.refusal
        outcome = request_outcome(record.ending, None if refusal is None else refusal[0])
        if self._outcome is None or _SEVERITY[outcome] > _SEVERITY[self._outcome]:
            self._outcome = outcome

    def entry(self) -> AccessEntry:
        """Return its line in the access log, once it is complete."""
        assert self.ended_s is not None
        has_work = self.num_requests > 0
        return AccessEntry(
            time=time.time() - trio.current_time() + self.ended_s,
            address=self.address,
            client=self.client or None,
            method=self.method,
            route=self.route,
            path=None if self.route is not None else self.path,
            status=self.status,
            outcome=self.outcome,
            queue_s=self.queue_s if has_work else None,
            ttft_s=None if self.first_s is None else self.first_s - self.arrived_s,
            duration_s=self.ended_s - self.arrived_s,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            deployment=self.deployment,
            agents=tuple(self.agents),
            continuations=self.continuations,
            request=self.request,
            trace=self.trace.trace_id,
        )


def status_of(record: RequestRecord) -> int | None:
    """Return what HTTP would call the end of a request that had no response of its own."""
    facts = record.ending_facts
    if facts is None or facts.ended == "stopped":
        return None
    return 200 if facts.code is None else facts.code
