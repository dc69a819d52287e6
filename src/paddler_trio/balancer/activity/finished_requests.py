"""The records of the requests that ended last, packed so that they cost the collector nothing.

Python's full collection walks all containers that it tracks with the interpreter held: ten thousand
records of objects took it 80 ms, in which no token moves. So a record becomes a block of bytes when
its request has ended, and an object again when somebody reads it. The blocks never leave the
process, so they are written as Python writes plain values quickest.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs

from paddler_trio.balancer.activity.captures import Captures
from paddler_trio.balancer.activity.placement_words import MAX_TEXT_CHARS, Reason
from paddler_trio.balancer.activity.request_record import (
    Kind,
    Marks,
    PlacementRecord,
    RequestRecord,
    Stay,
)
from paddler_trio.nursery_tree.request_endings import Completed, Ending, Failure, Stopped
from paddler_trio.system.heap import MAPPED_BYTES
from paddler_trio.wire.trio.prompt_stages import PromptStages

MAX_FINISHED: Final = 10_000
SHELF_BYTES: Final = 2 * MAPPED_BYTES
"""Blocks are copied into shelves of this size, which the C library maps. By themselves, among what
requests need for a moment, they kept four times their size of the heap from being used."""

PackedStay: TypeAlias = "tuple[float, float | None, bytes, str]"
PackedStages: TypeAlias = "tuple[int, int, int, int, int]"
PackedPlacement: TypeAlias = (
    "tuple[str, int, int, float, Reason | None, float | None, float | None, PackedStages | None, "
    "int | None, int | None, float | None, str | None, int, tuple[float, ...], int | None]"
)
PackedEnding: TypeAlias = "tuple[int, str] | bool | None"
"""Code and text of a failure; True for done, False for stopped."""
PackedFields: TypeAlias = (
    "tuple[str, str, Kind, str | None, float, tuple[PackedStay, ...], "
    "tuple[PackedPlacement, ...], float | None, int, bytes, int, float | None, PackedEnding, "
    "str | None, tuple[int, str] | None, str | None, str, str]"
)
PackedRecord: TypeAlias = "tuple[int, str, bytes | bytearray, int, int]"
"""Key, id, and where the block with everything else is: in these bytes, from here, to there."""


@attrs.define(eq=False, repr=False)
class FinishedRequests:
    """The last ``MAX_FINISHED`` records, the one that ended last at the end.

    Args:
      captures: has what was captured of them.
    """

    captures: Captures | None = None
    last: RequestRecord | None = attrs.field(default=None, init=False)
    """The one that ended last, as it was."""
    _packed: deque[PackedRecord] = attrs.field(
        factory=lambda: deque(maxlen=MAX_FINISHED), init=False
    )

    _shelf: bytearray = attrs.field(factory=bytearray, init=False)
    """The newest one; the older ones live as long as a record in them."""
    _filled: int = attrs.field(default=0, init=False)

    def __repr__(self) -> str:
        return f"<FinishedRequests {len(self._packed)} of {MAX_FINISHED}>"

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[RequestRecord]:
        return map(self.unpack, self._packed)

    def add(self, record: RequestRecord) -> None:
        """It has ended."""
        self.last = record
        key, name, block, _, size = pack(record)
        if self._filled + size > len(self._shelf):
            self._shelf, self._filled = bytearray(max(SHELF_BYTES, size)), 0
        start, self._filled = self._filled, self._filled + size
        self._shelf[start : self._filled] = block
        self._packed.append((key, name, self._shelf, start, self._filled))

    def packed(self) -> list[PackedRecord]:
        """Return all of them, as they are now."""
        return list(self._packed)

    def find(self, name: str, key: int | None) -> RequestRecord | None:
        """Return the one with this key or this id, the newest of several."""
        for packed in reversed(self._packed):
            if packed[0] == key or packed[1] == name:
                return self.unpack(packed)
        return None

    def unpack(self, packed: PackedRecord) -> RequestRecord:
        """Return the record again, with what was captured of it."""
        record = unpack(packed)
        if self.captures is not None:
            record.capture = self.captures.of(record.key)
        return record


def pack(record: RequestRecord) -> PackedRecord:
    """Without what was captured."""
    fields: PackedFields = (
        record.client,
        record.deployment,
        record.kind,
        record.route,
        record.arrived_s,
        tuple(
            [
                (stay.since_s, stay.until_s, stay.positions.pack(), stay.obstacle)
                for stay in record.stays
            ]
        ),
        tuple([_pack_placement(placement) for placement in record.placements]),
        record.first_s,
        record.tokens,
        record.progress.pack(),
        record.continuations,
        record.ended_s,
        _pack_ending(record.ending),
        record.trace,
        record.refusal,
        record.finish,
        record.source,
        record.preset,
    )
    block = marshal.dumps(fields)
    return record.key, record.id, block, 0, len(block)


def unpack(packed: PackedRecord) -> RequestRecord:
    """Return what ``pack`` was given, of a request that has ended."""
    key, name, shelf, start, stop = packed
    with memoryview(shelf)[start:stop] as block:
        fields: PackedFields = marshal.loads(block)  # noqa: S302  # a block that pack() made
    (
        client,
        deployment,
        kind,
        route,
        arrived_s,
        stays,
        placements,
        first_s,
        tokens,
        progress,
        continuations,
        ended_s,
        ending,
        trace,
        refusal,
        finish,
        source,
        preset,
    ) = fields
    return RequestRecord(
        key,
        name,
        client,
        deployment,
        kind,
        route,
        arrived_s,
        phase="ended",
        stays=[
            Stay(since_s, until_s, Marks.unpack(positions), obstacle)
            for since_s, until_s, positions, obstacle in stays
        ],
        placements=[_unpack_placement(placement) for placement in placements],
        first_s=first_s,
        tokens=tokens,
        progress=Marks.unpack(progress),
        continuations=continuations,
        ended_s=ended_s,
        ending=_unpack_ending(ending),
        trace=trace,
        refusal=refusal,
        finish=finish,
        source=source,
        preset=preset,
    )


def _pack_placement(placement: PlacementRecord) -> PackedPlacement:
    prompt = placement.prompt
    return (
        placement.agent,
        placement.agent_key,
        placement.lane,
        placement.at_s,
        placement.reason,
        placement.prepared_s,
        placement.first_s,
        None
        if prompt is None
        else (prompt.tokens, prompt.cached, prompt.template_ms, prompt.wait_ms, prompt.prefill_ms),
        placement.prompt_tokens,
        placement.cached_tokens,
        placement.ended_s,
        placement.ending,
        placement.preemptions,
        placement.preempted_s,
        placement.revision,
    )


def _unpack_placement(packed: PackedPlacement) -> PlacementRecord:
    stages = packed[7]
    prompt = None
    if stages is not None:
        tokens, cached, template_ms, wait_ms, prefill_ms = stages
        prompt = PromptStages(
            tokens=tokens,
            cached=cached,
            template_ms=template_ms,
            wait_ms=wait_ms,
            prefill_ms=prefill_ms,
        )
    return PlacementRecord(*packed[:7], prompt, *packed[8:])


def _pack_ending(ending: Ending | None) -> PackedEnding:
    match ending:
        case Failure(code, description):
            return code, description[:MAX_TEXT_CHARS]
        case None:
            return None
        case _:
            return isinstance(ending, Completed)


def _unpack_ending(packed: PackedEnding) -> Ending | None:
    match packed:
        case None:
            return None
        case True:
            return Completed()
        case False:
            return Stopped()
        case (code, description):
            return Failure(code, description)
