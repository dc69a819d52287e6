"""The spans of one request of a client, from what was recorded of it.

    POST /v1/chat/completions         SERVER: the whole request, with the attributes of GenAI
    ├─ queue                          INTERNAL: each stay in the queue
    └─ placement                      CLIENT: each slot that it had; the agent's spans are below it
       ├─ prefill                     INTERNAL: from the grant to the first token
       └─ decode                      INTERNAL: from there to the end

A request that moved to another agent has a second placement and the event ``continuation``. The id
of a placement's span was sent to its agent long before: it follows from the span of the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paddler_trio.balancer.activity.accounts.request_account import (
    COMPLETED,
    REFUSED,
    STOPPED,
    RequestAccount,
)
from paddler_trio.balancer.activity.request_record import RequestRecord, Stay
from paddler_trio.telemetry.span_data import SpanData, SpanEvent, filled

PROVIDER: Final = "paddler-trio"
_CHATS: Final = ("chat", "messages", "responses", "conversation")


def spans_of(account: RequestAccount) -> list[SpanData]:
    """Return all of a complete account, the whole request first."""
    return [_whole(account), *(s for record in account.records for s in _of(account, record))]


def _whole(account: RequestAccount) -> SpanData:
    assert account.ended_s is not None
    outcome, status = account.outcome, account.status
    is_error = outcome not in (COMPLETED, STOPPED) and (status is None or status >= 500)
    kind = account.records[0].kind if account.records else None
    first_s = account.first_s
    attributes = filled(
        http__request__method=account.method,
        http__route=account.route,
        http__response__status_code=status,
        client__address=account.address.rpartition(":")[0].strip("[]") or None,
        gen_ai__operation__name=operation(kind, account.route),
        gen_ai__provider__name=None if kind is None else PROVIDER,
        gen_ai__request__model=account.deployment,
        gen_ai__response__id=account.request if kind is not None else None,
        gen_ai__usage__input_tokens=account.prompt_tokens,
        gen_ai__usage__cache_read__input_tokens=account.cached_tokens,
        gen_ai__usage__output_tokens=account.generated_tokens,
        gen_ai__response__time_to_first_chunk=None
        if first_s is None
        else round(first_s - account.arrived_s, 6),
        paddler__request__id=account.request,
        paddler__request__outcome=outcome,
        paddler__client=account.client or None,
        paddler__continuations=account.continuations or None,
        error__type=None if not is_error else str(status or outcome),
    )
    method, route = account.method or "WEBSOCKET", account.route or "(no route)"
    return SpanData(
        f"{method} {route}",
        account.trace,
        account.trace.span_id,
        account.trace.parent_id,
        account.arrived_s,
        account.ended_s,
        kind="server",
        is_entry=True,
        attributes=attributes,
        events=tuple(_continuations(account)),
        error=outcome if is_error else None,
    )


def operation(kind: str | None, route: str | None) -> str | None:
    """``gen_ai.operation.name``; None for a request that asked no model."""
    if kind is None:
        return None
    if kind == "generation":
        is_chat = any(word in (route or "") for word in _CHATS)
        return "chat" if is_chat else "text_completion"
    return "embeddings" if kind == "embedding" else kind


def _continuations(account: RequestAccount) -> Iterator[SpanEvent]:
    for record in account.records:
        for placement, following in zip(record.placements, record.placements[1:], strict=False):
            yield SpanEvent(
                "continuation",
                placement.ended_s or following.at_s,
                filled(
                    paddler__agent__name=placement.agent,
                    paddler__placement__ending=_kind_of(placement.ending),
                    paddler__placement__next_agent=following.agent,
                ),
            )


def _of(account: RequestAccount, record: RequestRecord) -> Iterator[SpanData]:
    names = filled(paddler__request__id=record.id, paddler__deployment=record.deployment)
    end_s = record.ended_s if record.ended_s is not None else account.arrived_s
    for number, stay in enumerate(record.stays, start=1):
        yield _queue(account, record, number, stay, end_s)
    for number, placement in enumerate(record.placements, start=1):
        trace = account.trace
        span_id = trace.span_below(f"{record.key}.{number}")  # as in the frame to the agent
        ended_s = placement.ended_s or end_s
        ending, prompt = _kind_of(placement.ending), placement.prompt
        events = [("prepared", placement.prepared_s), ("first token", placement.first_s)]
        yield SpanData(
            "placement",
            trace,
            span_id,
            trace.span_id,
            placement.at_s,
            ended_s,
            kind="client",
            attributes=names
            | filled(
                paddler__agent__name=placement.agent,
                paddler__placement__number=number,
                paddler__placement__slot=placement.lane,
                paddler__placement__reason=placement.why or None,
                paddler__placement__ending=ending,
                paddler__placement__preemptions=placement.preemptions or None,
                paddler__prompt__tokens=placement.prompt_tokens,
                paddler__prompt__cached_tokens=placement.cached_tokens,
                paddler__prompt__template_ms=None if prompt is None else prompt.template_ms,
                paddler__prompt__wait_ms=None if prompt is None else prompt.wait_ms,
                paddler__prompt__prefill_ms=None if prompt is None else prompt.prefill_ms,
                error__type=ending if ending in ("lost", "handed back", "failed") else None,
            ),
            events=tuple(SpanEvent(name, at_s) for name, at_s in events if at_s is not None),
            error=ending if ending in ("lost", "handed back", "failed") else None,
        )
        if placement.first_s is not None and record.kind == "generation":
            first_s = placement.first_s
            for name, since_s, until_s in (
                ("prefill", placement.at_s, first_s),
                ("decode", first_s, ended_s),
            ):
                below = trace.span_below(f"{record.key}.{number}.{name}")
                yield SpanData(name, trace, below, span_id, since_s, until_s, attributes=names)


def _queue(
    account: RequestAccount, record: RequestRecord, number: int, stay: Stay, end_s: float
) -> SpanData:
    positions = stay.positions.all()
    return SpanData(
        "queue",
        account.trace,
        account.trace.span_below(f"{record.key}.queue.{number}"),
        account.trace.span_id,
        stay.since_s,
        end_s if stay.until_s is None else stay.until_s,
        attributes=filled(
            paddler__request__id=record.id,
            paddler__deployment=record.deployment,
            paddler__queue__position=positions[0][1] if positions else None,
            paddler__queue__obstacle=stay.obstacle or None,
        ),
        error=REFUSED
        if not record.placements and record.ending_kind in ("failed", "refused")
        else None,
    )


def _kind_of(ending: str | None) -> str | None:
    """Without the reason, which an agent may have written."""
    return None if ending is None else ending.partition(":")[0]
