"""Choose the documents that are embedded together in the next pass.

A pass takes documents of all requests at once, up to a number of tokens: attention compares every
token of a pass with every other, so a pass that is too large costs more than two that are not.
Requests take turns. Each first gives its earliest document, so that its results, which go out in
its own order, keep coming; what room is left is filled with the longest documents that fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

WINDOW = 64
"""The distance ahead of its earliest document in which a request is searched for one that fills a
gap."""


@attrs.frozen
class Document:
    """The document ``index`` of request ``key``; ``length`` in tokens."""

    key: int
    index: int
    length: int


@attrs.define
class _Waiting:
    """The rest of one request, in its order: ``window`` is searched, ``rest`` follows."""

    rest: deque[Document]
    isolated: bool = False
    window: list[Document] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._refill()

    def earliest(self) -> Document:
        return self.window[0]

    def longest_within(self, room: int) -> Document | None:
        """Return the longest document that fits, the earliest of several; None if none does."""
        fitting = (document for document in self.window if document.length <= room)
        return max(fitting, key=lambda document: document.length, default=None)

    def take(self, document: Document) -> None:
        self.window.remove(document)
        self._refill()

    def _refill(self) -> None:
        while self.rest and len(self.window) < WINDOW:
            self.window.append(self.rest.popleft())

    @property
    def is_empty(self) -> bool:
        return not self.window


@attrs.define
class EmbeddingQueue:
    """All documents that wait, by request.

    Args:
      max_tokens: of one pass; a document that is longer has a pass of its own.
      max_documents: of one pass, >= 1.
    """

    max_tokens: int
    max_documents: int
    _requests: dict[int, _Waiting] = attrs.field(factory=dict, init=False)
    """The requests in the order of their turns: the first one begins the next pass."""

    @property
    def is_empty(self) -> bool:
        return not self._requests

    def add(self, documents: Sequence[Document], *, isolated: bool = False) -> None:
        """Queue the documents of one request, in its order; each has at least one token. With
        ``isolated`` they share no pass with another request's."""
        if documents:
            self._requests[documents[0].key] = _Waiting(deque(documents), isolated)

    def drop(self, key: int) -> None:
        """Forget what is left of a request, if anything is."""
        self._requests.pop(key, None)

    def next_pack(self) -> tuple[Document, ...]:
        """Take the documents of the next pass out; empty only if nothing waits."""
        pack: list[Document] = []
        room = self.max_tokens

        def take(request: _Waiting, document: Document) -> None:
            nonlocal room
            request.take(document)
            pack.append(document)
            room -= document.length

        together = self._together()
        for request in together:
            if len(pack) == self.max_documents:
                break
            if not pack or request.earliest().length <= room:
                take(request, request.earliest())
        grew = bool(pack)
        while grew:
            grew = False
            for request in together:
                document = request.longest_within(room)
                if document is not None and len(pack) < self.max_documents:
                    take(request, document)
                    grew = True
        self._pass_the_turn()
        return tuple(pack)

    def _together(self) -> list[_Waiting]:
        """Return the requests whose documents may share the next pass, in the order of their
        turns."""
        requests = list(self._requests.values())
        if requests and requests[0].isolated:
            return requests[:1]
        return [request for request in requests if not request.isolated]

    def _pass_the_turn(self) -> None:
        """Make the request that began this pass the last to begin one; remove empty ones."""
        keys = list(self._requests)
        for key in keys[1:] + keys[:1]:
            request = self._requests.pop(key)
            if not request.is_empty:
                self._requests[key] = request
