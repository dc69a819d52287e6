"""Images and sounds on their way to an engine, and whether a model perceives them."""

from __future__ import annotations

from typing import TypeAlias

import attrs

MEDIA_TOKEN = -1
"""Stands among the tokens of a prompt where an image is shown, or a sound heard."""


def _size(value: bytes) -> str:
    """Return the number of bytes, for a ``repr``, instead of all of them."""
    return f"<{len(value)}>"


@attrs.frozen
class Image:
    """``pixels``: RGB of 8 bits each, row by row from the top; ``width * height * 3`` bytes."""

    width: int
    height: int
    pixels: bytes = attrs.field(repr=_size)


@attrs.frozen
class Sound:
    """``samples``: float32 of one channel, -1 to 1, of this machine's byte order, at the rate
    that the projection wants (:attr:`Senses.sound_rate`)."""

    samples: bytes = attrs.field(repr=_size)

    @property
    def num_samples(self) -> int:
        return len(self.samples) // 4


Medium: TypeAlias = Image | Sound


@attrs.frozen
class Senses:
    """The senses that a model has by its projection; none without one. ``sound_rate``: samples a
    second of the sounds it hears, 0 for deaf. ``sound_s``: the seconds that a slot has room for."""

    sees_images: bool = False
    sound_rate: int = 0
    sound_s: float = 0.0


NO_SENSES = Senses()
