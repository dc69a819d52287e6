"""Vectors come back from the engine in any order and go on in the order of their documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from paddler_trio.agent.embedding_documents import Prepared


@attrs.frozen
class Gathered:
    """A document and the float32 bytes of each of its chunks, or why there are none."""

    document: Prepared
    values: tuple[bytes, ...]
    problem: str


@attrs.define
class _Open:
    document: Prepared
    values: list[bytes]
    num_missing: int
    problem: str = ""


@attrs.define
class Gathering:
    """The documents of one request while they are computed.

    The engine knows only chunks, counted through over all documents: ``chunks`` is that list.
    """

    documents: Sequence[Prepared]
    chunks: list[tuple[int, ...]] = attrs.field(init=False)
    _owners: list[tuple[_Open, int]] = attrs.field(init=False)
    """Of each chunk: its document, and the chunk's place in it."""
    _waiting: deque[_Open] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        waiting = [
            _Open(document, [b""] * len(document.chunks), len(document.chunks))
            for document in self.documents
        ]
        self._waiting = deque(waiting)
        self.chunks = [chunk for document in self.documents for chunk in document.chunks]
        self._owners = [
            (each, place) for each in waiting for place in range(len(each.document.chunks))
        ]

    @property
    def is_complete(self) -> bool:
        """Everything was given out."""
        return not self._waiting

    def take(self, index: int, values: bytes, problem: str = "") -> None:
        """The engine computed chunk ``index``, or could not."""
        owner, place = self._owners[index]
        owner.values[place] = values
        owner.num_missing -= 1
        owner.problem = owner.problem or problem

    def ready(self) -> list[Gathered]:
        """Documents whose turn it is, in order; each is given out once."""
        ready = []
        while self._waiting and not self._waiting[0].num_missing:
            done = self._waiting.popleft()
            ready.append(Gathered(done.document, tuple(done.values), done.problem))
        return ready
