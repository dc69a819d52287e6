"""Work for an agent as the bytes it is sent as: written once, measured, kept until it has ended.

Bytes are what a request costs while it waits: a third of what its values would, and no second
encoding when it is placed again after a loss. Their length is what counts against the limit of a
link: JSON can grow when it is written again (``1e15`` becomes ``1000000000000000.0``), and a frame
that is too long ends the link, with everybody's requests on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.wire.codec import dumps
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.trio.paddler_work import Inexpressible, paddler_body
from paddler_trio.wire.trio.trio_link import MAX_FRAME_BYTES

CONTINUATION_BYTES = 8 * 1024 * 1024
"""Of a frame, for the envelope and the tokens that an answer goes on after: a million of them."""
MAX_WORK_BYTES = MAX_FRAME_BYTES - CONTINUATION_BYTES
MAX_PADDLER_WORK_BYTES = 16 * 1024 * 1024 - 4096
"""A Paddler agent drops its whole connection over a frame of more than 16 MiB; the rest is for the
envelope."""


@attrs.frozen
class TooLong:
    """The work is longer than a frame to an agent may be; both in bytes."""

    size_bytes: int
    most_bytes: int


@attrs.frozen
class WrittenWork:
    """One request for an agent.

    Attributes:
      body: the JSON of the work, ``{"Generate": {...}}`` or one of Paddler's bodies.
      paddler_body: the same for an agent of Paddler's; None if it cannot be sent to one.
      needs_ours: why it cannot.
      is_embedding_batch: it is Paddler's own embedding request, which agents of ours take as such.
    """

    body: bytes
    paddler_body: bytes | None
    needs_ours: Inexpressible | TooLong | None
    is_embedding_batch: bool

    @property
    def size_bytes(self) -> int:
        """What it holds while it waits."""
        has_two = self.paddler_body is not None and self.paddler_body is not self.body
        return len(self.body) + (len(self.paddler_body or b"") if has_two else 0)

    @property
    def excess(self) -> TooLong | None:
        """Too long for every agent."""
        is_too_long = len(self.body) > MAX_WORK_BYTES
        return TooLong(len(self.body), MAX_WORK_BYTES) if is_too_long else None

    def start_frame(
        self, wire_id: str, *, client: str, isolated: str | None, seed: int, tokens: Sequence[int]
    ) -> bytes:
        """The frame of a ``Start``: to an agent of ours, going on after ``tokens``."""
        alone = b"" if isolated is None else b'"isolated":%b,' % dumps(isolated)
        return b'{"Trio":{"Start":{"id":%b,"client":%b,%b"request":%b,"seed":%d,"tokens":%b}}}' % (
            dumps(wire_id),
            dumps(client),
            alone,
            self.body,
            seed,
            dumps(list(tokens)),
        )

    def request_frame(self, wire_id: str, *, to_paddler: bool) -> bytes:
        """The frame of Paddler's ``Request``."""
        body = self.paddler_body if to_paddler else self.body
        assert body is not None, "an agent of Paddler's was given what it does not understand"
        return b'{"Request":{"id":%b,"request":%b}}' % (dumps(wire_id), body)


def write_work(work: Mapping[str, object], *, in_runs: bool = False) -> WrittenWork:
    """Write ``work``; in runs, it never holds the interpreter for long, and takes longer.

    Raises:
      WireError: it is no work.
    """
    write = dumps_in_runs if in_runs else dumps
    said = paddler_body(work)
    body = write(work)
    is_embedding_batch = "GenerateEmbeddingBatch" in work
    if isinstance(said, Inexpressible):
        return WrittenWork(body, None, said, is_embedding_batch)
    for_paddler = body if said is work else write(said)
    if len(for_paddler) > MAX_PADDLER_WORK_BYTES:
        excess = TooLong(len(for_paddler), MAX_PADDLER_WORK_BYTES)
        return WrittenWork(body, None, excess, is_embedding_batch)
    return WrittenWork(body, for_paddler, None, is_embedding_batch)
