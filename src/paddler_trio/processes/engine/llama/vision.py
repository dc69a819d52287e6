"""Images and sounds into embeddings, in a thread of their own: no tokens wait for an encoder.

A sequence with media comes here first and reaches the decode loop with every one expanded: its
place among the tokens is taken by one number for each embedding (see ``image_tokens.py``), and the
embeddings come along. What a medium became is kept by its content within a budget of bytes.

A sequence that is stopped leaves at once. llama.cpp cannot be interrupted in the middle of an
encoding; what it still finishes is cached all the same.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Generic, NoReturn, TypeAlias, TypeVar

import attrs
import numpy as np

from paddler_trio.processes.engine.llama.projector import NotEncodableError, Projector, Words
from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.image_tokens import image_of, image_tokens
from paddler_trio.system.thread_priority import give_way
from paddler_trio.wire.engine.crash_record import Activity, CrashRecord
from paddler_trio.wire.engine.engine_pipe import Ending, StartSequence
from paddler_trio.wire.engine.media import MEDIA_TOKEN, Image, Medium

NICENESS = 5
"""Streams that have begun come before first tokens."""


@attrs.frozen(eq=False)
class Rows:
    """The embeddings of one piece: float32 of shape (tokens, width); for the others see
    :class:`~paddler_trio.processes.engine.llama.projector.Patch`."""

    embeddings: np.ndarray
    places: np.ndarray | None = None
    attends_ahead: bool = False
    is_sound: bool = False


Embeddings: TypeAlias = Mapping[int, Rows]
"""Embeddings by :func:`image_of`."""


@attrs.frozen(eq=False)
class Encoded:
    """A medium as tokens for its place in a prompt, and the embeddings they stand for."""

    tokens: list[int]
    embeddings: Embeddings

    @property
    def num_bytes(self) -> int:
        return sum(rows.embeddings.nbytes for rows in self.embeddings.values())


@attrs.define
class ImageCache:
    """Encoded images and sounds by their content; the ones not used for longest go first."""

    budget_bytes: int
    num_bytes: int = attrs.field(default=0, init=False)
    _images: OrderedDict[bytes, Encoded] = attrs.field(factory=OrderedDict, init=False)

    def find(self, digest: bytes) -> Encoded | None:
        if digest in self._images:
            self._images.move_to_end(digest)
        return self._images.get(digest)

    def keep(self, digest: bytes, encoded: Encoded) -> None:
        """Keep an image, unless it alone is more than the budget."""
        if encoded.num_bytes > self.budget_bytes or digest in self._images:
            return
        self._images[digest] = encoded
        self.num_bytes += encoded.num_bytes
        while self.num_bytes > self.budget_bytes:
            _, oldest = self._images.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


class _GivenUpError(Exception):
    """This sequence was stopped meanwhile."""


class _RefusedError(Exception):
    """It ends before it began."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.detail)
        self.ending = ending


AdmittedT = TypeVar("AdmittedT")


