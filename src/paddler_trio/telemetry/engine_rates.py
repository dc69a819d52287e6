"""Compute how fast an agent's engine works, from what it counted over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

WINDOW_S: Final = 5.0
SAMPLE_S: Final = 0.5
"""A newer sample is none."""

Counts: TypeAlias = tuple[float, float, float]
"""Tokens of prompts and texts that were computed, that were generated, that the cache had."""
_MOST: Final = 2**53
"""A larger count is no engine's."""


@attrs.define(eq=False)
class EngineRates:
    """The counts of one engine, at the moments of the window."""

    _samples: deque[tuple[float, Counts]] = attrs.field(factory=deque, init=False)

    def sample(self, now_s: float, engine: Mapping[str, object] | None) -> None:
        """Note what the newest report of the agent says, as it stands there."""
        samples = self._samples
        if samples and now_s - samples[-1][0] < SAMPLE_S:
            return
        counts = _counts(engine)
        if samples and any(new < old for new, old in zip(counts, samples[-1][1], strict=True)):
            samples.clear()  # another engine
        samples.append((now_s, counts))
        while len(samples) > 2 and now_s - samples[1][0] >= WINDOW_S:
            samples.popleft()

    def view(self) -> Mapping[str, float | None] | None:
        """Return the rates as plain JSON; None before there are any."""
        if len(self._samples) < 2:
            return None
        (began_s, before), (ended_s, after) = self._samples[0], self._samples[-1]
        prompt, generated, cached = (new - old for new, old in zip(after, before, strict=True))
        length_s = ended_s - began_s
        return {
            "prompt_tokens_per_s": round(prompt / length_s, 1),
            "generated_tokens_per_s": round(generated / length_s, 1),
            "cached_ratio": round(cached / (prompt + cached), 3) if prompt + cached > 0 else None,
        }


def _counts(engine: Mapping[str, object] | None) -> Counts:
    if engine is None:
        return (0.0, 0.0, 0.0)
    return (
        _number(engine.get("prompt_tokens")) + _number(engine.get("embedding_tokens")),
        _number(engine.get("drawn_tokens")),
        _number(engine.get("cached_tokens")),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < _MOST else 0.0
