"""All kinds of attacks by name, and the one that is tried at any place of a run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from attack_connections import (
    abandoned,
    before_keys,
    connections,
    crowds,
    half_closed,
    heavy_streams,
    kept,
    pipelined,
    slow_bodies,
    slow_heads,
    small_chunks,
    unfinished,
)
from attack_generation import (
    biases,
    bombs,
    constraints,
    extreme_numbers,
    growing,
    inflated,
    penalties,
    preparation,
    products,
    stops,
    templates,
    tokens,
    tools,
)
from attack_grammars import characters, different
from attack_links import client_floods, client_frames, liars
from attack_operators import hosts, origins, paths, reach, states
from attack_pictures import addresses, drawings, pictures
from attack_proxied import (
    abandoned_requests,
    full_heads,
    half_closing,
    held_beside,
    held_websockets,
    hop_by_hop,
    in_one_write,
    large_bodies,
    odd_paths,
    sleepers,
    slow_readers,
    smuggled,
    structures,
    unfinished_bodies,
)
from attack_servers import broken_answers, costly_heads, endless_answers, small_pieces
from attack_value import Attack, Generator

KINDS: Mapping[str, Sequence[Generator]] = {
    "sampling": (penalties, penalties, extreme_numbers, stops, biases),
    "products": (products,),
    "drawings": (drawings,),
    "inflated": (inflated, inflated, bombs),
    "sockets": (client_frames, client_frames, client_floods),
    "constraints": (constraints, constraints, tools),
    "grammars": (characters, characters, different),
    "growing": (growing,),
    "preparation": (preparation, preparation, templates),
    "paths": (paths,),
    "unfinished": (unfinished,),
    "hosts": (hosts,),
    "origins": (origins,),
    "reach": (reach,),
    "pictures": (pictures, pictures, addresses),
    "tokens": (tokens,),
    "agents": (liars,),
    "states": (states,),
    "before-keys": (before_keys,),
    "kept": (kept,),
    "slow": (slow_heads, slow_bodies, small_chunks, half_closed, connections),
    "crowds": (crowds, sleepers),
    "abandoned": (abandoned, heavy_streams, pipelined),
    "proxied": (
        smuggled,
        broken_answers,
        full_heads,
        endless_answers,
        large_bodies,
        held_beside,
        costly_heads,
        held_websockets,
        structures,
        small_pieces,
        slow_readers,
        odd_paths,
        broken_answers,
        hop_by_hop,
        unfinished_bodies,
        abandoned_requests,
        half_closing,
        in_one_write,
    ),
}
"""Each name is what ``--only`` takes; a kind's generators take turns."""


def attack_at(kind: str, number: int, seed: int, scale: float = 1.0) -> Attack:
    """The attack of this kind in round ``number``: the same for the same arguments, always.

    The first rounds are the attacks that did harm once, where ``scale`` is 1.
    """
    known: Sequence[Generator] = ()
    if scale == 1.0:
        from attack_known import KNOWN  # 200 MB of bodies and pictures

        known = KNOWN.get(kind, ())
    dice = random.Random(f"{seed} {kind} {number}")
    if number < len(known):
        return known[number](dice, scale)
    generators = KINDS[kind]
    return generators[number % len(generators)](dice, scale)
