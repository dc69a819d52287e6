"""A vocabulary as grammars are asked about it: made once for a model, and shared by all answers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

from llguidance import LLTokenizer, TokenizerWrapper

from paddler_trio.system.llama_library import lib

BYTES: Final = 256


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
    if not _reads_any_text(vocab, len(tokens)):
        return LLTokenizer(TokenizerWrapper(_WithoutTexts(tokens, end_tokens)))
    # The stub of the library leaves this one out.
    return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined,no-any-return]
        tokens=tokens,
        vocab_ptr=vocab,
        tokenize_fptr=ctypes.cast(lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=list(end_tokens),
    )


def _reads_any_text(vocab: object, count: int) -> bool:
    """Return whether llama.cpp finds tokens for any text; else it ends the process for some."""
    kind = lib.llama_vocab_type(vocab)
    if kind != lib.LLAMA_VOCAB_TYPE_SPM:
        return bool(kind != lib.LLAMA_VOCAB_TYPE_NONE)
    attributes = (lib.llama_vocab_get_attr(vocab, token) for token in range(count))
    return sum(bool(each & lib.LLAMA_TOKEN_ATTR_BYTE) for each in attributes) >= BYTES


class _WithoutTexts:
    """A vocabulary that llama.cpp may read no text with, as the library asks about one."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], end_tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.eos_token_id = next(iter(end_tokens), 0)

    def __call__(self, text: bytes | str) -> list[int]:
        return []
