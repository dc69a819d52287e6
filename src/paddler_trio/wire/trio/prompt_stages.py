"""The stages of a prompt that an agent computed: in an entry of a ``Step``, once, with the first
results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

MAX_TOKENS: Final = 2**31 - 1
MAX_MS: Final = 86_400_000


@attrs.frozen(kw_only=True)
class PromptStages:
    """Counts are tokens, times milliseconds.

    Args:
      tokens: of the prompt, cached ones included.
      cached: those that were not computed.
      template_ms: from the arrival of the request until its prompt was tokens.
      wait_ms: until the engine began with it.
      prefill_ms: until the first token was sampled.
    """

    tokens: int
    cached: int
    template_ms: int
    wait_ms: int
    prefill_ms: int

    def fields(self) -> dict[str, int]:
        """Return the stages as they stand in a frame."""
        return attrs.asdict(self)

    @classmethod
    def read(cls, value: object) -> PromptStages | None:
        """Return None if ``value`` holds no stages; each number is held within its limits: it is
        only shown."""
        if not isinstance(value, Mapping):
            return None
        numbers: dict[str, int] = {}
        for name in _NAMES:
            number = value.get(name)
            if type(number) is not int:
                return None
            most = MAX_MS if name.endswith("_ms") else MAX_TOKENS
            numbers[name] = max(0, min(most, number))
        return cls(**numbers)


def bounded_count(value: object) -> int:
    """Return a count that an agent reported, within the limits of what is shown; 0 for anything
    else."""
    return max(0, min(MAX_TOKENS, value)) if type(value) is int else 0


_NAMES: Final = tuple(field.name for field in attrs.fields(PromptStages))
