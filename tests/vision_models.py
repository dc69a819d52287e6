"""Tiny vision projectors of random weights, and images to show them.

What they see means nothing, but it is computed like that of a real model: the same image gives the
same embeddings, another image others, so that the whole path can be watched.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from PIL import Image

from sound_models import SoundKind, add_ear

Kind = Literal["janus_pro", "gemma3", "qwen2vl"]
PATCH = 4
WIDTH = 16
HEADS = 2
FEED_FORWARD = 32
DEMO_MODEL_WIDTH = 256


def write_projector(
    path: Path,
    *,
    kind: Kind = "janus_pro",
    side: int = 24,
    layers: int = 1,
    model_width: int = DEMO_MODEL_WIDTH,
    seed: int = 1,
    hears: SoundKind | None = None,
) -> Path:
    """A projector for models of ``model_width``; returns ``path``.

    Args:
      kind: ``janus_pro`` makes ``(side / 4) ** 2`` tokens of each image, which a model reads one
        after the other; ``gemma3`` a quarter of them, which it reads all at once; ``qwen2vl`` one
        of each 8 x 8 pixels, in rows and columns, for models that number them so.
      side: pixels to which images are scaled, a multiple of 8; ``qwen2vl`` leaves them.
      layers: of the encoder; more take longer.
      hears: it has an encoder for sounds as well.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("tiny projector")
    writer.add_bool("clip.has_vision_encoder", True)
    name_of = {"qwen2vl": "qwen2vl_merger"}
    if hears is None:
        writer.add_string("clip.projector_type", name_of.get(kind, kind))
    else:
        writer.add_string("clip.vision.projector_type", name_of.get(kind, kind))
        add_ear(writer, hears)
    writer.add_bool("clip.use_gelu", True)
    for name, number in {
        "image_size": side,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "block_count": layers,
        "projection_dim": model_width,
        "attention.head_count": HEADS,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    if kind == "gemma3":
        writer.add_uint32("clip.vision.projector.scale_factor", 2)

    def tensor(name: str, *shape: int, around: float = 0.0) -> None:
        values = around + random.normal(0, 0.3, shape)
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str) -> None:
        tensor(f"{name}.weight", WIDTH, around=1.0)
        tensor(f"{name}.bias", WIDTH)

    tensor("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    if kind == "qwen2vl":
        tensor("v.patch_embd.weight.1", WIDTH, 3, PATCH, PATCH)
    else:
        tensor("v.patch_embd.bias", WIDTH)
        tensor("v.position_embd.weight", (side // PATCH) ** 2, WIDTH)
    for layer in range(layers):
        block = f"v.blk.{layer}"
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensor(f"{block}.{name}.weight", WIDTH, WIDTH)
            tensor(f"{block}.{name}.bias", WIDTH)
        tensor(f"{block}.ffn_up.weight", FEED_FORWARD, WIDTH)
        tensor(f"{block}.ffn_up.bias", FEED_FORWARD)
        tensor(f"{block}.ffn_down.weight", WIDTH, FEED_FORWARD)
        tensor(f"{block}.ffn_down.bias", WIDTH)
    norm("v.post_ln")
    if kind == "gemma3":
        tensor("mm.soft_emb_norm.weight", WIDTH, around=1.0)
        tensor("mm.input_projection.weight", WIDTH, model_width)
    elif kind == "qwen2vl":
        tensor("mm.0.weight", 4 * WIDTH, 4 * WIDTH)
        tensor("mm.0.bias", 4 * WIDTH)
        tensor("mm.2.weight", model_width, 4 * WIDTH)
        tensor("mm.2.bias", model_width)
    else:
        tensor("mm.0.weight", WIDTH, WIDTH)
        tensor("mm.0.bias", WIDTH)
        tensor("mm.1.weight", model_width, WIDTH)
        tensor("mm.1.bias", model_width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_planar_model(path: Path, vocabulary: Path) -> Path:
    """A language model of random weights, as wide as the bundled one, that numbers images in two
    dimensions (M-RoPE, the architecture of Qwen2-VL); it has the tokens of ``vocabulary``."""
    random = np.random.default_rng(5)
    reader = gguf.GGUFReader(vocabulary)
    width, heads, feed_forward = DEMO_MODEL_WIDTH, 4, 128
    writer = gguf.GGUFWriter(path, "qwen2vl")
    writer.add_name("tiny planar model")
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_sections([8, 12, 12, 0])
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=of)

    def tensor(name: str, *shape: int, around: float = 0.0, scale: float = 0.1) -> None:
        values = around + random.normal(0, scale, shape)
        writer.add_tensor(name, values.astype(np.float32))

    tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    tensor("token_embd.weight", tokens, width, scale=1.0)
    tensor("output_norm.weight", width, around=1.0)
    for layer in range(2):
        block = f"blk.{layer}"
        tensor(f"{block}.attn_norm.weight", width, around=1.0)
        tensor(f"{block}.ffn_norm.weight", width, around=1.0)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"{block}.{name}.weight", width, width)
        tensor(f"{block}.ffn_gate.weight", feed_forward, width)
        tensor(f"{block}.ffn_up.weight", feed_forward, width)
        tensor(f"{block}.ffn_down.weight", width, feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def picture(colour: tuple[int, int, int], *, width: int = 32, height: int = 32) -> Image.Image:
    """A gradient towards ``colour``: no two colours give the same picture."""
    down = np.linspace(0, 1, height)[:, None, None]
    across = np.linspace(0.2, 1, width)[None, :, None]
    pixels = down * across * np.array(colour)[None, None, :]
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
