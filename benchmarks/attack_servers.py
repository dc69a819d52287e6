"""Hostile servers behind agents: what they answer, to clients that read it and to some that do not.

The server is told by the request what to do (``attack_server.py``), so honest answers come from it
meanwhile, through the same agents.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from attack_call import Call, request
from attack_proxied import CHAT, MOST_IN_SLOTS, TEXT, asking, looks, proxied, stay_s
from attack_value import Attack, ask, whole

BROKEN = (
    "first-byte",
    "garbage",
    "long",
    "named-fields",
    "old",
    "overflow",
    "reset",
    "short",
    "switch",
    "two-framings",
    "two-lengths",
)
"""They end, whoever reads them."""
COSTLY_HEADS = ("many-fields", "one-field", "informational", "extensions", "trailers")
ENDLESS = ("endless", "sized", "silence")


def _asked(
    acts: Sequence[str], number: int, size: int, *, in_slots: bool, leaves_s: float | None = None
) -> list[Call]:
    """So many requests, whose answers are of these kinds in turn."""
    path = TEXT if in_slots else "/page"
    body = ask(TEXT) if in_slots else None
    method = "POST" if in_slots else "GET"
    return [
        Call(
            port="proxied",
            steps=[request(asking(path, acts[place % len(acts)], size), body, method=method)],
            may_be_cut=True,
            may_fail=True,
            leave_after_s=leaves_s,
        )
        for place in range(number)
    ]


def broken_answers(dice: random.Random, scale: float) -> Attack:
    """Answers that break HTTP's rules or break off, several kinds at once, on many connections."""
    number = whole(dice, 10, 100, scale)
    acts = dice.sample(BROKEN, dice.choice([1, 3]))
    size = whole(dice, 1, 100_000, scale)
    in_slots = dice.random() < 0.5
    number = min(number, MOST_IN_SLOTS) if in_slots else number

    def calls() -> list[Call]:
        return _asked(acts, number, size, in_slots=in_slots, leaves_s=5.0)

    def honest() -> list[Call]:
        return looks(number, asking("/page", "sized", size))

    slots = ", in slots" if in_slots else ""
    return proxied(f"{number} servers, {'/'.join(acts)}, {size} B{slots}", calls, honest)


def costly_heads(dice: random.Random, scale: float) -> Attack:
    """Heads, trailers, extensions and early answers without an end, or nearly."""
    number = whole(dice, 4, 40, scale)
    act = dice.choice(COSTLY_HEADS)
    size = whole(dice, 1000, 10_000_000, scale)
    size = size // 50 if act == "informational" else size

    def calls() -> list[Call]:
        return _asked([act], number, size, in_slots=False, leaves_s=5.0)

    def honest() -> list[Call]:
        return looks(number, asking("/page", "sized", min(size, 10_000_000)))

    return proxied(f"{number} servers, {act}, {size}", calls, honest)


def small_pieces(dice: random.Random, scale: float) -> Attack:
    """Answers one byte at a time, or in chunks of one byte."""
    number = whole(dice, 2, 16, scale)
    act = dice.choice(["letters", "small", "small"])
    size = whole(dice, 1000, 100_000 if act == "small" else 10_000, scale)
    in_slots = dice.random() < 0.5

    def calls() -> list[Call]:
        return _asked([act], number, size, in_slots=in_slots, leaves_s=10.0)

    def honest() -> list[Call]:
        text = request(asking(CHAT, "events", size // 20), ask(CHAT))
        return [Call(port="proxied", steps=[text])] * number

    return proxied(f"{number} servers, {act}, {size} B", calls, honest)


def endless_answers(dice: random.Random, scale: float) -> Attack:
    """Answers that never end, or of a gigabyte, to clients that read all, little, or nothing."""
    number = whole(dice, 2, 24, scale)
    act = dice.choice(ENDLESS)
    chunk_bytes = dice.choice([1, 20, 1000, 1 << 16])
    size = chunk_bytes if act == "endless" else 1 << 30
    pause_s = dice.choice([0.0, 0.01, float("inf")])
    in_slots = dice.random() < 0.5

    def calls() -> list[Call]:
        path, body = (TEXT, ask(TEXT)) if in_slots else ("/page", None)
        endless = Call(
            port="proxied",
            steps=[request(asking(path, act, size), body)],
            leave_after_s=2 * stay_s(scale),
            read_pause_s=pause_s,
            may_be_cut=True,
            may_fail=True,
        )
        return [endless] * number

    def honest() -> list[Call]:
        """As long a stream, as fast as it is taken."""
        text = request(asking("/page", "events", 10**9), method="GET")
        return [Call(port="proxied", steps=[text], leave_after_s=2 * stay_s(scale))] * number

    name = f"{number} servers, {act} of {size} B, read every {pause_s:g} s"
    return proxied(name, calls, honest)
