"""Models of random weights, one for each way in which llama.cpp spends memory.

Their tensors and keys are what llama.cpp requires of the architecture; their sizes are such that
weights, cache and scratch are tens of MiB each. Shapes are in ggml's order: columns first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np

WIDTH = 512
HEADS = 8
HEAD = WIDTH // HEADS
LAYERS = 8
HIDDEN = 1536
N_CTX_TRAIN = 32768
VOCABULARY = 16384
WINDOW = 512

Tensor = tuple[str, tuple[int, ...]]
_FLOAT32_NAMES = (
    "norm", "conv1d", "shortconv.conv", "ssm_a", "ssm_d", "lerp", "bias", "sinks", "rope", "_w0",
    "_a0", "_v0", "_k_k", "_k_a", "_r_k", "time_mix_ln", "gate_inp", "position", "token_types",
)  # fmt: skip
"""ggml computes with these in single precision only."""


@attrs.frozen
class Shape:
    """One architecture.

    Args:
      keys: below ``architecture.``, beside the common ones, which they replace.
      tensors: of the whole model, without the embedding of tokens.
      type: of the large matrices.
      vocabulary: tokens; their texts are ``w0``, ``w1`` and so on.
      encodes: it can only embed.
      repacks: llama.cpp lays large matrices out anew, beside the mapped file, and counts both.
      parts: into so many files.
    """

    architecture: str
    keys: dict[str, Any]
    tensors: Callable[[], Iterator[Tensor]]
    type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16
    vocabulary: int = VOCABULARY
    encodes: bool = False
    repacks: bool = False
    parts: int = 1


def attention(block: str, *, heads_kv: int = HEADS, head: int = HEAD) -> Iterator[Tensor]:
    yield f"{block}.attn_norm.weight", (WIDTH,)
    yield f"{block}.attn_q.weight", (WIDTH, HEADS * head)
    yield f"{block}.attn_k.weight", (WIDTH, heads_kv * head)
    yield f"{block}.attn_v.weight", (WIDTH, heads_kv * head)
    yield f"{block}.attn_output.weight", (HEADS * head, WIDTH)


def feed_forward(block: str, hidden: int = HIDDEN) -> Iterator[Tensor]:
    yield f"{block}.ffn_norm.weight", (WIDTH,)
    yield f"{block}.ffn_gate.weight", (WIDTH, hidden)
    yield f"{block}.ffn_up.weight", (WIDTH, hidden)
    yield f"{block}.ffn_down.weight", (hidden, WIDTH)


def experts(block: str, count: int, hidden: int) -> Iterator[Tensor]:
    yield f"{block}.ffn_norm.weight", (WIDTH,)
    yield f"{block}.ffn_gate_inp.weight", (WIDTH, count)
    yield f"{block}.ffn_gate_exps.weight", (WIDTH, hidden, count)
    yield f"{block}.ffn_up_exps.weight", (WIDTH, hidden, count)
    yield f"{block}.ffn_down_exps.weight", (hidden, WIDTH, count)


def head(*, tied: bool = False, vocabulary: int = VOCABULARY) -> Iterator[Tensor]:
    yield "output_norm.weight", (WIDTH,)
    if not tied:
        yield "output.weight", (WIDTH, vocabulary)


def llama(
    heads_kv: int = HEADS, vocabulary: int = VOCABULARY, layers: int = LAYERS
) -> Callable[[], Iterator[Tensor]]:
    def tensors() -> Iterator[Tensor]:
        yield from head(vocabulary=vocabulary)
        for layer in range(layers):
            yield from attention(f"blk.{layer}", heads_kv=heads_kv)
            yield from feed_forward(f"blk.{layer}")

    return tensors


def mixtral() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        yield from attention(f"blk.{layer}", heads_kv=2)
        yield from experts(f"blk.{layer}", 8, 512)


def qwen3() -> Iterator[Tensor]:
    yield from head(tied=True)
    for layer in range(LAYERS):
        yield from attention(f"blk.{layer}", heads_kv=4, head=128)
        yield f"blk.{layer}.attn_q_norm.weight", (128,)
        yield f"blk.{layer}.attn_k_norm.weight", (128,)
        yield from feed_forward(f"blk.{layer}")


def qwen3_experts() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        yield from attention(f"blk.{layer}", heads_kv=2, head=128)
        yield f"blk.{layer}.attn_q_norm.weight", (128,)
        yield f"blk.{layer}.attn_k_norm.weight", (128,)
        yield from experts(f"blk.{layer}", 16, 256)


def phi3() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (WIDTH,)
        yield f"{block}.attn_qkv.weight", (WIDTH, 3 * WIDTH)
        yield f"{block}.attn_output.weight", (WIDTH, WIDTH)
        yield f"{block}.ffn_norm.weight", (WIDTH,)
        yield f"{block}.ffn_up.weight", (WIDTH, 2 * HIDDEN)
        yield f"{block}.ffn_down.weight", (HIDDEN, WIDTH)


def gemma2() -> Iterator[Tensor]:
    yield from head(tied=True)
    for layer in range(LAYERS):
        yield from attention(f"blk.{layer}", heads_kv=4)
        yield f"blk.{layer}.post_attention_norm.weight", (WIDTH,)
        yield from feed_forward(f"blk.{layer}")
        yield f"blk.{layer}.post_ffw_norm.weight", (WIDTH,)


def gemma3() -> Iterator[Tensor]:
    yield from gemma2()
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_q_norm.weight", (HEAD,)
        yield f"blk.{layer}.attn_k_norm.weight", (HEAD,)


def gpt_oss() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield from attention(block, heads_kv=2)
        yield f"{block}.attn_output.bias", (WIDTH,)
        yield f"{block}.post_attention_norm.weight", (WIDTH,)
        yield f"{block}.attn_sinks.weight", (HEADS,)
        yield from (t for t in experts(block, 8, 512) if "norm" not in t[0])
        yield f"{block}.ffn_gate_inp.bias", (8,)
        yield f"{block}.ffn_gate_exps.bias", (512, 8)
        yield f"{block}.ffn_up_exps.bias", (512, 8)
        yield f"{block}.ffn_down_exps.bias", (WIDTH, 8)


MLA_Q, MLA_KV, MLA_ROPE, MLA_NOPE, MLA_VALUE = 256, 256, 32, 64, 64


def deepseek2() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (WIDTH,)
        yield f"{block}.attn_q_a_norm.weight", (MLA_Q,)
        yield f"{block}.attn_kv_a_norm.weight", (MLA_KV,)
        yield f"{block}.attn_q_a.weight", (WIDTH, MLA_Q)
        yield f"{block}.attn_q_b.weight", (MLA_Q, HEADS * (MLA_NOPE + MLA_ROPE))
        yield f"{block}.attn_kv_a_mqa.weight", (WIDTH, MLA_KV + MLA_ROPE)
        yield f"{block}.attn_k_b.weight", (MLA_NOPE, MLA_KV, HEADS)
        yield f"{block}.attn_v_b.weight", (MLA_KV, MLA_VALUE, HEADS)
        yield f"{block}.attn_output.weight", (HEADS * MLA_VALUE, WIDTH)
        if layer == 0:
            yield from feed_forward(block)
            continue
        yield from experts(block, 8, 384)
        yield f"{block}.ffn_gate_shexp.weight", (WIDTH, 384)
        yield f"{block}.ffn_up_shexp.weight", (WIDTH, 384)
        yield f"{block}.ffn_down_shexp.weight", (384, WIDTH)


INNER, STATE, RANK = 2 * WIDTH, 16, 32


def mamba_block(block: str, *, has_norms: bool) -> Iterator[Tensor]:
    yield f"{block}.attn_norm.weight", (WIDTH,)
    yield f"{block}.ssm_in.weight", (WIDTH, 2 * INNER)
    yield f"{block}.ssm_conv1d.weight", (4, INNER)
    yield f"{block}.ssm_conv1d.bias", (INNER,)
    yield f"{block}.ssm_x.weight", (INNER, RANK + 2 * STATE)
    yield f"{block}.ssm_dt.weight", (RANK, INNER)
    yield f"{block}.ssm_dt.bias", (INNER,)
    yield f"{block}.ssm_a", (STATE, INNER)
    yield f"{block}.ssm_d", (INNER,)
    yield f"{block}.ssm_out.weight", (INNER, WIDTH)
    if has_norms:
        yield f"{block}.ssm_dt_norm.weight", (RANK,)
        yield f"{block}.ssm_b_norm.weight", (STATE,)
        yield f"{block}.ssm_c_norm.weight", (STATE,)


def mamba() -> Iterator[Tensor]:
    yield from head()
    for layer in range(16):
        yield from mamba_block(f"blk.{layer}", has_norms=False)


def jamba() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        if layer % 4 == 3:
            yield from attention(block, heads_kv=2)
        else:
            yield from mamba_block(block, has_norms=True)
        yield from experts(block, 4, 512) if layer % 2 else feed_forward(block, 512)


STATE2, HEADS2, GROUPS2 = 128, 16, 1
MIXED2 = INNER + 2 * GROUPS2 * STATE2


def mamba2_block(block: str) -> Iterator[Tensor]:
    yield f"{block}.ssm_in.weight", (WIDTH, INNER + MIXED2 + HEADS2)
    yield f"{block}.ssm_conv1d.weight", (4, MIXED2)
    yield f"{block}.ssm_conv1d.bias", (MIXED2,)
    yield f"{block}.ssm_dt.bias", (HEADS2,)
    yield f"{block}.ssm_a", (1, HEADS2)
    yield f"{block}.ssm_d", (1, HEADS2)
    yield f"{block}.ssm_norm.weight", (INNER // GROUPS2, GROUPS2)
    yield f"{block}.ssm_out.weight", (INNER, WIDTH)


def mamba2() -> Iterator[Tensor]:
    yield from head()
    for layer in range(16):
        yield f"blk.{layer}.attn_norm.weight", (WIDTH,)
        yield from mamba2_block(f"blk.{layer}")


def falcon_h1() -> Iterator[Tensor]:
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield from attention(block, heads_kv=2)
        yield from mamba2_block(block)
        yield f"{block}.ffn_norm", (WIDTH,)
        yield from (t for t in feed_forward(block) if "norm" not in t[0])


def lfm2() -> Iterator[Tensor]:
    yield "token_embd_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield from feed_forward(block)
        if layer % 4 == 3:
            yield from attention(block, heads_kv=2)
            yield f"{block}.attn_q_norm.weight", (HEAD,)
            yield f"{block}.attn_k_norm.weight", (HEAD,)
        else:
            yield f"{block}.attn_norm.weight", (WIDTH,)
            yield f"{block}.shortconv.conv.weight", (3, WIDTH)
            yield f"{block}.shortconv.in_proj.weight", (WIDTH, 3 * WIDTH)
            yield f"{block}.shortconv.out_proj.weight", (WIDTH, WIDTH)


def rwkv7() -> Iterator[Tensor]:
    rank = 64
    yield "token_embd_norm.weight", (WIDTH,)
    yield "token_embd_norm.bias", (WIDTH,)
    yield "output_norm.bias", (WIDTH,)
    yield from head()
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            yield f"{block}.{norm}.weight", (WIDTH,)
            yield f"{block}.{norm}.bias", (WIDTH,)
        for name in ("w", "a", "v"):
            yield f"{block}.time_mix_{name}0.weight", (WIDTH,)
            yield f"{block}.time_mix_{name}1.weight", (WIDTH, rank)
            yield f"{block}.time_mix_{name}2.weight", (rank, WIDTH)
        yield f"{block}.time_mix_g1.weight", (WIDTH, rank)
        yield f"{block}.time_mix_g2.weight", (rank, WIDTH)
        yield f"{block}.time_mix_lerp_fused.weight", (WIDTH, 1, 1, 6)
        for name in ("k_k", "k_a", "r_k"):
            yield f"{block}.time_mix_{name}.weight", (WIDTH,)
        for name in ("key", "value", "receptance", "output"):
            yield f"{block}.time_mix_{name}.weight", (WIDTH, WIDTH)
        yield f"{block}.channel_mix_lerp_k.weight", (WIDTH, 1, 1)
        yield f"{block}.channel_mix_key.weight", (WIDTH, HIDDEN)
        yield f"{block}.channel_mix_value.weight", (HIDDEN, WIDTH)


def bert() -> Iterator[Tensor]:
    yield "token_types.weight", (WIDTH, 2)
    yield "position_embd.weight", (WIDTH, 2048)
    yield "token_embd_norm.weight", (WIDTH,)
    yield "token_embd_norm.bias", (WIDTH,)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ):
            yield f"{block}.{name}.weight", (columns, rows)
            yield f"{block}.{name}.bias", (rows,)
        for norm in ("attn_output_norm", "layer_output_norm"):
            yield f"{block}.{norm}.weight", (WIDTH,)
            yield f"{block}.{norm}.bias", (WIDTH,)


_SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": INNER}
_SSM1 = _SSM | {"ssm.state_size": STATE, "ssm.time_step_rank": RANK}
_SSM2 = _SSM | {
    "ssm.state_size": STATE2,
    "ssm.time_step_rank": HEADS2,
    "ssm.group_count": GROUPS2,
}
_HEAD_128 = {"attention.key_length": 128, "attention.value_length": 128}
_WINDOWED = {"attention.sliding_window": WINDOW}

SHAPES: dict[str, Shape] = {
    "plain": Shape("llama", {}, llama()),
    "GQA": Shape("llama", {"attention.head_count_kv": 2}, llama(2)),
    "Q4_0": Shape(
        "llama",
        {"attention.head_count_kv": 2},
        llama(2),
        type=gguf.GGMLQuantizationType.Q4_0,
        repacks=True,
    ),
    "split": Shape("llama", {"attention.head_count_kv": 2}, llama(2), parts=3),
    "128k vocabulary": Shape(
        "llama",
        {"attention.head_count_kv": 2, "block_count": 2},
        llama(2, 131072, 2),
        vocabulary=131072,
    ),
    "MoE, Mixtral": Shape(
        "llama",
        {
            "attention.head_count_kv": 2,
            "feed_forward_length": 512,
            "expert_count": 8,
            "expert_used_count": 2,
        },
        mixtral,
    ),
    "Qwen 3": Shape("qwen3", {"attention.head_count_kv": 4, **_HEAD_128}, qwen3),
    "MoE, Qwen 3": Shape(
        "qwen3moe",
        {
            "attention.head_count_kv": 2,
            "expert_count": 16,
            "expert_used_count": 4,
            "expert_feed_forward_length": 256,
            **_HEAD_128,
        },
        qwen3_experts,
    ),
    "Phi 3": Shape("phi3", {"rope.dimension_count": HEAD}, phi3),
    "MLA, DeepSeek 2": Shape(
        "deepseek2",
        {
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": MLA_Q,
            "attention.kv_lora_rank": MLA_KV,
            "attention.key_length": MLA_KV + MLA_ROPE,
            "attention.value_length": MLA_KV,
            "attention.key_length_mla": MLA_NOPE + MLA_ROPE,
            "attention.value_length_mla": MLA_VALUE,
            "rope.dimension_count": MLA_ROPE,
            "leading_dense_block_count": 1,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": 384,
            "expert_weights_scale": 1.0,
        },
        deepseek2,
    ),
    "window, Gemma 2": Shape(
        "gemma2",
        {
            "attention.head_count_kv": 4,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            **_WINDOWED,
        },
        gemma2,
    ),
    "window, Gemma 3": Shape(
        "gemma3",
        {
            "attention.head_count_kv": 4,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            **_WINDOWED,
        },
        gemma3,
    ),
    "window and MoE, gpt-oss": Shape(
        "gpt-oss",
        {
            "attention.head_count_kv": 2,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "rope.dimension_count": HEAD,
            "expert_count": 8,
            "expert_used_count": 2,
            "expert_feed_forward_length": 512,
            "attention.sliding_window": 128,
        },
        gpt_oss,
    ),
    "recurrent, Mamba": Shape(
        "mamba",
        {"block_count": 16, "attention.head_count": 0, "feed_forward_length": 0, **_SSM1},
        mamba,
    ),
    "recurrent, Mamba 2": Shape(
        "mamba2",
        {"block_count": 16, "attention.head_count": 0, "feed_forward_length": 0, **_SSM2},
        mamba2,
    ),
    "recurrent, RWKV 7": Shape(
        "rwkv7",
        {
            "attention.head_count": 0,
            "wkv.head_size": HEAD,
            "attention.decay_lora_rank": 64,
            "attention.iclr_lora_rank": 64,
            "attention.value_residual_mix_lora_rank": 64,
            "attention.gate_lora_rank": 64,
            "attention.layer_norm_epsilon": 1e-5,
        },
        rwkv7,
    ),
    "hybrid and MoE, Jamba": Shape(
        "jamba",
        {
            "attention.head_count_kv": [0, 0, 0, 2] * 2,
            "feed_forward_length": 512,
            "expert_count": 4,
            "expert_used_count": 2,
            **_SSM1,
        },
        jamba,
    ),
    "hybrid, Falcon H1": Shape("falcon-h1", {"attention.head_count_kv": 2, **_SSM2}, falcon_h1),
    "hybrid, LFM 2": Shape(
        "lfm2", {"attention.head_count_kv": [0, 0, 0, 2] * 2, "shortconv.l_cache": 3}, lfm2
    ),
    "encoder, BERT": Shape(
        "bert",
        {
            "context_length": 2048,
            "attention.causal": False,
            "attention.layer_norm_epsilon": 1e-12,
            "pooling_type": 1,
        },
        bert,
        encodes=True,
    ),
}


def write(shape: Shape, folder: Path, name: str) -> list[Path]:
    """The model's files, the first one first."""
    tensors = [("token_embd.weight", (WIDTH, shape.vocabulary)), *shape.tensors()]
    count = -(-len(tensors) // shape.parts)
    paths = []
    for part in range(shape.parts):
        suffix = f"-{part + 1:05}-of-{shape.parts:05}" if shape.parts > 1 else ""
        path = folder / f"{name}{suffix}.gguf"
        writer = gguf.GGUFWriter(path, shape.architecture)
        if shape.parts > 1:
            writer.add_uint16("split.no", part)
            writer.add_uint16("split.count", shape.parts)
            writer.add_int32("split.tensors.count", len(tensors))
        if part == 0:
            _add_keys(writer, shape)
            _add_vocabulary(writer, shape)
        for tensor, dimensions in tensors[part * count : (part + 1) * count]:
            _add_tensor(writer, tensor, dimensions, shape.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def _add_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    keys: dict[str, Any] = {
        "context_length": N_CTX_TRAIN,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": shape.vocabulary,
        **shape.keys,
    }
    for key, value in keys.items():
        name = f"{shape.architecture}.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case _:
                writer.add_array(name, value)


def _add_vocabulary(writer: gguf.GGUFWriter, shape: Shape) -> None:
    special: Sequence[str] = ("<unk>", "<s>", "</s>")
    if shape.encodes:
        special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = [f"\u2581w{number}" for number in range(shape.vocabulary - len(special))]
    kinds = [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * len(words)
    kinds[1 if shape.encodes else 0] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("bert" if shape.encodes else "llama")
    writer.add_token_list([*special, *words])
    writer.add_token_types(kinds)
    if shape.encodes:
        writer.add_token_type_count(2)
        writer.add_unk_token_id(1)
        writer.add_bos_token_id(2)
        writer.add_sep_token_id(3)
    else:
        writer.add_token_scores([-float(number) for number in range(shape.vocabulary)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    dimensions: tuple[int, ...],
    kind: gguf.GGMLQuantizationType,
) -> None:
    """Random weights; a block of them, repeated."""
    random = np.random.default_rng(len(name))
    block = random.normal(0, 0.02, 1 << 14).astype(np.float32)
    values = np.resize(block, dimensions[::-1])
    if any(part in name for part in _FLOAT32_NAMES) or len(dimensions) == 1:
        writer.add_tensor(name, values)
    elif kind is gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
