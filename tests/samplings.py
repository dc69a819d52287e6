"""Ways to draw that tests share, as the engine is told them."""

from __future__ import annotations

from paddler_trio.wire.engine.sampler_stages import Sampling

GREEDY = Sampling(
    temperature=0.0,
    top_k=1,
    top_p=1.0,
    min_p=0.0,
    penalty_last_n=0,
    penalty_repeat=1.0,
    penalty_frequency=0.0,
    penalty_presence=0.0,
    seed=1,
)
