"""llama.cpp's libmtmd behind a small typed surface: pixels or samples in, embeddings out.

A projection file belongs to one model. An image or a sound becomes pieces: tokens of the vocabulary
that the model expects around it, and embeddings; models that cut large images, or hear so many
seconds at a time, have several of each.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np

from paddler_trio.errors import EngineError
from paddler_trio.processes.engine.llama.gguf_header import header_of
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.system.llama_library import lib, mtmd
from paddler_trio.wire.engine.media import Image, Medium, Senses, Sound

_WARNING_LEVEL, _ERROR_LEVEL = 3, 4
_FLOATS = ctypes.POINTER(ctypes.c_float)
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_FRAMES = 3000
"""Whisper's encoder hears so many seconds at a time."""
LEAST_SAMPLES = 2
"""With fewer samples llama.cpp aborts the process."""


class NotEncodableError(Exception):
    """llama.cpp could not encode this image or sound; the text names the step that failed."""


@attrs.frozen
class Words:
    """Tokens of the vocabulary that stand beside an image or a sound."""

    tokens: tuple[int, ...]


@attrs.frozen(eq=False)
class Patch:
    """``count`` embeddings that are still in llama.cpp's hands, as ``chunk``.

    ``places``: for a model that numbers an image in two dimensions, where each of them is relative
    to the first: int32 of shape (4, count). ``advance``: positions that all of them take.
    ``attends_ahead``: the model looks at all of them at once.
    """

    chunk: object
    count: int
    advance: int
    places: np.ndarray | None = None
    attends_ahead: bool = False


Piece: TypeAlias = Words | Patch


class Projector:
    """One projection beside its model. Not safe for use by several threads."""

    def __init__(self, context: object, llama: Llama, *, aborts_on_sounds: bool = False) -> None:
        self._context = context
        self._n_vocab = llama.n_vocab
        self._width = llama.n_embd_inp
        self.attends_ahead = bool(mtmd.mtmd_decode_use_non_causal(context, None))
        """The model looks at all of an image at once."""
        self.has_places = bool(mtmd.mtmd_decode_use_mrope(context))
        """The model numbers an image in two dimensions (M-RoPE)."""
        self._sound_rate = 0 if aborts_on_sounds else mtmd.mtmd_get_audio_sample_rate(context)

    def senses(self, cells: int) -> Senses:
        """Return the senses it gives a model whose slots have so many cells. Lays out a minute of
        silence, to see how many tokens come of a second; deaf is who cannot do that."""
        sees = bool(mtmd.mtmd_support_vision(self._context))
        rate = self._sound_rate
        if rate <= 0:
            return Senses(sees)
        try:
            half, whole = (self._count(Sound(bytes(4 * rate * seconds))) for seconds in (30, 60))
        except NotEncodableError as error:
            os.write(
                2, b"%d\tthe model does not hear: %s\n" % (_WARNING_LEVEL, str(error).encode())
            )
            return Senses(sees)
        return Senses(sees, rate, 30 * cells / max(1, whole - half))

    def _count(self, medium: Medium) -> int:
        with self.lay_out(medium) as pieces:
            return sum(piece.count for piece in pieces if isinstance(piece, Patch))

    @property
    def whole_images(self) -> bool:
        """Return whether an image or a sound must be computed in one go."""
        return self.attends_ahead or self.has_places

    @classmethod
    def load(cls, path: str, llama: Llama, *, threads: int, use_gpu: bool) -> Projector:
        """Read a projection file; EngineError (permanent) with what is wrong with it."""
        if not Path(path).is_file():
            raise EngineError(f"there is no projection file at {path}", permanent=True)
        complaints: list[str] = []

        @lib.llama_log_callback  # type: ignore[untyped-decorator]
        def listen(level: int, text: bytes, _: object) -> None:
            if level == _ERROR_LEVEL:
                complaints.append(text.decode(errors="replace").strip())

        params = mtmd.mtmd_context_params_default()
        params.print_timings = False
        params.use_gpu = use_gpu
        params.n_threads = threads
        mtmd.mtmd_log_set(listen, None)
        try:
            context = mtmd.mtmd_init_from_file(path.encode(), llama.model, params)
        finally:
            mtmd.mtmd_log_set(_log, None)
        problem = " ".join(complaints) if not context else _unfit(context, path)
        if problem or not context:
            if context:
                mtmd.mtmd_free(context)
            raise EngineError(f"{path} is no projection for this model: {problem}", permanent=True)
        return cls(context, llama, aborts_on_sounds=_aborts_on_sounds(path))

    @contextmanager
    def lay_out(self, medium: Medium) -> Iterator[list[Piece]]:
        """Yield what an image or a sound becomes, in order, not encoded yet; valid inside the
        block.

        Raises:
          NotEncodableError: it has nothing that this model can look at or listen to.
        """
        bitmap = _bitmap(medium)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            marker = mtmd.mtmd_get_marker(self._context)
            text = mtmd.mtmd_input_text(
                text=marker, text_len=len(marker), add_special=False, parse_special=True
            )
            code = mtmd.mtmd_tokenize(
                self._context, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1
            )
            if code != 0:
                raise NotEncodableError(f"llama.cpp cannot prepare {_words(medium)} (code {code})")
            yield [self._piece(chunks, index) for index in range(_size(chunks))]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def encode(self, patch: Patch) -> np.ndarray:
        """Return embeddings as float32 of shape (count, width); slow.

        Raises:
          NotEncodableError: llama.cpp failed, or ran out of memory.
        """
        code = mtmd.mtmd_encode_chunk(self._context, patch.chunk)
        if code != 0:
            raise NotEncodableError(f"llama.cpp cannot encode this medium (code {code})")
        output = ctypes.cast(mtmd.mtmd_get_output_embd(self._context), _FLOATS)
        return np.ctypeslib.as_array(output, (patch.count, self._width)).copy()

    def _piece(self, chunks: object, index: int) -> Piece:
        chunk = mtmd.mtmd_input_chunks_get(chunks, index)
        if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
            advance = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
            attends_ahead = bool(mtmd.mtmd_decode_use_non_causal(self._context, chunk))
            return Patch(chunk, count, advance, self._places(chunk, count), attends_ahead)
        size = ctypes.c_size_t()
        tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
        words = tuple(tokens[place] for place in range(size.value))
        if any(not 0 <= token < self._n_vocab for token in words):
            raise NotEncodableError(
                "the vocabulary of this model lacks tokens that its projection puts around media: "
                "they do not belong together"
            )
        return Words(words)

    def _places(self, chunk: object, count: int) -> np.ndarray | None:
        """Return the places in the order in which llama.cpp wants the dimensions: time, row,
        column, and one more."""
        if not self.has_places:
            return None
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        if not image:  # of a sound: all dimensions are time
            return np.tile(np.arange(count, dtype=np.int32), (4, 1))

        def from_position(position: int) -> np.ndarray:
            places = [
                mtmd.mtmd_image_tokens_get_decoder_pos(image, position, index)
                for index in range(count)
            ]
            return np.array([[p.t, p.y, p.x, p.z] for p in places], np.int32).T

        places = from_position(0)
        moved = places + np.array([[1000], [1000], [1000], [0]], np.int32)
        if not np.array_equal(moved, from_position(1000)):
            raise NotEncodableError(
                "this model numbers images in a way that depends on those before them, which is "
                "not supported"
            )
        return places


