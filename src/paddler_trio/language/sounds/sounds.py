"""Sounds as clients send them: from base64 to the samples that a model listens to.

Sounds are untrusted, as images are: a file is unpacked piece by piece and left when it has more
seconds than a request may, whatever it says of its length, so a small one cannot become hours. What
format it has follows from its bytes. All channels become one, at the rate of the model, by the
same library that libmtmd decodes with.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

import attrs
import numpy as np

from paddler_trio.errors import PaddlerError
from paddler_trio.wire.engine.media import Sound

try:
    import miniaudio
except ImportError:  # there is no wheel of it for some machines
    miniaudio = None

MAX_FILE_BYTES = 20_971_520
MAX_SECONDS_A_REQUEST = 600
"""Unpacked for all sounds of a request together; 37 MiB at 16 kHz."""
CAN_DECODE = miniaudio is not None
FORMATS = "WAV, MP3 and FLAC"
_BEGINNINGS = (b"RIFF", b"ID3", b"fLaC")
_MP3_SYNC = 0xFFE0
_PIECE_SAMPLES = 16384
PADDED_TO_S = 0.1
"""Silence is added up to a multiple of it. Encoders cut sounds at whole seconds, and llama.cpp
aborts where less than one of its windows is left."""


class SoundError(PaddlerError):
    """This sound cannot be played to a model; the text, for the client, names the reason."""


def _at_most(seconds: float) -> float:
    return min(seconds, MAX_SECONDS_A_REQUEST)


@attrs.define
class SecondsBudget:
    """A budget is the time that the sounds of one request may take together; seconds. A slot that
    has room for less than :data:`MAX_SECONDS_A_REQUEST` is the limit."""

    most_s: float = attrs.field(default=MAX_SECONDS_A_REQUEST, converter=_at_most)
    spent_s: float = attrs.field(default=0.0, init=False)

    def spend(self, seconds: float) -> None:
        """SoundError if this is too much."""
        self.spent_s += seconds
        if self.spent_s > self.most_s:
            raise SoundError(
                f"the sounds of this request have more than {self.most_s:.4g} s together, "
                + (
                    "the limit for all sounds"
                    if self.most_s == MAX_SECONDS_A_REQUEST
                    else "for which one slot of this agent has no room"
                )
                + "; send fewer, or shorter ones"
            )


def read_sound(text: str, *, rate: int, budget: SecondsBudget | None = None) -> Sound:
    """The samples of a sound. Blocking, up to seconds.

    Args:
      text: base64, or a data URI of it; what stands before its comma is not read.
      rate: samples a second that the model hears.
      budget: of the request.

    Raises:
      SoundError: no base64, too large or long, nothing in it, or of no known format.
    """
    content = _content(text)
    budget = budget or SecondsBudget()
    pieces: list[np.ndarray] = []
    for piece in _pieces(content, rate):
        budget.spend(len(piece) / rate)
        pieces.append(piece)
    count = sum(map(len, pieces))
    if not count:
        raise SoundError("the sound has 0 samples, must have 1 at least")
    pieces.append(np.zeros(-count % round(rate * PADDED_TO_S), np.float32))
    samples = np.nan_to_num(np.concatenate(pieces), copy=False)
    return Sound(np.clip(samples, -1.0, 1.0, out=samples).tobytes())


def _pieces(content: bytes, rate: int) -> Iterator[np.ndarray]:
    """Yield float32 samples; SoundError where the decoder fails."""
    try:
        stream = miniaudio.stream_memory(
            content, miniaudio.SampleFormat.FLOAT32, 1, rate, _PIECE_SAMPLES
        )
        for piece in stream:
            yield np.frombuffer(piece, np.float32)
    except miniaudio.MiniaudioError as error:
        raise SoundError(f"the sound is broken, or of no known format: {FORMATS} are") from error


def _content(text: str) -> bytes:
    if text.startswith("data:"):
        _, comma, text = text.partition(",")
        if not comma:
            raise SoundError("the data URI has no comma between its type and its content")
    elif "://" in text[:16]:
        raise SoundError(
            f"remote sounds are not fetched: {text[:80]!r} is no data URI; send base64"
        )
    if len(text) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise SoundError(
            f"the sound has about {len(text) * 3 // 4} bytes, the limit is {MAX_FILE_BYTES}"
        )
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SoundError(f"the sound is not base64: {error}") from error
    if not content:
        raise SoundError("the sound has 0 bytes")
    is_mp3 = int.from_bytes(content[:2], "big") & _MP3_SYNC == _MP3_SYNC
    if not is_mp3 and not content.startswith(_BEGINNINGS):
        raise SoundError(f"the sound is of no known format: {FORMATS} are")
    return content
