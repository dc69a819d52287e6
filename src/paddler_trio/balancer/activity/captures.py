"""The beginnings of prompts and answers, where the operator has asked for them, and only there."""

from __future__ import annotations

from typing import Final

import attrs

from paddler_trio.balancer.activity.request_record import Capture, RequestRecord
from paddler_trio.nursery_tree.step_results import Results
from paddler_trio.wire.trio.request_frame import EncodedWork

MAX_BYTES: Final = 4096
"""Of a request, and of an answer."""
MAX_TOTAL_BYTES: Final = 16 * 1024 * 1024
"""Of all; the oldest are forgotten first."""
_TEXTS: Final = ("ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken")


@attrs.define(eq=False, repr=False)
class Captures:
    """See the module docstring. Each capture counts as the most that it may become."""

    _captures: dict[int, Capture] = attrs.field(factory=dict, init=False)
    """By the key of the request, the oldest first."""

    def __repr__(self) -> str:
        return f"<Captures of {len(self._captures)} requests>"

    def begin(self, record: RequestRecord, work: EncodedWork) -> None:
        """Keep the beginning of a request's JSON."""
        record.capture = self._captures[record.key] = Capture(bytes(work.body[:MAX_BYTES]))
        while len(self._captures) * 2 * MAX_BYTES > MAX_TOTAL_BYTES:
            oldest = self._captures.pop(next(iter(self._captures)))
            oldest.request = b""
            oldest.answer.clear()

    def take(self, record: RequestRecord, results: Results) -> None:
        """Add what these results say to the answer."""
        capture = record.capture
        if capture is None or not capture.request:
            return
        for result in results.results:
            room = MAX_BYTES - len(capture.answer)
            if room <= 0:
                return
            if isinstance(result, dict):
                for tag in _TEXTS:
                    text = result.get(tag)
                    if isinstance(text, str):
                        capture.answer += text[:room].encode(errors="replace")[:room]

    def of(self, key: int) -> Capture | None:
        """Return that of the request with this key, unless it was forgotten."""
        return self._captures.get(key)
