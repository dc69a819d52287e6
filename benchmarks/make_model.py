"""Write a llama-architecture model of a given size with random weights, for benchmarks.

    python benchmarks/make_model.py --parameters 56M --out bench-56M.gguf
    python benchmarks/make_model.py --parameters 0.5B --vocabulary 150K --out bench-05B.gguf

The bundled model has four million parameters: with it a benchmark measures what happens around
the decode, not the decode. What a model says is of no interest here, so its weights are drawn at
random; vocabulary and chat template are those of the bundled model. ``--vocabulary`` adds words to
it that are only ever drawn: what drawing costs grows with the vocabulary, and most models have 32
to 256 thousand tokens. Two things are arranged:

* the output rows of tokens that end an answer, or are no text of their own, are zero, so that a
  greedy answer is always as long as it may be and every token of it is visible;
* everything is drawn from a seed: the same call writes the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gguf import (  # type: ignore[import-not-found,unused-ignore]
        GGUFReader,
        GGUFWriter,
    )

MODELS = Path(__file__).resolve().parent.parent / "src" / "paddler_trio" / "models"
BUNDLED = MODELS / "paddler-demo.gguf"
CONTEXT_TOKENS = 4096
HEAD = 64
RMS_EPSILON = 1e-5
NORMAL_TOKEN = 1
"""GGUF's type of an ordinary token."""

Weights = npt.NDArray[np.float32]


@attrs.frozen
class Shape:
    """Sizes of a llama-architecture network; matrices are a multiple of 64 wide."""

    vocabulary: int
    width: int
    layers: int
    hidden: int

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def parameters(self) -> int:
        layer = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width


def shape_for(parameters: int, vocabulary: int) -> Shape:
    """A network of about ``parameters`` with the proportions of real ones (width = 32 x layers)."""
    width = max(HEAD, round((parameters * 32 / 12) ** (1 / 3) / HEAD) * HEAD)
    while width > HEAD and 2 * vocabulary * width > parameters / 2:
        width -= HEAD  # the layers keep at least half
    hidden = round(width * 8 / 3 / HEAD) * HEAD
    one = Shape(vocabulary, width, 1, hidden).parameters
    layer = Shape(vocabulary, width, 2, hidden).parameters - one
    layers = max(1, 1 + round((parameters - one) / layer))
    return Shape(vocabulary, width, layers, hidden)


def parse_count(text: str) -> int:
    """``56M``, ``1.5B`` or a plain number."""
    factor = {"K": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else int(text)


def silent_rows(reader: GGUFReader) -> npt.NDArray[np.bool_]:
    """Which of its tokens must never be drawn: controls, and pieces that are no text alone."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    # byte-level BPE writes a byte outside printable ASCII as a letter beyond it; a blank is Ġ
    return np.array(
        [
            kind != NORMAL_TOKEN or not text.replace("Ġ", "").isascii()
            for text, kind in zip(tokens, kinds, strict=True)
        ]
    )


def write_model(shape: Shape, reader: GGUFReader, out: Path, *, seed: int) -> None:
    """Metadata, the tokenizer as it is in ``reader``, and drawn weights in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
    from gguf.quants import quantize  # type: ignore[import-not-found,unused-ignore]

    writer = GGUFWriter(out, "llama")
    writer.add_name(out.stem)
    writer.add_description("Random weights, for benchmarks only")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    copy_tokenizer(reader, writer, shape.vocabulary)

    generator = np.random.default_rng(seed)

    def drawn(rows: int, columns: int) -> Weights:
        scale = np.float32(columns**-0.5)
        return generator.standard_normal((rows, columns), np.float32) * scale

    def add(name: str, weights: Weights) -> None:
        packed = quantize(weights, GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=GGMLQuantizationType.Q8_0)

    width, hidden = shape.width, shape.hidden
    ones = np.ones(width, np.float32)
    add("token_embd", drawn(shape.vocabulary, width))
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", ones)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{part}", drawn(width, width))
        writer.add_tensor(f"{block}.ffn_norm.weight", ones)
        add(f"{block}.ffn_gate", drawn(hidden, width))
        add(f"{block}.ffn_up", drawn(hidden, width))
        add(f"{block}.ffn_down", drawn(width, hidden))
    writer.add_tensor("output_norm.weight", ones)
    output = drawn(shape.vocabulary, width)
    silent = silent_rows(reader)
    output[: len(silent)][silent] = 0.0
    add("output", output)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(reader: GGUFReader, writer: GGUFWriter, vocabulary: int) -> None:
    """Every ``tokenizer.*`` entry; tokens beyond those there are words that no text is cut into."""
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind is GGUFValueType.ARRAY else None
        contents = field.contents()
        if name == "tokenizer.ggml.tokens":
            contents += [f"Ġword{number}" for number in range(vocabulary - len(contents))]
        elif name == "tokenizer.ggml.token_type":
            contents += [NORMAL_TOKEN] * (vocabulary - len(contents))
        writer.add_key_value(name, contents, kind, inner)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: written. 1: gguf is not installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=parse_count, default="56M", help="default 56M")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary-of", type=Path, default=BUNDLED, help="a GGUF file")
    parser.add_argument("--vocabulary", type=parse_count, help="tokens; default: those of the file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        from gguf import GGUFReader
    except ImportError:
        print("make_model: this needs the package gguf: pip install gguf", file=sys.stderr)
        return 1
    reader = GGUFReader(options.vocabulary_of)
    known = len(reader.fields["tokenizer.ggml.tokens"].data)
    if options.vocabulary is not None and options.vocabulary < known:
        parser.error(f"--vocabulary {options.vocabulary}: the file has {known} tokens already")
    if options.parameters < 100_000:
        parser.error(f"--parameters {options.parameters}: at least 100000")
    shape = shape_for(options.parameters, options.vocabulary or known)
    write_model(shape, reader, options.out, seed=options.seed)
    megabytes = options.out.stat().st_size / 1e6
    print(f"{options.out}: {shape.parameters / 1e6:.1f} M parameters, {megabytes:.0f} MB, {shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
