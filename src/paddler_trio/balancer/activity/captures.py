"""The beginnings of prompts and answers, where the operator has asked for them, and only there."""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

from paddler_trio.balancer.activity.request_record import Capture, RequestRecord
from paddler_trio.nursery_tree.request import Results
from paddler_trio.wire.trio.request_frame import EncodedWork

MAX_BYTES: Final = 4096
"""Of a request, and of an answer in characters."""
MAX_TOTAL_BYTES: Final = 16 * 1024 * 1024
"""Of all; the oldest are forgotten first."""
_TEXTS: Final = ("ContentToken", "ReasoningToken", "ToolCallToken", "UndeterminableToken")


@attrs.define(eq=False)
class Captures:
    """See the module docstring. Each capture counts as the most that it may become."""

    _records: deque[RequestRecord] = attrs.field(factory=deque, init=False)

    def begin(self, record: RequestRecord, work: EncodedWork) -> None:
        """Keep the beginning of a request's JSON."""
        record.capture = Capture(work.body[:MAX_BYTES].decode(errors="replace"))
        self._records.append(record)
        while len(self._records) * 2 * MAX_BYTES > MAX_TOTAL_BYTES:
            self._records.popleft().capture = None

    def take(self, record: RequestRecord, results: Results) -> None:
        """Add what these results say to the answer."""
        capture = record.capture
        if capture is None or len(capture.answer) >= MAX_BYTES:
            return
        texts = [
            str(text)
            for result in results.results
            if isinstance(result, dict)
            for tag in _TEXTS
            if (text := result.get(tag)) is not None
        ]
        capture.answer = (capture.answer + "".join(texts))[:MAX_BYTES]
