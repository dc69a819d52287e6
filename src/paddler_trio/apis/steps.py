"""What passes between the runner of native requests and the dialect that tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.nursery_tree.request import RawResult


@attrs.frozen
class Step:
    """What came of one choice at once: results that end nothing, or end it with ``Done``.

    ``tokens`` are the ids drawn for it; empty if the agent does not say.
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
        """What this step adds to the stream; may be nothing."""
        ...

    def closing(self) -> bytes:
        """The end of a stream in which every choice was ``Done``."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that began and cannot go on."""
        ...
