"""SVG as pixels.

An SVG is a program for a renderer, so it is read twice: once here, for its size and to refuse
references to anything outside, and once by resvg, which renders it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from xml.parsers import expat

import attrs
import resvg_py
from PIL import Image

from paddler_trio.errors import PaddlerError

MAX_ELEMENTS = 200_000
_DEFAULT_SIDE = 100.0
_DPI = 96.0
_OPENINGS = (b"<svg", b"<?xml", b"<!doctype svg", b"<!--")
_LENGTH = re.compile(r"\s*\+?([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(px|pt|pc|mm|cm|in|Q)?\s*$")
_PIXELS = {
    None: 1.0,
    "px": 1.0,
    "pt": 4 / 3,
    "pc": 16.0,
    "mm": 96 / 25.4,
    "cm": 96 / 2.54,
    "in": 96.0,
    "Q": 24 / 25.4,
}


class SvgError(PaddlerError):
    """This SVG cannot be rendered, or is refused."""


def is_svg(content: bytes) -> bool:
    """It starts like SVG or any other XML."""
    start = content[:256].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith(_OPENINGS)


def render_svg(content: bytes, *, fit: int) -> Image.Image:
    """The SVG on white: RGB, its own size but no side longer than ``fit`` pixels.

    Raises:
      SvgError: not SVG, asks for files or addresses, or declares entities.
    """
    reading = _read(content)
    width, height = reading.size()
    scale = min(1.0, fit / max(width, height))
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=content.decode(),
            background="#ffffff",
            dpi=_DPI,
            width=max(1, round(width * scale)),
            height=max(1, round(height * scale)),
        )
    except ValueError as error:  # also of bytes that are not UTF-8
        raise SvgError(f"the SVG cannot be drawn: {error}") from error
    with Image.open(io.BytesIO(bytes(png)), formats=("PNG",)) as image:
        return image.convert("RGB")


@attrs.define
class _Reading:
    """A reading is what must be known of an SVG before it is rendered."""

    root: Mapping[str, str] | None = None
    num_elements: int = 0

    def size(self) -> tuple[float, float]:
        """Width and height in pixels, both positive."""
        assert self.root is not None
        box = re.split(r"[\s,]+", self.root.get("viewBox", "").strip())
        sides = [_length(self.root.get(name)) for name in ("width", "height")]
        natural = [_length(each) for each in box[2:]] if len(box) == 4 else [None, None]
        width, height = sides
        if width and height:
            return width, height
        if natural[0] and natural[1]:
            ratio = natural[1] / natural[0]
            if width:
                return width, width * ratio
            if height:
                return height / ratio, height
            return natural[0], natural[1]
        return width or _DEFAULT_SIDE, height or _DEFAULT_SIDE

    def element(self, name: str, attributes: Mapping[str, str]) -> None:
        self.num_elements += 1
        if self.num_elements > MAX_ELEMENTS:
            raise SvgError(f"the SVG has more than {MAX_ELEMENTS} elements")
        plain = name.rpartition(":")[2]
        if self.root is None:
            if plain != "svg":
                raise SvgError(f"the text is XML with the root {name[:40]!r}, not SVG")
            self.root = dict(attributes)
        if plain in ("image", "feImage"):
            for key, value in attributes.items():
                is_inside = value.lstrip().startswith(("data:", "#"))
                if key.rpartition(":")[2] == "href" and not is_inside:
                    raise SvgError(
                        f"the SVG refers to {value[:80]!r}: images inside it must be data URIs"
                    )


def _read(content: bytes) -> _Reading:
    reading = _Reading()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reading.element
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise SvgError(f"the SVG is not well-formed: {error}") from error
    return reading


def _refuse_entity(name: str, *_: object) -> None:
    raise SvgError(f"the SVG declares the entity {name[:40]!r}; entities are not taken")


def _length(text: str | None) -> float | None:
    """Return a length in pixels; None for nothing, percentages and what is no positive length."""
    found = _LENGTH.match(text or "")
    if found is None:
        return None
    length = float(found[1]) * _PIXELS[found[2]]
    return length if 0 < length < 1e9 else None
