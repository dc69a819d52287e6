"""A request's record as sentences: why it waited, why it was where it was, how it ended."""

from __future__ import annotations

from collections.abc import Iterator

from paddler_trio.balancer.activity.request_record import PlacementRecord, RequestRecord, Stay
from paddler_trio.scheduler.truth.request_truth import truth_of_ending


def explanation(record: RequestRecord, now_s: float) -> list[str]:
    """Explain the request in the order in which it happened."""
    return list(_sentences(record, now_s))


def _sentences(record: RequestRecord, now_s: float) -> Iterator[str]:
    unnamed = f"a client without a key ({record.source})" if record.source else "an unknown client"
    who = f"client {record.client!r}" if record.client else unnamed
    path = "" if record.route is None else f" by {record.route}"
    under = f", under its preset {record.preset!r}" if record.preset else ""
    yield f"It came from {who}{path}, for the deployment {record.deployment!r}{under}."
    for number, stay in enumerate(record.stays):
        yield _wait(stay, now_s, again=number > 0)
        if number < len(record.placements):
            yield from _placement(record.placements[number], now_s)
    if record.first_s is not None:
        yield from _answer(record, record.first_s, now_s)
    yield _ending(record, now_s)


def _wait(stay: Stay, now_s: float, *, again: bool) -> str:
    until_s = now_s if stay.until_s is None else stay.until_s
    verb = "It has waited" if stay.until_s is None else "It waited"
    queue = " again, at its old place," if again else ""
    most = max((ahead for _, ahead in stay.positions.all()), default=None)
    behind = "" if not most else f", behind up to {most} other{'s' if most > 1 else ''}"
    if until_s - stay.since_s < 0.001:
        return "It needed no wait: a slot was free." if not again else "A slot was free elsewhere."
    because = f": {stay.obstacle.rstrip('.')}" if stay.obstacle else ""
    return f"{verb}{queue} {_span(until_s - stay.since_s)} for a slot{behind}{because}."


def _placement(placement: PlacementRecord, now_s: float) -> Iterator[str]:
    why = placement.why.removeprefix(f"{placement.agent}: ") or "no reason was kept"
    yield f"It got a slot of {placement.agent}: {why}."
    prompt = placement.prompt
    if prompt is not None:
        yield (
            f"There its prompt was tokens after {_span(prompt.template_ms / 1000)}, waited "
            f"{_span(prompt.wait_ms / 1000)} for the engine, and was computed in "
            f"{_span(prompt.prefill_ms / 1000)}."
        )
    elif placement.prepared_s is not None:
        yield f"Its prompt was tokens {_span(placement.prepared_s - placement.at_s)} later."
    if placement.prompt_tokens is not None:
        yield (
            f"The prompt has {placement.prompt_tokens} tokens, of which "
            f"{placement.cached_tokens or 0} were in the cache."
        )
    if placement.preemptions:
        times = "once" if placement.preemptions == 1 else f"{placement.preemptions} times"
        moments = [_span(each - placement.at_s) for each in placement.preempted_s]
        when = f" after {', '.join(moments)}" if moments else ""
        yield (
            f"The engine preempted it {times}{when}, for older requests that needed its cells, and "
            "went on with it later."
        )
    if placement.first_s is None and placement.ended_s is None:
        yield f"{_span(now_s - placement.at_s)} later there is no result yet."
    if placement.ending is not None and placement.ended_s is not None:
        after = _span(placement.ended_s - placement.at_s)
        how, _, reason = placement.ending.partition(": ")
        if how == "lost":
            yield f"It lost this slot after {after}: {reason.rstrip('.')}."
        elif how == "handed back":
            yield f"The agent handed it back after {after}: {reason.rstrip('.')}."


def _answer(record: RequestRecord, first_s: float, now_s: float) -> Iterator[str]:
    yield f"The first result came {_span(first_s - record.arrived_s)} after it arrived."
    took_s = (now_s if record.ended_s is None else record.ended_s) - first_s
    if record.kind == "generation" and took_s > 0 and record.tokens > 1:
        yield f"{record.tokens} tokens came at {(record.tokens - 1) / took_s:.1f} tokens/s."
    if record.continuations:
        yield (
            f"It was moved to another slot {record.continuations} "
            f"time{'s' if record.continuations > 1 else ''}; what was produced was kept."
        )


def _ending(record: RequestRecord, now_s: float) -> str:
    facts = record.ending_facts
    if facts is None:
        return "It goes on."
    after = _span((now_s if record.ended_s is None else record.ended_s) - record.arrived_s)
    truth = truth_of_ending(facts)
    told = f"; {truth.follows}" if truth.follows else ""
    return f"After {after} {truth.sentence}{told}."


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
