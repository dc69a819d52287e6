"""The interface between native requests and the API that encodes their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.nursery_tree.request import RawResult


@attrs.frozen
class Step:
    """Results of one choice that arrived together; ``Done`` is the only ending among them.

    ``tokens`` are the ids that were sampled; empty if the agent does not report them.
    """

    choice: int
    results: Sequence[RawResult]
    tokens: Sequence[int] = ()


class StreamEncoder(Protocol):
    """Turns steps into the bytes of one stream; called in order, never again after the end."""

    def opening(self) -> bytes:
        """Sent with the first bytes of the body."""
        ...

    def take(self, step: Step) -> bytes:
        """The events of this step; may be none."""
        ...

    def closing(self) -> bytes:
        """The end of a stream in which every choice was ``Done``."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that began and cannot go on."""
        ...
