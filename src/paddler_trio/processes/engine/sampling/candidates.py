"""llama.cpp's candidate tokens, on which its samplers and grammars work."""

from __future__ import annotations

import numpy as np

from paddler_trio.system.llama_library import lib

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama.cpp's candidate token."""


def token_rows(logits: np.ndarray, tokens: np.ndarray | None = None) -> np.ndarray:
    """Return these tokens, or all of them, as candidates: TOKEN_DATA of shape (number of
    tokens,)."""
    if tokens is None:
        tokens = np.arange(len(logits), dtype=np.int32)
    else:
        logits = logits[tokens]
    rows = np.zeros(len(tokens), TOKEN_DATA)
    rows["id"] = tokens
    rows["logit"] = logits
    return rows


def candidates_of(rows: np.ndarray) -> lib.llama_token_data_array:
    """Return a view of ``rows`` for the samplers; keep ``rows`` alive as long as it is used."""
    return lib.llama_token_data_array(
        data=rows.ctypes.data_as(lib.llama_token_data_p),
        size=len(rows),
        selected=-1,
        sorted=False,
    )
