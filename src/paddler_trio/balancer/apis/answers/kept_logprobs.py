"""The log probabilities of an answer that is sent at once, kept until it is written. Pure.

As objects of Python, a token with a hundred alternatives takes 70 KB. Here each number takes twelve
bytes, and the token that it is of is kept once for the whole answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from paddler_trio.wire.json_text import Items

MANY_NUMBERS: Final = 512
"""More log probabilities than these are not written on the event loop."""
VALUES: Final = 4
"""Of a log probability, where it is written: its token, the bytes of that, and its id."""
NUMBER_BYTES: Final = 12
TOKEN_BYTES: Final = 512
"""What a token takes that is new in an answer, beside its text and its bytes."""


@attrs.define
class KeptLogprobs:
    """See the module docstring. Iterating makes the entries again, one at a time."""

    held_bytes: int = attrs.field(default=0, init=False)
    _places: dict[tuple[object, object], int] = attrs.field(factory=dict, init=False)
    """Where each token is in ``_tokens``, by its id and its text."""
    _tokens: list[dict[str, object]] = attrs.field(factory=list, init=False)
    _numbers: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    _owners: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    """The token of each number: a sampled one, then its alternatives."""
    _sizes: array[int] = attrs.field(factory=lambda: array("I"), init=False)
    """The numbers of each sampled token."""

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        start = 0
        for size in self._sizes:
            sampled, *top = map(self._entry, range(start, start + size))
            start += size
            yield {**sampled, "top": top}

    @property
    def is_long(self) -> bool:
        """Return whether writing them takes so long that it belongs into a thread."""
        return len(self._numbers) > MANY_NUMBERS

    def add(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Keep those of tokens as an agent sends them."""
        for entry in entries:
            top = entry.get("top", [])
            assert isinstance(top, list)
            for each in (entry, *top):
                self._owners.append(self._place_of(each))
                self._numbers.append(each["logprob"])
            self._sizes.append(1 + len(top))
            self.held_bytes += NUMBER_BYTES * (1 + len(top)) + 4

    def sampled(self) -> Iterator[float]:
        """Return the log probability of each sampled token."""
        start = 0
        for size in self._sizes:
            yield self._numbers[start]
            start += size

    def written(self, form: Callable[[Mapping[str, object]], object]) -> Items:
        """Return a list of what ``form`` makes of each entry, made while it is written."""
        return Items(lambda: map(form, self), VALUES * len(self._numbers))

    def _entry(self, index: int) -> dict[str, object]:
        return {**self._tokens[self._owners[index]], "logprob": self._numbers[index]}

    def _place_of(self, entry: Mapping[str, object]) -> int:
        token = entry["token"]
        key = entry.get("id"), token
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self._tokens)
            names = ("id", "token", "bytes")
            self._tokens.append({name: entry[name] for name in names if name in entry})
            self.held_bytes += TOKEN_BYTES + 16 * len(str(token))
        return place
