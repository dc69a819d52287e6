"""Images as clients send them: from a data URI to the pixels a model looks at.

Only data URIs are taken: an agent fetches nothing that a prompt names. What stands before the comma
of a data URI is not trusted and not read; the format follows from the bytes. Images are untrusted:
formats are few, sizes are checked before any pixel is unpacked, and every failure of a decoder is
an error of the image.

An image with a transparent background is put on white, and turned by its EXIF orientation; of an
animation the first frame is shown.
"""

from __future__ import annotations

import base64
import binascii
import io

import attrs
import numpy as np
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from paddler_trio.errors import PaddlerError
from paddler_trio.language.images.svg import SvgError, is_svg, render_svg
from paddler_trio.wire.engine.media import Image

MAX_FILE_BYTES = 20_971_520
MAX_PIXELS = 50_000_000
"""Of an image before it is made smaller: what large cameras take."""
MAX_DECODED_PIXELS = 25_000_000
"""Of an image that a decoder has to unpack whole. A JPEG is unpacked at a fraction of its size."""
MAX_PIXELS_A_REQUEST = 64_000_000
"""Unpacked for all images of a request together: a few kilobytes can hold millions of pixels."""
MAX_SIDE = 8192
"""Of what a model is shown, whatever ``image_resize_to_fit`` allows."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "ICO", "PPM", "QOI")
# A second line of defence: formats such as ICO have whole images of other formats inside them.
Pillow.MAX_IMAGE_PIXELS = MAX_PIXELS
_SCALED_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


class ImageError(PaddlerError):
    """This image cannot be shown to a model; the text, for the client, names the reason."""


@attrs.define
class PixelBudget:
    """A budget is what the images of one request may still unpack."""

    left: int = MAX_PIXELS_A_REQUEST

    def spend(self, width: int, height: int) -> None:
        """ImageError if this image is one too many."""
        self.left -= width * height
        if self.left < 0:
            raise ImageError(
                f"the images of this request have more than {MAX_PIXELS_A_REQUEST} pixels "
                "together; send fewer, or smaller ones"
            )


def read_image(url: str, *, fit: int, budget: PixelBudget | None = None) -> Image:
    """The pixels of a data URI. Blocking, up to seconds.

    Args:
      url: ``data:`` with standard base64 after the first comma.
      budget: of the request; the image's own limits count without one.
      fit: no side is longer than this many pixels; larger images are made smaller.

    Raises:
      ImageError: no data URI, no base64, too large, or no image of a known format.
    """
    content = _content(url)
    fit = min(fit, MAX_SIDE)
    try:
        if is_svg(content):
            picture = render_svg(content, fit=fit)
        else:
            picture = _decode(content, fit=fit, budget=budget or PixelBudget())
    except SvgError as error:
        raise ImageError(str(error)) from error
    return Image(picture.width, picture.height, picture.tobytes())


def check_image(url: str) -> None:
    """Check, for a model that sees none, whether it is an image at all, without its pixels;
    ImageError."""
    content = _content(url)
    if not is_svg(content):
        _opened(content).close()


def _content(url: str) -> bytes:
    if not url.startswith("data:"):
        raise ImageError(
            f"remote images are not fetched: {url[:80]!r} is no data URI; send the image as "
            "'data:image/png;base64,...'"
        )
    _, comma, payload = url.partition(",")
    if not comma:
        raise ImageError("the data URI has no comma between its type and its content")
    if len(payload) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise ImageError(
            f"the image has about {len(payload) * 3 // 4} bytes, the limit is {MAX_FILE_BYTES}"
        )
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the content of the data URI is not base64: {error}") from error


def _opened(content: bytes) -> Pillow.Image:
    """Open an image: its format and size are known then, its pixels are not unpacked."""
    try:
        image = Pillow.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        raise ImageError(f"the image is of no known format: {formats} and SVG are") from error
    except Exception as error:  # a decoder read untrusted bytes
        raise ImageError(f"the image is broken: {_words(error)}") from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        image.close()
        raise ImageError(
            f"the image has {width}x{height} pixels, the limit is {MAX_PIXELS} in all; "
            "send a smaller one"
        )
    return image


def _decode(content: bytes, *, fit: int, budget: PixelBudget) -> Pillow.Image:
    with _opened(content) as image:
        try:
            image.draft("RGB", (fit, fit))  # a large JPEG is decoded at a fraction of its size
            width, height = image.size
            if width * height > MAX_DECODED_PIXELS:
                raise ImageError(
                    f"the {image.format} image has {width}x{height} pixels, the limit for such "
                    f"images is {MAX_DECODED_PIXELS} in all; send a smaller one, or a JPEG"
                )
            budget.spend(width, height)
            return _fitted(_flat(ImageOps.exif_transpose(image)), fit)
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # a decoder read untrusted bytes
            raise ImageError(f"the {image.format} image is broken: {_words(error)}") from error


def _flat(image: Pillow.Image) -> Pillow.Image:
    """RGB, what is transparent on white."""
    if image.mode in _SCALED_MODES:  # 16 bits for each pixel: the upper ones are seen
        values = np.clip(np.asarray(image) // 257, 0, 255)
        image = Pillow.fromarray(values.astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    layers = image.convert("RGBA")
    white = Pillow.new("RGBA", layers.size, (255, 255, 255, 255))
    return Pillow.alpha_composite(white, layers).convert("RGB")


def _fitted(image: Pillow.Image, fit: int) -> Pillow.Image:
    longer = max(image.size)
    if longer <= fit:
        return image
    width, height = (max(1, round(side * fit / longer)) for side in image.size)
    return image.resize((width, height), Pillow.Resampling.LANCZOS, reducing_gap=3.0)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
