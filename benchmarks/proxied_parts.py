"""What is measured of forwarding, part by part; one call is one round.

Each returns its figures by name, and raises ``AnswerError`` where a proxy or a server did not do
what it must: a figure of a round that went wrong would say nothing.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import trio
from answers import AnswerError
from child_processes import cpu_seconds
from figures import percentile
from proxied_fleet import SERVERS, SLOTS, Fleet
from proxied_requests import Address, KeptConnection, Reading, Reply, exchange, read, request_bytes
from scenarios import WORDS

LIMIT_S = 120.0
"""Of one request, its waiting included."""
STREAM_TOKENS = 64
KILL_TOKENS = 400
POLL_S = 0.01

Figures = Mapping[str, float]


@attrs.frozen
class Sizes:
    """How much a round is: requests, by part."""

    tokenize: int = 300
    completion: int = 100
    streams_a_client: int = 4
    crowd: int = 64
    waiting: int = 16
    mixed: int = 64
    mixed_clients: int = 16
    backlog: int = 16
    neighbours: int = 4
    turns: int = 5


def latency(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """The same small request to a server, through two relays that do nothing else, and through the
    balancer, in turns."""
    figures: dict[str, float] = {}
    completion = {"prompt": "river lamp", "n_predict": 1, "temperature": 0.0, "cache_prompt": False}
    asked = {
        "tokenize": (sizes.tokenize, request_bytes("/tokenize", {"content": "a b"}, is_kept=True)),
        "completion": (sizes.completion, request_bytes("/completion", completion, is_kept=True)),
    }
    direct, *passed_on = sides = {
        "direct": KeptConnection(fleet.servers[0].address),
        "through relays": KeptConnection(fleet.relays),
        "through": KeptConnection(fleet.front),
    }
    try:
        for name, (count, request) in asked.items():
            for each in sides.values():
                each.prepare()
                each.ask(request)
            before = cpu_seconds(fleet.pids)
            took_s: dict[str, list[float]] = {side: [] for side in sides}
            for turn in range(count):
                order = list(sides)
                for side in order if (turn + number) % 2 else reversed(order):
                    sides[side].prepare()
                    took_s[side].append(sides[side].ask(request))
            used_us = _cpu_us(before, cpu_seconds(fleet.pids))
            columns = dict(took_s)
            for side in passed_on:
                added = side.replace("through", "added", 1)
                columns[added] = [b - a for a, b in zip(took_s[direct], took_s[side], strict=True)]
            for column, values in columns.items():
                for percent in (50, 99):
                    value = 1e3 * percentile(values, percent)
                    figures[f"{name} {column} p{percent} ms"] = value
            for who, us in used_us.items():
                figures[f"{name} {who} CPU us/request"] = us / count
    finally:
        for each in sides.values():
            each.close()
    return figures


def throughput(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """As many clients as there are slots, each streams one answer after the other."""
    direct = [fleet.servers[client // SLOTS].address for client in range(SERVERS * SLOTS)]
    through = [fleet.front] * len(direct)
    figures: dict[str, float] = {}

    def run(name: str, addresses: Sequence[Address]) -> None:
        before = cpu_seconds(fleet.pids)
        lanes = [
            (
                address,
                [_chat(f"{number} {client} {turn}") for turn in range(sizes.streams_a_client)],
            )
            for client, address in enumerate(addresses)
        ]
        replies = trio.run(_lanes, lanes)
        used_us = _cpu_us(before, cpu_seconds(fleet.pids))
        readings = [_whole(reply) for reply in replies]
        passed_s = max(r.ended_s for r in replies) - min(r.sent_s for r in replies)
        figures[f"{name} tokens/s"] = sum(reading.tokens for reading in readings) / passed_s
        if name == "through":
            events = sum(reading.events for reading in readings)
            for who, us in used_us.items():
                figures[f"{who} CPU us/chunk"] = us / events

    sides = [("direct", direct), ("through", through)]
    for name, addresses in sides if number % 2 else sides[::-1]:
        run(name, addresses)
    figures["through / direct"] = figures["through tokens/s"] / figures["direct tokens/s"]
    return figures


def slots(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """Many streams at once, while each server is asked what it does."""
    seen: list[tuple[int, int]] = []
    requests = [_chat(f"{number} {client}") for client in range(sizes.crowd)]

    async def run() -> list[Reply]:
        async with trio.open_nursery() as nursery:
            for server in fleet.servers:
                nursery.start_soon(_watch, server.address, seen)
            replies = await _lanes([(fleet.front, [request]) for request in requests])
            nursery.cancel_scope.cancel()
        return replies

    replies = trio.run(run)
    agents = [_whole(reply).agent for reply in replies]
    most_busy, most_deferred = (max(column) for column in zip(*seen, strict=True))
    if most_busy > SLOTS or most_deferred:
        raise AnswerError(
            f"a server of {SLOTS} slots had {most_busy} busy, and {most_deferred} requests deferred"
        )
    return {
        "streams that were answered whole": len(agents),
        "most slots busy of a server": most_busy,
        "most requests deferred by a server": most_deferred,
        "looks at the servers": len(seen),
        "streams of the busier server": max(agents.count(agent) for agent in set(agents)),
        "seconds": max(r.ended_s for r in replies) - min(r.sent_s for r in replies),
    }


def kill(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """One server ends with SIGKILL while all slots stream and more requests wait."""
    streaming = SERVERS * SLOTS
    requests = [
        _chat(f"{number} {client}", tokens=KILL_TOKENS)
        for client in range(streaming + sizes.waiting)
    ]
    killed_s: list[float] = []
    num_begun = 0

    def begun() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == streaming and not killed_s:
            killed_s.append(time.perf_counter())
            fleet.servers[number % SERVERS].kill()

    replies = trio.run(partial(_lanes, [(fleet.front, [each]) for each in requests], begun))
    readings = [read(reply) for reply in replies]
    unbegun = [each for each in readings if each.status != 200]
    whole = [each.is_whole and each.error is None for each in readings]
    broken = [
        each
        for each, is_whole in zip(readings, whole, strict=True)
        if each.status == 200 and not is_whole
    ]
    if unbegun:
        raise AnswerError(
            f"{len(unbegun)} requests failed before the first byte of an answer, the first with "
            f"status {unbegun[0].status}: {unbegun[0].error}"
        )
    if unsaid := [each for each in broken if each.error is None or each.is_whole]:
        raise AnswerError(f"{len(unsaid)} broken streams do not say so: {unsaid[0]}")
    ended_s = [reply.ended_s for reply, is_whole in zip(replies, whole, strict=True) if is_whole]
    fleet.servers[number % SERVERS].start()
    restarted_s = time.perf_counter()
    fleet.wait_whole()
    broken_s = [r.ended_s for r, is_whole in zip(replies, whole, strict=True) if not is_whole]
    return {
        "errors before the first byte": len(unbegun),
        "streams that ended with an error event": len(broken),
        "ms until the last of these was told": 1e3 * (max(broken_s, default=0.0) - killed_s[0]),
        "requests that were answered whole": len(ended_s),
        "seconds until the last of these": max(ended_s) - killed_s[0],
        "seconds until the restarted server is used": time.perf_counter() - restarted_s,
    }


def mixed(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """One long prompt with a long answer in eight, through the balancer and through nginx."""
    assert fleet.nginx is not None, "this part is run with nginx only"
    order = random.Random(number)
    figures: dict[str, float] = {}
    long = set(order.sample(range(sizes.mixed), sizes.mixed // 8))
    sides = [("ours", fleet.front), ("nginx", fleet.nginx)]
    for name, address in sides if number % 2 else sides[::-1]:
        requests = [
            _chat(f"{number} {index}", words=300, tokens=256)
            if index in long
            else _chat(f"{number} {index}", tokens=8)
            for index in range(sizes.mixed)
        ]
        lanes = [(address, requests[i :: sizes.mixed_clients]) for i in range(sizes.mixed_clients)]
        replies = trio.run(_lanes, lanes)
        ttfts_s = [_whole(reply).arrivals_s[0] - reply.sent_s for reply in replies]
        for percent in (50, 99):
            figures[f"{name} TTFT p{percent} ms"] = 1e3 * percentile(ttfts_s, percent)
        figures[f"{name} TTFT mean ms"] = 1e3 * statistics.fmean(ttfts_s)
        figures[f"{name} seconds"] = max(r.ended_s for r in replies) - min(
            r.sent_s for r in replies
        )
    for what in ("TTFT p50 ms", "TTFT p99 ms", "TTFT mean ms", "seconds"):
        figures[f"ours / nginx {what}"] = figures[f"ours {what}"] / figures[f"nginx {what}"]
    return figures


def neighbours(fleet: Fleet, sizes: Sizes, number: int) -> Figures:
    """One client has more long requests than there are slots, all the time; others ask something
    short, one thing after the other. Each shows a key of its own."""
    assert fleet.nginx is not None, "this part is run with nginx only"
    figures: dict[str, float] = {}
    sides = [("ours", fleet.front), ("nginx", fleet.nginx)]
    for name, address in sides if number % 2 else sides[::-1]:
        replies = trio.run(_beside_a_backlog, address, sizes, number)
        ttfts_s = [_whole(reply).arrivals_s[0] - reply.sent_s for reply in replies]
        for percent in (50, 99):
            figures[f"{name} TTFT p{percent} ms"] = 1e3 * percentile(ttfts_s, percent)
        figures[f"{name} TTFT mean ms"] = 1e3 * statistics.fmean(ttfts_s)
        fleet.wait_whole()
    for what in ("TTFT p50 ms", "TTFT p99 ms", "TTFT mean ms"):
        figures[f"ours / nginx {what}"] = figures[f"ours {what}"] / figures[f"nginx {what}"]
    return figures


async def _beside_a_backlog(address: Address, sizes: Sizes, number: int) -> list[Reply]:
    """The replies to those who are not the backlog's client."""
    num_begun, is_full = 0, trio.Event()

    def begun() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == SERVERS * SLOTS:
            is_full.set()

    async def go_on(place: int) -> None:
        for turn in itertools.count():
            seed = f"{number} backlog {place} {turn}"
            request = _chat(seed, words=300, tokens=128, key="backlog")
            await exchange(address, request, limit_s=LIMIT_S, on_begin=begun)

    async with trio.open_nursery() as nursery:
        for place in range(sizes.backlog):
            nursery.start_soon(go_on, place)
        await is_full.wait()
        lanes = [
            (
                address,
                [
                    _chat(f"{number} {client} {turn}", tokens=8, key=f"neighbour-{client}")
                    for turn in range(sizes.turns)
                ],
            )
            for client in range(sizes.neighbours)
        ]
        replies = await _lanes(lanes)
        nursery.cancel_scope.cancel()
    return replies


