"""What the simulated models say: a pure function, so that every expected answer is known.

A token depends on the prompt, the seed of the answer, its position and the weights. Text lags
behind tokens, as it does when a character is not whole yet: a prompt's text comes in groups of one
to three tokens. So a continuation that forgets a token, shows one twice, or was made by other
weights differs in its text.
"""

from __future__ import annotations

import zlib

Result = dict[str, object]


def token_at(prompt: str, seed: int, weights: str, position: int) -> int:
    """The token that ``weights`` draw at ``position``, 31 bits."""
    return zlib.crc32(f"{prompt}/{seed}/{weights}/{position}".encode()) & 0x7FFFFFFF


def tokens_of(prompt: str, seed: int, weights: str, count: int) -> list[int]:
    return [token_at(prompt, seed, weights, position) for position in range(count)]


def piece(prompt: str, token: int) -> str:
    """The text of a token; it names its prompt, so that a misdelivered one is recognised."""
    return f"{prompt}:{token:x} "


def results_at(prompt: str, tokens: list[int], position: int, max_tokens: int) -> list[Result]:
    """What becomes visible when the token at ``position`` is drawn, ``tokens[:position]`` known."""
    group = 1 + zlib.crc32(prompt.encode()) % 3
    if (position + 1) % group and position + 1 < max_tokens:
        return []
    first = position - position % group
    return [
        {"ReasoningToken" if place < 2 else "ContentToken": piece(prompt, tokens[place])}
        for place in range(first, position + 1)
    ]


def done(written_tokens: int) -> Result:
    """The ending of an answer of so many tokens."""
    usage = {
        "prompt_tokens": 3,
        "cached_prompt_tokens": 0,
        "input_image_tokens": 0,
        "input_audio_tokens": 0,
        "content_tokens": max(0, written_tokens - 2),
        "reasoning_tokens": min(2, written_tokens),
        "tool_call_tokens": 0,
        "undeterminable_tokens": 0,
    }
    return {"Done": {"usage": usage}}


def answer(prompt: str, seed: int, weights: str, max_tokens: int) -> list[Result]:
    """Every result of an undisturbed answer, the ending included."""
    tokens = tokens_of(prompt, seed, weights, max_tokens)
    results: list[Result] = []
    for position in range(max_tokens):
        results += results_at(prompt, tokens, position, max_tokens)
    return [*results, done(max_tokens)]


def embedding(document_id: str, path: str) -> Result:
    """The embedding of this document by the model of this path."""
    value = (zlib.crc32(document_id.encode()) % 1024) / 1024
    return {
        "Embedding": {
            "embedding": [value, zlib.crc32(path.encode()) % 1024 / 1024],
            "normalization_method": "L2",
            "pooling_type": "Last",
            "source_document_id": document_id,
        }
    }