def _size(chunks: object) -> int:
    return int(mtmd.mtmd_input_chunks_size(chunks))


def _unfit(context: object, path: str) -> str:
    """Return why a projection that llama.cpp loaded cannot be used; empty if it can."""
    if mtmd.mtmd_support_vision(context):
        return ""
    if not mtmd.mtmd_support_audio(context):
        return "it neither sees nor hears"
    return "llama.cpp miscounts the tokens of its sounds" if _aborts_on_sounds(path) else ""


def _aborts_on_sounds(path: str) -> bool:
    """Return whether llama.cpp would abort the process at the first sound: it counts half of the
    groups of frames, and computes the groups of half as many, which is one more for groups of 8
    (Ultravox). To be looked at again with each version of it."""
    header = header_of(path)
    group = 0 if header is None else header.number("clip.audio.projector.stack_factor")
    return group > 0 and -(-_FRAMES // group) // 2 != -(-(_FRAMES // 2) // group)


def _bitmap(medium: Medium) -> Any:
    """Return llama.cpp's copy of what is in it."""
    if isinstance(medium, Image):
        pixels = np.frombuffer(medium.pixels, np.uint8).ctypes.data_as(_BYTES)
        return mtmd.mtmd_bitmap_init(medium.width, medium.height, pixels)
    samples = np.frombuffer(medium.samples, np.float32)
    if len(samples) < LEAST_SAMPLES:
        raise NotEncodableError(
            f"a sound has {len(samples)} samples, must have {LEAST_SAMPLES} at least"
        )
    return mtmd.mtmd_bitmap_init_from_audio(len(samples), samples.ctypes.data_as(_FLOATS))


def _words(medium: Medium) -> str:
    if isinstance(medium, Image):
        return f"an image of {medium.width}x{medium.height} pixels"
    return f"a sound of {medium.num_samples} samples"


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    """Pass on libmtmd's log: it has a dozen lines for each medium, and only warnings and errors are
    passed on."""
    if level in (_WARNING_LEVEL, _ERROR_LEVEL):
        os.write(2, b"%d\t%s" % (level, text))
