"""Vectors come back from the engine in any order and go on in the order of their documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from paddler_trio.language.embedding_documents import PreparedDocument


@attrs.frozen
class Gathered:
    """A document and the float32 bytes of each of its chunks, or why there are none."""

    document: PreparedDocument
    values: tuple[bytes, ...]
    problem: str


@attrs.define
class _Open:
    document: PreparedDocument
    values: list[bytes]
    num_missing: int
    problem: str = ""


@attrs.define
class Gathering:
    """The documents of one request while they are computed.

    The engine knows only chunks, counted through over all documents: ``chunks`` is that list. It
    is given them in portions, and ``tokens_away`` of them have not come back.
    """

    documents: Sequence[PreparedDocument]
    chunks: list[tuple[int, ...]] = attrs.field(init=False)
    tokens_away: int = attrs.field(default=0, init=False)
    _num_given: int = attrs.field(default=0, init=False)
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

    def next_portion(self, max_tokens: int) -> range:
        """The chunks that go to the engine now: as many as have ``max_tokens`` together, or a
        single longer one; none when all have gone."""
        start = end = self._num_given
        num_tokens = 0
        while end < len(self.chunks):
            length = len(self.chunks[end])
            if end > start and num_tokens + length > max_tokens:
                break
            num_tokens += length
            end += 1
        self._num_given = end
        self.tokens_away += num_tokens
        return range(start, end)

    def take(self, index: int, values: bytes, problem: str = "") -> None:
        """The engine computed chunk ``index``, or could not."""
        owner, place = self._owners[index]
        owner.values[place] = values
        owner.num_missing -= 1
        owner.problem = owner.problem or problem
        self.tokens_away -= len(self.chunks[index])

    def ready(self) -> list[Gathered]:
        """Documents whose turn it is, in order; each is given out once."""
        ready = []
        while self._waiting and not self._waiting[0].num_missing:
            done = self._waiting.popleft()
            ready.append(Gathered(done.document, tuple(done.values), done.problem))
        return ready
