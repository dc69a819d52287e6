"""Tiny encoders of random weights: what the bundled model, a decoder, cannot show.

Their vectors mean nothing, but they are computed like those of a real model, so that two ways to
compute the same vector can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
WORDS = ("red", "green", "blue", "one", "two", "three", "sun", "rain", "snow", "wind", "sea", "sky")
WIDTH = 32
HEADS = 4
LAYERS = 2
FEED_FORWARD = 64
N_CTX_TRAIN = 64


def write_bert(
    path: Path,
    *,
    seed: int = 1,
    pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
    classes: int = 0,
    labels: Sequence[str] = (),
    chat_template: str | None = None,
) -> Path:
    """A BERT of 2 layers whose words are ``WORDS``; returns ``path``.

    Args:
      pooling: the model's own; None leaves it out of the file.
      classes: width of a classification head, for rank pooling; 0 for no head.
      labels: names of the classes; needed when there is more than one.
      chat_template: encoders have none, but files are what people make of them.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("tiny encoder")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    if labels:
        writer.add_classifier_output_labels(labels)
    _write_vocabulary(writer)

    def tensor(name: str, *shape: int, around: float = 0.0) -> None:
        values = around + random.normal(0, 0.4, shape)
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str, width: int) -> None:
        tensor(f"{name}.weight", width, around=1.0)
        tensor(f"{name}.bias", width)

    tensor("token_embd.weight", 5 + len(WORDS), WIDTH)
    tensor("token_types.weight", 2, WIDTH)
    tensor("position_embd.weight", N_CTX_TRAIN, WIDTH)
    norm("token_embd_norm", WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"{block}.{name}.weight", WIDTH, WIDTH)
            tensor(f"{block}.{name}.bias", WIDTH)
        norm(f"{block}.attn_output_norm", WIDTH)
        tensor(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        tensor(f"{block}.ffn_up.bias", FEED_FORWARD)
        tensor(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)
        tensor(f"{block}.ffn_down.bias", WIDTH)
        norm(f"{block}.layer_output_norm", WIDTH)
    if classes:
        tensor("cls.weight", WIDTH, WIDTH)
        tensor("cls.bias", WIDTH)
        tensor("cls.output.weight", classes, WIDTH)
        tensor("cls.output.bias", classes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Whole words only; llama.cpp marks the beginning of a word with U+2581."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"\u2581{word}" for word in WORDS)]
    kinds = [gguf.TokenType.CONTROL] * 5 + [gguf.TokenType.NORMAL] * len(WORDS)
    kinds[UNKNOWN] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_pad_token_id(PAD)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(CLS)
    writer.add_sep_token_id(SEP)
    writer.add_mask_token_id(MASK)