PARTS: Mapping[str, Callable[[Fleet, Sizes, int], Figures]] = {
    "latency": latency,
    "throughput": throughput,
    "slots": slots,
    "kill": kill,
    "mixed": mixed,
    "neighbours": neighbours,
}


def _chat(
    seed: str, *, words: int = 12, tokens: int = STREAM_TOKENS, key: str | None = None
) -> bytes:
    """A streamed chat completion; no two prompts begin alike."""
    draw = random.Random(seed)
    content = " ".join([seed, *draw.choices(WORDS, k=words)])
    return request_bytes(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        key=key,
    )


async def _lanes(
    lanes: Sequence[tuple[Address, Sequence[bytes]]], on_begin: Callable[[], None] = lambda: None
) -> list[Reply]:
    """Lanes side by side, each sends one request after the other."""
    replies: list[Reply] = []

    async def lane(address: Address, requests: Sequence[bytes]) -> None:
        for request in requests:
            reply = await exchange(address, request, limit_s=LIMIT_S, on_begin=on_begin)
            replies.append(reply)

    async with trio.open_nursery() as nursery:
        for address, requests in lanes:
            nursery.start_soon(lane, address, requests)
    return replies


async def _watch(address: Address, seen: list[tuple[int, int]]) -> None:
    """Note how many slots are busy and how many requests are deferred, until cancelled."""
    while True:
        shown = await exchange(address, request_bytes("/slots", None), limit_s=LIMIT_S)
        metrics = await exchange(address, request_bytes("/metrics", None), limit_s=LIMIT_S)
        slots = json.loads(_text(shown).partition(b"\r\n\r\n")[2])
        busy = sum(slot["is_processing"] for slot in slots)
        deferred = [
            float(line.rpartition(b" ")[2])
            for line in _text(metrics).splitlines()
            if line.startswith(b"llamacpp:requests_deferred ")
        ]
        seen.append((busy, int(deferred[0])))
        await trio.sleep(POLL_S)


def _text(reply: Reply) -> bytes:
    return b"".join(data for _, data in reply.pieces)


def _whole(reply: Reply) -> Reading:
    """AnswerError unless it is one."""
    reading = read(reply)
    if reading.status != 200 or not reading.is_whole or reading.error or not reading.arrivals_s:
        raise AnswerError(
            f"no whole answer: status {reading.status}, {reading.error or reply.broke}, "
            f"{len(reading.arrivals_s)} tokens, the end of it: {_text(reply)[-200:]!r}"
        )
    return reading


def _cpu_us(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Of the balancer, and of all agents together."""
    used = {name: 1e6 * (after[name] - before[name]) for name in after}
    if not used:
        return {}
    balancer = used.pop("balancer")
    return {"balancer": balancer, "agent": sum(used.values())}
