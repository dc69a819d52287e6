"""What a trained encoder makes of texts: the vectors of llama-server, and those of its authors'
weights, computed here with NumPy and nothing of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import erf
from typing import Any

import numpy as np
import pytest
from side_by_side import Pair, require, side_by_side
from tokenizers import Tokenizer
from trained_models import MINILM, MINILM_GGUF, minilm, minilm_tokenizer

TEXTS = [
    "A cat sits on the mat.",
    "The kitten rests on a rug.",
    "Interest rates rose again in March.",
    "naïve café, 東京 & 🤗",
    "one",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit. " * 8,
]
NEAR = 5e-4
"""Of a number of a vector of length 1: sums of another order."""
NEAR_AUTHORS = 1e-3
"""llama.cpp looks its GELU up in a table of 16 bits."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    options = ["--embedding", "--pooling", "mean"]
    parameters = {"enable_embeddings": True, "pooling_type": "Mean"}
    model = require(MINILM_GGUF)
    with side_by_side(model, *options, context=512, slots=1, parameters=parameters) as pair:
        yield pair


def vectors(body: Any) -> np.ndarray:
    return np.array([each["embedding"] for each in body["data"]])


def test_texts_have_llama_servers_vectors(pair: Pair) -> None:
    ours, theirs = pair.ask("/v1/embeddings", input=TEXTS)
    assert vectors(ours) == pytest.approx(vectors(theirs), abs=NEAR)
    assert ours["usage"] == theirs["usage"]
    for norm in (-1, 0, 1, 2, 3):
        ours, theirs = pair.ask("/embedding", content=TEXTS[0], embd_normalize=norm)
        mine, other = (np.array(each[0]["embedding"]) for each in (ours, theirs))
        assert mine == pytest.approx(other, rel=1e-3, abs=np.abs(other).max() * NEAR), norm


def test_texts_have_the_vectors_of_the_weights(pair: Pair) -> None:
    require(MINILM)
    ours, _ = pair.ask("/v1/embeddings", input=TEXTS)
    for text, vector in zip(TEXTS, vectors(ours), strict=True):
        expected = encoded(text)
        assert vector == pytest.approx(expected, abs=NEAR_AUTHORS)
        assert float(vector @ expected) > 0.9999


def test_what_means_alike_is_near(pair: Pair) -> None:
    ours, _ = pair.ask("/v1/embeddings", input=TEXTS[:3])
    cat, kitten, rates = vectors(ours)
    assert cat @ kitten > 0.5 > 0.2 > cat @ rates


@cache
def tokenizer() -> Tokenizer:
    found = Tokenizer.from_str(minilm_tokenizer())
    found.no_padding()
    found.no_truncation()
    return found


def encoded(text: str) -> np.ndarray:
    """The text's vector by the trained weights: BERT, the mean of all tokens, length 1."""
    settings, weights = minilm()
    ids = tokenizer().encode(text).ids
    heads = settings["num_attention_heads"]
    eps = settings["layer_norm_eps"]

    def linear(values: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def norm(values: np.ndarray, name: str) -> np.ndarray:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    def split(values: np.ndarray) -> np.ndarray:
        return values.reshape(len(ids), heads, -1).transpose(1, 0, 2)

    table = "embeddings.{}_embeddings.weight"
    hidden = weights[table.format("word")][ids]
    hidden = hidden + weights[table.format("position")][: len(ids)]
    hidden = norm(hidden + weights[table.format("token_type")][0], "embeddings.LayerNorm")
    for layer in range(settings["num_hidden_layers"]):
        block = f"encoder.layer.{layer}"
        query, key, value = (
            split(linear(hidden, f"{block}.attention.self.{name}"))
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (scores / scores.sum(-1, keepdims=True)) @ value
        seen = seen.transpose(1, 0, 2).reshape(len(ids), -1)
        hidden = norm(
            hidden + linear(seen, f"{block}.attention.output.dense"),
            f"{block}.attention.output.LayerNorm",
        )
        inner = linear(hidden, f"{block}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
        hidden = norm(hidden + linear(inner, f"{block}.output.dense"), f"{block}.output.LayerNorm")
    mean = hidden.mean(0)
    return np.asarray(mean / np.linalg.norm(mean))
