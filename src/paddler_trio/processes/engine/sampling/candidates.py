"""llama.cpp's candidate tokens, on which its samplers work."""

from __future__ import annotations

import threading

import numpy as np

from paddler_trio.system.llama_library import lib

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama.cpp's candidate token."""


class Candidates:
    """Candidate tokens in memory that is filled again and again: to make it takes longer than to
    choose from a thousand tokens.

    ``rows``: TOKEN_DATA of those that are in it; ``raw``: a view of them for the samplers.
    """

    def __init__(self, most: int) -> None:
        self._room = np.zeros(most, TOKEN_DATA)
        self._data = self._room.ctypes.data_as(lib.llama_token_data_p)
        self.rows = self._room
        self.raw = lib.llama_token_data_array()

    def __len__(self) -> int:
        return len(self._room)

    def fill(self, tokens: np.ndarray, logits: np.ndarray) -> None:
        """Put these tokens, each with its logit, in the place of what is there."""
        self.rows = rows = self._room[: len(tokens)]
        rows["id"], rows["logit"], rows["p"] = tokens, logits, 0.0
        raw = self.raw
        raw.data, raw.size, raw.selected, raw.sorted = self._data, len(tokens), -1, False


_OF_THREAD = threading.local()


def candidates_of(logits: np.ndarray, tokens: np.ndarray | None = None) -> Candidates:
    """Return these tokens, or all of them, as candidates; valid until this thread asks again."""
    if tokens is None:
        tokens = np.arange(len(logits), dtype=np.int32)
    else:
        logits = logits[tokens]
    candidates: Candidates | None = getattr(_OF_THREAD, "candidates", None)
    if candidates is None or len(candidates) < len(tokens):
        candidates = _OF_THREAD.candidates = Candidates(len(tokens))
    candidates.fill(tokens, logits)
    return candidates
