"""Batches of llama.cpp: what it is given to compute in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from paddler_trio.system.llama_library import lib


class Batch:
    """llama.cpp's batch, filled a run of tokens at a time through views of its memory.

    Rows of one stream follow each other, and streams come in ascending order: with one KV region
    per stream llama.cpp computes only such runs together (measured: 27 ms for a pass of eight in
    order, 46 ms shuffled).
    """

    def __init__(self, capacity: int) -> None:
        self.raw = lib.llama_batch_init(capacity, 0, 1)
        self._tokens = np.ctypeslib.as_array(self.raw.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self.raw.pos, (capacity,))
        self._logits = np.ctypeslib.as_array(self.raw.logits, (capacity,))
        self._streams = np.zeros(capacity, np.int32)
        np.ctypeslib.as_array(self.raw.n_seq_id, (capacity,))[:] = 1
        for row in range(capacity):  # each row has an array of sequence ids; ours have length one
            self.raw.seq_id[row] = ctypes.cast(
                self._streams.ctypes.data + row * self._streams.itemsize,
                ctypes.POINTER(ctypes.c_int32),
            )
        self._last_stream = -1
        self.clear()

    def clear(self) -> None:
        self.raw.n_tokens = 0
        self._last_stream = -1

    def add(self, tokens: Sequence[int], *, start: int, stream: int, logits: int) -> int:
        """Add tokens of one stream from position ``start``; ``logits`` of them, the last ones, are
        asked for.

        Returns:
          The row of the last token.
        """
        assert stream > self._last_stream, "streams must come in ascending order"
        self._last_stream = stream
        first = self.raw.n_tokens
        end = first + len(tokens)
        if len(tokens) == 1:  # nearly always; a range of one costs ten times as much
            self._tokens[first] = tokens[0]
            self._positions[first] = start
            self._streams[first] = stream
            self._logits[first] = logits
        else:
            self._tokens[first:end] = tokens
            self._positions[first:end] = range(start, start + len(tokens))
            self._streams[first:end] = stream
            self._logits[first:end] = 0
            if logits:
                self._logits[end - logits : end] = 1
        self.raw.n_tokens = end
        return int(end) - 1


class EmbeddingBatch:
    """A batch that has embeddings in the place of tokens, over memory of ours."""

    def __init__(
        self, rows: np.ndarray, *, positions: np.ndarray, stream: int, logits: bool
    ) -> None:
        count = len(rows)
        self._rows = np.ascontiguousarray(rows, np.float32)
        self._positions = np.ascontiguousarray(positions, np.int32)
        self._ones = np.ones(count, np.int32)
        self._stream = ctypes.c_int32(stream)
        self._streams = (ctypes.POINTER(ctypes.c_int32) * count)(
            *(ctypes.pointer(self._stream) for _ in range(count))
        )
        self._logits = np.zeros(count, np.int8)
        self._logits[-1] = logits
        self.raw = lib.llama_batch(
            n_tokens=count,
            embd=self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=self._ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=self._streams,
            logits=self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
