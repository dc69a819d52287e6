"""The number of agents that serve a deployment, as it is written."""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.wire.shape import (
    MAX_SHOWN_BITS,
    ShapeError,
    describe,
    register,
)

MAX_REPLICAS: Final = 4096


_RANGE: Final = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


@attrs.frozen
class ReplicaRange:
    """The number of agents that serve a deployment: ``"all"`` that it may run on, ``n``, or
    ``"min..max"``.

    Between ``least`` and ``most`` demand decides; ``most`` is None for all. Raises ShapeError.
    """

    least: int
    most: int | None

    def __attrs_post_init__(self) -> None:
        if self.most is None:
            if self.least:
                raise ShapeError(f"replicas are {self.least} to all: write all, or min..max")
        elif not 0 <= self.least <= self.most:
            raise ShapeError(f"replicas are {self.least}..{self.most}: the first number is larger")
        elif self.most > MAX_REPLICAS:
            raise ShapeError(f"replicas are {self.most}, the limit is {MAX_REPLICAS}")

    @property
    def is_all(self) -> bool:
        return self.most is None

    def __str__(self) -> str:
        if self.most is None:
            return "all"
        return f"{self.least}" if self.least == self.most else f"{self.least}..{self.most}"


ALL_REPLICAS: Final = ReplicaRange(0, None)


def _read_replicas(value: object, _: object) -> ReplicaRange:
    if type(value) is int and value.bit_length() <= MAX_SHOWN_BITS:
        return ReplicaRange(value, value)
    if value == "all":
        return ALL_REPLICAS
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ShapeError(f'expected a number, "min..max" or "all", got {describe(value)}')
    return ReplicaRange(int(match[1]), int(match[2]))


def _write_replicas(replicas: ReplicaRange) -> int | str:
    return replicas.least if replicas.least == replicas.most else str(replicas)


register(ReplicaRange, lambda _: _read_replicas, lambda _: _write_replicas)
