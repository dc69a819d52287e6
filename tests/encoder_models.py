"""Tiny encoders of random weights: what the bundled model, a decoder, cannot show.

Their vectors mean nothing, but they are computed like those of a real model, so that two ways to
compute the same vector can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
WORDS = ("red", "green", "blue", "one", "two", "three", "sun", "rain", "snow", "wind", "sea", "sky")
VOCABULARY = 5 + len(WORDS)
WIDTH = 32
HEADS = 4
LAYERS = 2
FEED_FORWARD = 64
N_CTX_TRAIN = 64
WINDOW = 8
BUCKETS = 32


class _File:
    """A model file that is being written, with random weights."""

    def __init__(self, path: Path, architecture: str, *, seed: int, layers: int = LAYERS) -> None:
        self._random = np.random.default_rng(seed)
        self.writer = writer = gguf.GGUFWriter(path, architecture)
        writer.add_name("tiny encoder")
        writer.add_context_length(N_CTX_TRAIN)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(FEED_FORWARD)
        writer.add_head_count(HEADS)
        _write_vocabulary(writer)
        self.tensor("token_embd.weight", VOCABULARY, WIDTH)

    def tensor(self, name: str, *shape: int, around: float = 0.0) -> None:
        values = around + self._random.normal(0, 0.4, shape)
        self.writer.add_tensor(name, values.astype(np.float32))

    def linear(self, name: str, rows: int, columns: int, *, bias: bool) -> None:
        self.tensor(f"{name}.weight", rows, columns)
        if bias:
            self.tensor(f"{name}.bias", rows)

    def norm(self, name: str, width: int = WIDTH, *, bias: bool) -> None:
        self.tensor(f"{name}.weight", width, around=1.0)
        if bias:
            self.tensor(f"{name}.bias", width)

    def attention(self, block: str, *, bias: bool, output: str = "attn_output") -> None:
        for name in ("attn_q", "attn_k", "attn_v", output):
            self.linear(f"{block}.{name}", WIDTH, WIDTH, bias=bias)

    def feed_forward(self, block: str, *, bias: bool, gate: bool) -> None:
        self.linear(f"{block}.ffn_up", FEED_FORWARD, WIDTH, bias=bias)
        self.linear(f"{block}.ffn_down", WIDTH, FEED_FORWARD, bias=bias)
        if gate:
            self.linear(f"{block}.ffn_gate", FEED_FORWARD, WIDTH, bias=False)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


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
    file = _File(path, "bert", seed=seed)
    if pooling is not None:
        file.writer.add_pooling_type(pooling)
    if chat_template is not None:
        file.writer.add_chat_template(chat_template)
    if labels:
        file.writer.add_classifier_output_labels(labels)
    _write_bert_begin(file)
    file.tensor("position_embd.weight", N_CTX_TRAIN, WIDTH)
    _write_bert_layers(file, bias=True, gate=False)
    if classes:
        file.linear("cls", WIDTH, WIDTH, bias=True)
        file.linear("cls.output", classes, WIDTH, bias=True)
    file.close()
    return path


def write_nomic_bert(path: Path) -> Path:
    """Rotated positions, a gated feed-forward network, no biases."""
    file = _File(path, "nomic-bert", seed=2)
    file.writer.add_rope_freq_base(1000.0)
    _write_bert_begin(file)
    _write_bert_layers(file, bias=False, gate=True)
    file.close()
    return path


def write_jina_bert(path: Path) -> Path:
    """Distances as a bias of the attention (ALiBi)."""
    file = _File(path, "jina-bert-v2", seed=3)
    _write_bert_begin(file)
    _write_bert_layers(file, bias=True, gate=True)
    file.close()
    return path


def write_modern_bert(path: Path) -> Path:
    """Every third layer sees everything, the others ``WINDOW`` tokens around."""
    layers = 4
    file = _File(path, "modern-bert", seed=4, layers=layers)
    file.writer.add_causal_attention(False)
    file.writer.add_layer_norm_eps(1e-5)
    file.writer.add_sliding_window(WINDOW)
    file.writer.add_rope_freq_base(1000.0)
    file.writer.add_rope_freq_base_swa(100.0)
    file.norm("token_embd_norm", bias=False)
    file.norm("output_norm", bias=False)
    for layer in range(layers):
        block = f"blk.{layer}"
        if layer:
            file.norm(f"{block}.attn_norm", bias=False)
        file.linear(f"{block}.attn_qkv", 3 * WIDTH, WIDTH, bias=False)
        file.linear(f"{block}.attn_output", WIDTH, WIDTH, bias=False)
        file.linear(f"{block}.ffn_up", 2 * FEED_FORWARD, WIDTH, bias=False)
        file.linear(f"{block}.ffn_down", WIDTH, FEED_FORWARD, bias=False)
        file.norm(f"{block}.ffn_norm", bias=False)
    file.close()
    return path


def write_gemma_embedding(path: Path) -> Path:
    """Gemma 3 that looks both ways: windows in five layers of six."""
    layers = 6
    file = _File(path, "gemma-embedding", seed=5, layers=layers)
    file.writer.add_layer_norm_rms_eps(1e-6)
    file.writer.add_sliding_window(WINDOW)
    file.writer.add_head_count_kv(HEADS)
    file.writer.add_key_length(WIDTH // HEADS)
    file.writer.add_value_length(WIDTH // HEADS)
    file.writer.add_rope_freq_base(1000.0)
    file.norm("output_norm", bias=False)
    for layer in range(layers):
        block = f"blk.{layer}"
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            file.norm(f"{block}.{name}", bias=False)
        for name in ("attn_q_norm", "attn_k_norm"):
            file.norm(f"{block}.{name}", WIDTH // HEADS, bias=False)
        file.attention(block, bias=False)
        file.feed_forward(block, bias=False, gate=True)
    file.close()
    return path


def write_t5_encoder(path: Path) -> Path:
    """The encoding half of a T5: distances in ``BUCKETS``, each with a learned bias."""
    file = _File(path, "t5encoder", seed=6)
    _write_t5_half(file, "enc")
    file.close()
    return path


def write_t5(path: Path) -> Path:
    """A whole T5, whose encoder has the weights of :func:`write_t5_encoder`."""
    file = _File(path, "t5", seed=6)
    file.writer.add_decoder_start_token_id(PAD)
    _write_t5_half(file, "enc")
    _write_t5_half(file, "dec")
    for layer in range(LAYERS):
        file.norm(f"dec.blk.{layer}.cross_attn_norm", bias=False)
        for name in ("q", "k", "v", "o"):
            file.linear(f"dec.blk.{layer}.cross_attn_{name}", WIDTH, WIDTH, bias=False)
    file.close()
    return path


ENCODERS: dict[str, Callable[[Path], Path]] = {
    "bert": write_bert,
    "nomic-bert": write_nomic_bert,
    "jina-bert-v2": write_jina_bert,
    "modern-bert": write_modern_bert,
    "gemma-embedding": write_gemma_embedding,
    "t5encoder": write_t5_encoder,
    "t5": write_t5,
}
"""What writes a model of each kind, by its architecture; all of ``N_CTX_TRAIN`` tokens."""


def _write_bert_begin(file: _File) -> None:
    file.writer.add_causal_attention(False)
    file.writer.add_layer_norm_eps(1e-12)
    file.tensor("token_types.weight", 2, WIDTH)
    file.norm("token_embd_norm", bias=True)


def _write_bert_layers(file: _File, *, bias: bool, gate: bool) -> None:
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        file.attention(block, bias=bias)
        file.norm(f"{block}.attn_output_norm", bias=True)
        file.feed_forward(block, bias=bias, gate=gate)
        file.norm(f"{block}.layer_output_norm", bias=True)


def _write_t5_half(file: _File, half: str) -> None:
    if half == "enc":
        file.writer.add_layer_norm_rms_eps(1e-6)
        file.writer.add_relative_attn_buckets_count(BUCKETS)
        file.writer.add_key_length(WIDTH // HEADS)
        file.writer.add_value_length(WIDTH // HEADS)
    file.norm(f"{half}.output_norm", bias=False)
    file.tensor(f"{half}.blk.0.attn_rel_b.weight", BUCKETS, HEADS)
    for layer in range(LAYERS):
        block = f"{half}.blk.{layer}"
        file.norm(f"{block}.attn_norm", bias=False)
        file.attention(block, bias=False, output="attn_o")
        file.norm(f"{block}.ffn_norm", bias=False)
        file.feed_forward(block, bias=False, gate=True)


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
