"""A vocabulary as grammars are asked about it: made once for a model, and shared by all answers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from llguidance import LLTokenizer

from paddler_trio.system.llama_library import lib


def grammar_tokenizer(
    vocab: object, pieces: Sequence[bytes], end_tokens: Sequence[int]
) -> LLTokenizer:
    """Return the tokens of a vocabulary, with the bytes of each.

    Control tokens are texts that a grammar may spell out, but for those that end an answer.
    """
    ends = frozenset(end_tokens)
    tokens = [
        b"\xff" + piece if token in ends else b"" if piece[:1] == b"\0" else piece
        for token, piece in enumerate(pieces)
    ]
    # The stub of the library leaves this one out.
    return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined,no-any-return]
        tokens=tokens,
        vocab_ptr=vocab,
        tokenize_fptr=ctypes.cast(lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=list(end_tokens),
    )