@attrs.define(eq=False)
class Vision(Generic[AdmittedT]):
    """All sequences that still lack embeddings.

    Args:
      cells: KV cells one sequence can have; what needs more is refused before it is encoded.
      n_batch: tokens that an image, or what is computed in one go, may have at most.
      admit: makes of a sequence that is complete what the decode loop takes; may be slow.
      forward: gives that, or an ending, to the decode loop.
      record: where this thread notes the requests it works for.
      discard: releases what ``admit`` made for a client that has left meanwhile.
    """

    projector: Projector
    cells: int
    n_batch: int
    cache: ImageCache
    admit: Callable[[StartSequence, Embeddings], AdmittedT | Ending]
    forward: Callable[[AdmittedT | Ending], None]
    record: CrashRecord = attrs.field(factory=CrashRecord.unread)
    discard: Callable[[AdmittedT], None] = lambda _admitted: None
    _arrivals: SimpleQueue[StartSequence] = attrs.field(factory=SimpleQueue, init=False)
    _pending: set[int] = attrs.field(factory=set, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """Around ``_pending``: only the thread that takes a key out of it forwards the sequence."""

    def start(self, on_crash: Callable[[], None]) -> None:
        """Run in a thread of its own; if that fails, ``on_crash`` is called after a traceback."""

        def run() -> None:
            try:
                give_way(NICENESS)
                self.run_forever()
            except Exception:  # noqa: BLE001  # without this thread, images wait for ever
                traceback.print_exc()
                on_crash()

        threading.Thread(target=run, name="vision", daemon=True).start()

    def take(self, start: StartSequence) -> None:
        """Take a sequence with media, from any thread."""
        with self._lock:
            self._pending.add(start.key)
        self._arrivals.put(start)

    def stop(self, key: int) -> None:
        """End this sequence; from any thread. One that left here is the decode loop's."""
        if self._withdraw(key):
            self.forward(Ending(key, "stopped", 0, 0))

    def run_forever(self) -> NoReturn:
        doing = self.record.cells(Activity.SEEING, threading.get_ident())
        while True:
            start = self._arrivals.get()
            doing.begin(start.key)
            self.see(start)
            doing.end()
            del start  # or the pixels of its media would stay until the next one comes

    def see(self, start: StartSequence) -> None:
        """Encode the media of one sequence and forward it."""
        admitted: AdmittedT | Ending
        try:
            tokens, embeddings = self._expand(start)
            admitted = self.admit(attrs.evolve(start, tokens=tokens, media=[]), embeddings)
        except _GivenUpError:
            return
        except _RefusedError as refused:
            admitted = refused.ending
        if self._withdraw(start.key):
            self.forward(admitted)
        elif not isinstance(admitted, Ending):
            self.discard(admitted)

    def _withdraw(self, key: int) -> bool:
        with self._lock:
            if key not in self._pending:
                return False
            self._pending.discard(key)
            return True

    def _expand(self, start: StartSequence) -> tuple[list[int], Embeddings]:
        places = [place for place, token in enumerate(start.tokens) if token == MEDIA_TOKEN]
        words = len(start.tokens) - len(places)
        if len(places) != len(start.media):
            detail = f"{len(start.media)} media for {len(places)} places in the prompt"
            raise _RefusedError(Ending(start.key, "refused", words, 0, detail))
        encoded: list[Encoded] = []
        room = self.cells - words
        for medium in start.media:
            encoded.append(self._encoded(start, medium, words=words, room=room))
            room -= len(encoded[-1].tokens)
        tokens: list[int] = []
        embeddings: dict[int, Rows] = {}
        done = 0
        for place, each in zip(places, encoded, strict=True):
            tokens += start.tokens[done:place] + each.tokens
            embeddings.update(each.embeddings)
            done = place + 1
        return tokens + start.tokens[done:], embeddings

    def _encoded(self, start: StartSequence, medium: Medium, *, words: int, room: int) -> Encoded:
        """Return what stands in a prompt of so many ``words`` that leaves it ``room`` cells."""
        digest = _digest(medium)
        is_sound = not isinstance(medium, Image)
        known = self.cache.find(digest)
        if known is not None:
            self._check_room(start, len(known.tokens), words=words, room=room)
            return known
        tokens: list[int] = []
        embeddings: dict[int, Rows] = {}
        try:
            with self.projector.lay_out(medium) as pieces:
                sizes = [1 if isinstance(piece, Words) else piece.count for piece in pieces]
                self._check_batch(start, max(sizes, default=0), words=words, is_sound=is_sound)
                self._check_room(start, sum(sizes), words=words, room=room)
                for number, piece in enumerate(pieces):
                    if isinstance(piece, Words):
                        tokens += piece.tokens
                        continue
                    if start.key not in self._pending:
                        raise _GivenUpError
                    part = hashlib.sha256(digest + b"%d" % number).digest()
                    place = image_tokens(part, piece.count, advance=piece.advance)
                    encoded_rows = self.projector.encode(piece)
                    embeddings[image_of(place[0])] = Rows(
                        encoded_rows, piece.places, piece.attends_ahead, is_sound
                    )
                    tokens += place
        except NotEncodableError as error:
            raise _RefusedError(Ending(start.key, "image_failed", words, 0, str(error))) from error
        encoded = Encoded(tokens, embeddings)
        self.cache.keep(digest, encoded)
        return encoded

    def _check_batch(
        self, start: StartSequence, largest: int, *, words: int, is_sound: bool
    ) -> None:
        """Refuse a piece that no pass has room for. A sound is computed in parts, unless the model
        computes all of a medium in one go."""
        if largest <= self.n_batch or (is_sound and not self.projector.whole_images):
            return
        name = "a sound" if is_sound else "an image"
        raise _RefusedError(
            Ending(
                start.key,
                "refused" if is_sound else "image_too_large",
                words,
                0,
                f"{name} takes {largest} tokens, more than n_batch: {self.n_batch}",
                num_image_tokens=0 if is_sound else largest,
                n_batch=self.n_batch,
            )
        )

    def _check_room(self, start: StartSequence, count: int, *, words: int, room: int) -> None:
        """Refuse what cannot fit before anything is spent on it."""
        if count > room:
            total = self.cells - room + count
            refused = refusal(num_prompt_tokens=total, max_tokens=0, cells=self.cells)
            assert refused is not None, "it has no room and fits"
            raise _RefusedError(Ending(start.key, "refused", words, 0, refused.reason))


def _digest(medium: Medium) -> bytes:
    """Return a hash of all that the encoder is given."""
    if isinstance(medium, Image):
        shown = hashlib.sha256(b"%d %d " % (medium.width, medium.height))
        shown.update(medium.pixels)
        return shown.digest()
    heard = hashlib.sha256(b"sound ")
    heard.update(medium.samples)
    return heard.digest()
