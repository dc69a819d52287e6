"""LoRA adapters of random weights, which change whatever a model says."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_lora(path: Path, model: Path, *, seed: int = 1) -> Path:
    """Write an adapter of rank 2 for the value projections of ``model``.

    Queries and keys only choose what is attended to: a model that is sure of its next token may say
    the same with them changed. Values are what it then works with.
    """
    reader = gguf.GGUFReader(model)
    architecture = reader.get_field("general.architecture")
    assert architecture is not None
    dice = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture.contents())
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 2.0)
    for tensor in reader.tensors:
        if tensor.name.endswith("attn_v.weight"):
            width_in, width_out = map(int, tensor.shape)
            a, b = dice.normal(0, 0.3, (2, width_in)), dice.normal(0, 0.3, (width_out, 2))
            writer.add_tensor(f"{tensor.name}.lora_a", a.astype(np.float32))
            writer.add_tensor(f"{tensor.name}.lora_b", b.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
