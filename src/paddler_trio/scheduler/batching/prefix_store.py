"""Which prefixes are kept in host memory after their cells were needed for something else.

The engine holds the bytes; this decides what is kept within a budget and what goes, and finds the
stored prefix that serves a prompt best. Storing costs a copy: where nothing that was stored is ever
asked for again, less and less is stored, until something is.
"""

from __future__ import annotations

import attrs

from paddler_trio.scheduler.batching.image_tokens import whole_images
from paddler_trio.scheduler.batching.prefixes import MemoryRules, common_prefix

UNUSED_BEFORE_RARER = 16
"""So many stored in a row without one being asked for again halve what is stored."""
RAREST = 16
"""At least one of so many is stored."""


@attrs.define
class _Stored:
    number: int
    tokens: list[int]
    salt: str
    first_position: int
    num_bytes: int
    last_used: int


@attrs.frozen
class Found:
    """The stored prefix ``number`` has ``length`` usable tokens; ``size`` are stored."""

    number: int
    length: int
    size: int


@attrs.define
class PrefixStore:
    """Args: ``budget_bytes`` of all stored prefixes together, 0 to store none."""

    budget_bytes: int
    rules: MemoryRules = attrs.field(factory=MemoryRules)
    _stored: dict[int, _Stored] = attrs.field(factory=dict, init=False)
    _numbers: int = attrs.field(default=0, init=False)
    _clock: int = attrs.field(default=0, init=False)
    _unused: int = attrs.field(default=0, init=False)
    """Prefixes stored since one served."""
    _skipped: int = attrs.field(default=0, init=False)

    @property
    def num_bytes(self) -> int:
        return sum(stored.num_bytes for stored in self._stored.values())

    @property
    def num_tokens(self) -> int:
        return sum(len(stored.tokens) for stored in self._stored.values())

    def find(self, tokens: list[int], salt: str | None, *, better_than: int) -> Found | None:
        """The stored prefix with most of ``tokens``, if it beats ``better_than`` tokens."""
        best, found = better_than, None
        if salt is None:
            return None
        for stored in self._stored.values():
            if stored.salt != salt or len(stored.tokens) <= best:
                continue
            limit = min(len(stored.tokens), len(tokens) - 1)
            shared = common_prefix(tokens, stored.tokens, limit)
            if self.rules.whole_images:
                shared = whole_images(tokens, shared)
            shared = self.rules.usable(
                shared,
                length=len(stored.tokens),
                first_position=stored.first_position,
            )
            if shared > best:
                best, found = shared, stored
        if found is None:
            return None
        self._clock += 1
        self._unused = 0
        found.last_used = self._clock
        return Found(found.number, best, len(found.tokens))

    def wants(self, tokens: list[int], salt: str | None, num_bytes: int) -> bool:
        """Whether this prefix is to be stored: it fits, none stored serves as well, and stored
        ones are of use, or it is one of the few that try whether they are."""
        if salt is None or num_bytes > self.budget_bytes:
            return False
        end = len(tokens) if self.rules.is_cut_anywhere else None
        if any(
            stored.salt == salt and stored.tokens[:end] == tokens
            for stored in self._stored.values()
        ):
            return False
        self._skipped += 1
        rarity = min(RAREST, 2 ** (self._unused // UNUSED_BEFORE_RARER))
        if self._skipped < rarity:
            return False
        self._skipped = 0
        return True

    def add(
        self, tokens: list[int], salt: str, num_bytes: int, *, first_position: int = 0
    ) -> tuple[int, list[int]]:
        """Store it.

        Returns:
          Its number, and the numbers of those that had to go: such as it contains, then the ones
          not used for longest.
        """
        gone = [
            stored.number
            for stored in self._stored.values()
            if stored.salt == salt
            and self.rules.is_cut_anywhere
            and tokens[: len(stored.tokens)] == stored.tokens
        ]
        for number in gone:
            del self._stored[number]
        while self.num_bytes + num_bytes > self.budget_bytes:
            oldest = min(self._stored.values(), key=lambda stored: stored.last_used)
            del self._stored[oldest.number]
            gone.append(oldest.number)
        self._numbers += 1
        self._clock += 1
        self._unused += 1
        self._stored[self._numbers] = _Stored(
            self._numbers, tokens, salt, first_position, num_bytes, self._clock
        )
        return self._numbers, gone
