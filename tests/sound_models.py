"""Tiny audio encoders of random weights, and sounds to play to them.

What they hear means nothing, but it is computed like that of a real model: the same sound gives the
same embeddings, another sound others.
"""

from __future__ import annotations

import base64
import io
import struct
import wave
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

SoundKind = Literal["ultravox", "qwen2a", "gemma4ua"]
RATE = 16_000
WIDTH = 16
MEL_BINS = 20
FRAMES = 1500
"""Of half a minute, after the encoder has halved them."""
SAMPLES_A_TOKEN = 640
MODEL_WIDTH = 256
TOKENS = {"ultravox": 375, "qwen2a": 750, "gemma4ua": 25}
"""Of half a minute, to which all sounds are filled up; of a second for the last."""


def write_ear(path: Path, *, kind: SoundKind = "ultravox", stack: int = 4) -> Path:
    """A projection that hears and does not see; returns ``path``.

    Args:
      kind: ``ultravox`` and ``qwen2a`` hear half a minute at a time, the latter between words of
        its own; ``gemma4ua`` all at once, a token for each 40 ms.
      stack: frames that are one token, of ``ultravox``.
    """
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("tiny ear")
    writer.add_string("clip.projector_type", kind)
    add_ear(writer, kind, stack=stack)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_ear(writer: gguf.GGUFWriter, kind: SoundKind, *, stack: int = 4) -> None:
    """Add an encoder for sounds to a projection."""
    random = np.random.default_rng(7)
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.audio.projector_type", kind)
    layers = 0 if kind == "gemma4ua" else 1
    for name, number in {
        "num_mel_bins": SAMPLES_A_TOKEN if kind == "gemma4ua" else MEL_BINS,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "block_count": layers,
        "projection_dim": MODEL_WIDTH,
        "attention.head_count": 2,
        "projector.stack_factor": stack if kind == "ultravox" else 0,
    }.items():
        writer.add_uint32(f"clip.audio.{name}", number)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)

    def tensor(name: str, *shape: int, around: float = 0.0, kind: type = np.float32) -> None:
        writer.add_tensor(name, (around + random.normal(0, 0.3, shape)).astype(kind))

    def with_bias(name: str, *shape: int, around: float = 0.0) -> None:
        tensor(f"{name}.weight", *shape, around=around)
        tensor(f"{name}.bias", shape[0])

    if kind == "gemma4ua":
        tensor("mm.a.input_projection.weight", MODEL_WIDTH, SAMPLES_A_TOKEN)
        return
    for number, width in ((1, MEL_BINS), (2, WIDTH)):
        tensor(f"a.conv1d.{number}.weight", WIDTH, width, 3, kind=np.float16)
        tensor(f"a.conv1d.{number}.bias", WIDTH, 1)
    tensor("a.position_embd.weight", FRAMES, WIDTH)
    with_bias("a.blk.0.ln1", WIDTH, around=1.0)
    with_bias("a.blk.0.ln2", WIDTH, around=1.0)
    tensor("a.blk.0.attn_k.weight", WIDTH, WIDTH)
    for name in ("attn_q", "attn_v", "attn_out"):
        with_bias(f"a.blk.0.{name}", WIDTH, WIDTH)
    with_bias("a.blk.0.ffn_up", 2 * WIDTH, WIDTH)
    with_bias("a.blk.0.ffn_down", WIDTH, 2 * WIDTH)
    with_bias("a.post_ln", WIDTH, around=1.0)
    if kind == "qwen2a":
        with_bias("mm.a.fc", MODEL_WIDTH, WIDTH)
        return
    tensor("mm.a.norm_pre.weight", stack * WIDTH, around=1.0)
    tensor("mm.a.mlp.1.weight", 2 * WIDTH, stack * WIDTH)
    tensor("mm.a.norm_mid.weight", WIDTH, around=1.0)
    tensor("mm.a.mlp.2.weight", MODEL_WIDTH, WIDTH)


def tone(hertz: float, *, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """A tone that grows: float32 samples, -0.9 to 0.9."""
    at = np.arange(round(seconds * rate)) / rate
    return (0.9 * at / max(seconds, 1e-9) * np.sin(2 * np.pi * hertz * at)).astype(np.float32)


def wav(samples: np.ndarray, *, rate: int = RATE, channels: int = 1) -> bytes:
    """A WAV file of 16 bits, the same in all channels."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        values = (samples * 32767).astype("<i2")
        writer.writeframes(np.repeat(values, channels).tobytes())
    return file.getvalue()


def sound_part(content: bytes, kind: str = "wav") -> dict[str, object]:
    """A part of a message, as OpenAI's clients send it."""
    data = base64.b64encode(content).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def wav_header(
    *, kind: int = 1, bits: int = 16, rate: int = RATE, channels: int = 1, size: int = 0
) -> bytes:
    """The first 44 bytes of a WAV file, which may be lies; ``kind`` 3 is of floats."""
    width = channels * bits // 8
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", 36 + size & 0xFFFFFFFF, b"WAVE", b"fmt ", 16, kind, channels, rate),
        *(rate * width & 0xFFFFFFFF, width, bits, b"data", size),
    )


def flac_of_silence(*, seconds: float) -> bytes:
    """A FLAC file in which 65,535 samples take 12 bytes; no number of samples is announced."""
    block = 65_535
    fixed = block.to_bytes(2, "big") * 2 + bytes(6)
    streaminfo = fixed + (RATE << 44 | 0 << 41 | 15 << 36).to_bytes(8, "big") + bytes(16)
    frames = bytearray()
    for number in range(-(-round(seconds * RATE) // block)):
        header = bytes([0xFF, 0xF8, 0x75, 0x08, *chr(number).encode()]) + (block - 1).to_bytes(
            2, "big"
        )
        header += bytes([_crc(header, 0x07, 8)])
        frame = header + bytes(3)  # a constant subframe: 0
        frames += frame + _crc(frame, 0x8005, 16).to_bytes(2, "big")
    return b"fLaC" + bytes([0x80, 0, 0, 34]) + streaminfo + bytes(frames)


def _crc(data: bytes, polynomial: int, width: int) -> int:
    value, top = 0, 1 << width - 1
    for byte in data:
        value ^= byte << width - 8
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value & top else 0)) & (2 * top - 1)
    return value


def mp3_of_silence(*, seconds: float) -> bytes:
    """An MP3 file (MPEG 2.5, 8 kHz, 8 kbit/s) whose frames are empty."""
    frame = bytes([0xFF, 0xE3, 0x18, 0xC4]) + bytes(68)
    return frame * round(seconds * 8000 / 576)
