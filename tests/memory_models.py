"""Tiny models of random weights whose memories cannot be cut anywhere: sliding, recurrent, hybrid.

What they say means nothing, but it depends on every token before, so a prefix that was reused
wrongly shows in the answer.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

VOCABULARY = 64
WIDTH = 64
HEADS = 4
FEED_FORWARD = 96
WINDOW = 16
N_CTX_TRAIN = 1024
STATE = 8


class _Model:
    def __init__(self, path: Path, architecture: str, layers: int) -> None:
        self._random = np.random.default_rng(7)
        self.writer = writer = gguf.GGUFWriter(path, architecture)
        writer.add_name(f"tiny {architecture}")
        writer.add_context_length(N_CTX_TRAIN)
        writer.add_embedding_length(WIDTH)
        writer.add_block_count(layers)
        writer.add_vocab_size(VOCABULARY)
        writer.add_tokenizer_model("llama")
        tokens = ["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(VOCABULARY - 3))]
        kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2
        kinds += [gguf.TokenType.NORMAL] * (VOCABULARY - 3)
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * VOCABULARY)
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        self.tensor("token_embd.weight", VOCABULARY, WIDTH, scale=1.0)

    def tensor(self, name: str, *shape: int, around: float = 0.0, scale: float = 0.25) -> None:
        values = around + self._random.normal(0, scale, shape)
        self.writer.add_tensor(name, values.astype(np.float32))

    def feed_forward(self, block: str) -> None:
        self.tensor(f"{block}.ffn_gate.weight", FEED_FORWARD, WIDTH)
        self.tensor(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        self.tensor(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)

    def attention(self, block: str, kv_width: int) -> None:
        self.tensor(f"{block}.attn_q.weight", WIDTH, WIDTH)
        self.tensor(f"{block}.attn_k.weight", kv_width, WIDTH)
        self.tensor(f"{block}.attn_v.weight", kv_width, WIDTH)
        self.tensor(f"{block}.attn_output.weight", WIDTH, WIDTH)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_sliding(path: Path) -> Path:
    """Three layers of four look back ``WINDOW`` positions only (the architecture of Cohere 2)."""
    model = _Model(path, "cohere2", 4)
    model.writer.add_feed_forward_length(FEED_FORWARD)
    model.writer.add_head_count(HEADS)
    model.writer.add_head_count_kv(HEADS)
    model.writer.add_layer_norm_eps(1e-5)
    model.writer.add_logit_scale(1.0)
    model.writer.add_sliding_window(WINDOW)
    model.writer.add_rope_dimension_count(WIDTH // HEADS)
    model.tensor("output_norm.weight", WIDTH, around=1.0)
    for layer in range(4):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", WIDTH, around=1.0)
        model.attention(block, WIDTH)
        model.feed_forward(block)
    model.close()
    return path


def write_recurrent(path: Path) -> Path:
    """Two state-space layers (the architecture of Mamba)."""
    inner, rank = 2 * WIDTH, 4
    model = _Model(path, "mamba", 2)
    model.writer.add_feed_forward_length(0)
    model.writer.add_head_count(0)
    model.writer.add_ssm_conv_kernel(4)
    model.writer.add_ssm_inner_size(inner)
    model.writer.add_ssm_state_size(STATE)
    model.writer.add_ssm_time_step_rank(rank)
    model.writer.add_layer_norm_rms_eps(1e-5)
    model.tensor("output_norm.weight", WIDTH, around=1.0)
    for layer in range(2):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", WIDTH, around=1.0)
        model.tensor(f"{block}.ssm_in.weight", 2 * inner, WIDTH)
        model.tensor(f"{block}.ssm_conv1d.weight", inner, 4)
        model.tensor(f"{block}.ssm_conv1d.bias", inner)
        model.tensor(f"{block}.ssm_x.weight", rank + 2 * STATE, inner)
        model.tensor(f"{block}.ssm_dt.weight", inner, rank)
        model.tensor(f"{block}.ssm_dt.bias", inner)
        model.tensor(f"{block}.ssm_a", inner, STATE, around=-1.0)
        model.tensor(f"{block}.ssm_d", inner)
        model.tensor(f"{block}.ssm_out.weight", WIDTH, inner)
    model.close()
    return path


def write_hybrid(path: Path) -> Path:
    """A convolution with a state, then attention, twice (the architecture of LFM 2)."""
    heads_kv = [0, HEADS, 0, HEADS]
    model = _Model(path, "lfm2", 4)
    model.writer.add_feed_forward_length(FEED_FORWARD)
    model.writer.add_head_count(HEADS)
    model.writer.add_head_count_kv(heads_kv)
    model.writer.add_layer_norm_rms_eps(1e-5)
    model.writer.add_shortconv_l_cache(3)
    model.tensor("token_embd_norm.weight", WIDTH, around=1.0)
    for layer, heads in enumerate(heads_kv):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", WIDTH, around=1.0)
        model.tensor(f"{block}.ffn_norm.weight", WIDTH, around=1.0)
        model.feed_forward(block)
        if heads:
            model.attention(block, WIDTH)
            model.tensor(f"{block}.attn_q_norm.weight", WIDTH // HEADS, around=1.0)
            model.tensor(f"{block}.attn_k_norm.weight", WIDTH // HEADS, around=1.0)
        else:
            model.tensor(f"{block}.shortconv.conv.weight", WIDTH, 3)
            model.tensor(f"{block}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
            model.tensor(f"{block}.shortconv.out_proj.weight", WIDTH, WIDTH)
    model.close()
    return path
