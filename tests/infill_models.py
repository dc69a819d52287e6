"""The bundled model with the tokens of fill in the middle, which it was not trained to know.

What it writes into a gap means nothing, but it is given the tokens that a real model would be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import gguf
import numpy as np

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

PREFIX: Final = "<|fim_prefix|>"
SUFFIX: Final = "<|fim_suffix|>"
MIDDLE: Final = "<|fim_middle|>"
REPOSITORY: Final = "<|repo_name|>"
SEPARATOR: Final = "<|file_sep|>"
GAP: Final = (PREFIX, SUFFIX, MIDDLE)
FILES: Final = (REPOSITORY, SEPARATOR)


IDS: Final = {PREFIX: "pre", SUFFIX: "suf", MIDDLE: "mid", REPOSITORY: "rep", SEPARATOR: "sep"}


def write_infill_model(
    path: Path, names: tuple[str, ...] = (*GAP, *FILES), *, as_user_defined: bool = False
) -> Path:
    """Write it with these tokens behind those that it has to ``path``; none is ever likely.

    ``as_user_defined``: the file says by their numbers what they are, and not that they are control
    tokens.
    """
    kind = gguf.TokenType.USER_DEFINED if as_user_defined else gguf.TokenType.CONTROL
    reader = gguf.GGUFReader(BUNDLED_MODEL)
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == gguf.Keys.General.ARCHITECTURE:
            continue
        contents = field.contents()
        if name == gguf.Keys.Tokenizer.LIST:
            num_known = len(contents)
            contents += names
        elif name == gguf.Keys.Tokenizer.TOKEN_TYPE:
            contents += [kind] * len(names)
        elif name == gguf.Keys.LLM.VOCAB_SIZE.format(arch="llama"):
            contents += len(names)
        is_array = field.types[0] is gguf.GGUFValueType.ARRAY
        inner = field.types[-1] if is_array else None
        writer.add_key_value(name, contents, field.types[0], inner)
    if as_user_defined:
        for number, name in enumerate(names, num_known):
            writer.add_uint32(f"tokenizer.ggml.fim_{IDS[name]}_token_id", number)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name == "token_embd.weight":
            rows = np.zeros((len(names), data.shape[1]), data.dtype)
            data = np.concatenate([data, rows])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
