"""Images as clients send them, and what a model is shown of them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from paddler_trio.language.images import decoding as images
from paddler_trio.language.images import svg
from paddler_trio.language.images.decoding import FORMATS, ImageError, PixelBudget, read_image
from paddler_trio.wire.engine.media import Image
from vision_models import data_uri, encoded, picture

SVG = 'xmlns="http://www.w3.org/2000/svg"'
ORIENTATION = 0x0112


def pixels(image: Image) -> np.ndarray:
    return np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)


def close(image: Image, to: Pillow.Image, *, tolerance: int = 2) -> bool:
    expected = np.asarray(to.convert("RGB")).astype(int)
    return bool(np.abs(pixels(image).astype(int) - expected).max() <= tolerance)


@pytest.mark.parametrize("file_format", [name for name in FORMATS if name not in ("JPEG", "QOI")])
def test_every_format_is_seen_as_it_is(file_format: str) -> None:
    original = picture((200, 100, 50)).convert("P" if file_format == "GIF" else "RGB")
    content = encoded(original, file_format)
    options = {"lossless": True} if file_format == "WEBP" else {}
    if options:
        file = io.BytesIO()
        original.save(file, file_format, **options)
        content = file.getvalue()
    image = read_image(data_uri(content), fit=64)
    assert (image.width, image.height) == (32, 32)
    assert close(image, original)


def test_a_jpeg_is_nearly_seen_as_it_is() -> None:
    original = picture((200, 100, 50))
    assert close(read_image(data_uri(encoded(original, "JPEG")), fit=64), original, tolerance=24)


@given(width=st.integers(1, 300), height=st.integers(1, 300), fit=st.integers(1, 300))
def test_a_large_image_is_made_smaller_and_keeps_its_shape(
    width: int, height: int, fit: int
) -> None:
    original = Pillow.new("RGB", (width, height), (9, 9, 9))
    image = read_image(data_uri(encoded(original)), fit=fit)
    assert len(image.pixels) == image.width * image.height * 3
    if max(width, height) <= fit:
        assert (image.width, image.height) == (width, height)
    else:
        assert max(image.width, image.height) == fit
        scale = fit / max(width, height)
        assert abs(image.width - width * scale) <= 1
        assert abs(image.height - height * scale) <= 1


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_what_is_transparent_is_white(file_format: str) -> None:
    clear = Pillow.new("RGBA", (8, 8), (255, 0, 0, 0))
    image = read_image(data_uri(encoded(clear, file_format)), fit=64)
    assert set(image.pixels) == {255}


def test_a_palette_may_be_transparent_too() -> None:
    palette = Pillow.new("P", (8, 8), 3)
    palette.putpalette([0, 0, 0] * 256)
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=3)
    assert set(read_image(data_uri(file.getvalue()), fit=64).pixels) == {255}


def test_an_image_is_turned_as_its_exif_says() -> None:
    flat = picture((250, 20, 10), width=40, height=20)
    exif = Pillow.Exif()
    exif[ORIENTATION] = 6  # to be turned right by a quarter
    file = io.BytesIO()
    flat.save(file, "PNG", exif=exif)
    image = read_image(data_uri(file.getvalue()), fit=64)
    assert (image.width, image.height) == (20, 40)
    assert close(image, flat.transpose(Pillow.Transpose.ROTATE_270))


def test_sixteen_bits_of_grey_are_seen_by_their_upper_ones() -> None:
    grey = Pillow.fromarray(np.full((4, 4), 0x8080, np.uint16))
    assert set(read_image(data_uri(encoded(grey)), fit=64).pixels) == {0x80}


def test_of_a_moving_image_the_first_picture_is_shown() -> None:
    first, second = (Pillow.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=[second])
    assert pixels(read_image(data_uri(file.getvalue()), fit=64))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "no data URI"),
        ("http://127.0.0.1/cat.png", "remote images are not fetched"),
        ("file:///etc/passwd", "remote images are not fetched"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,AAA", "not base64"),
        ("data:image/png;base64,AA AA", "not base64"),
        ("data:image/png;base64,\u00e4\u00e4==", "not base64"),
        ("data:image/png;base64,", "no known format"),
        (data_uri(b"%PDF-1.7 and so on"), "no known format"),
    ],
)
def test_what_is_no_image_says_why(url: str, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        read_image(url, fit=64)


@given(data=st.data(), file_format=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"]))
def test_a_damaged_file_is_an_image_or_an_error_of_ours(
    data: st.DataObject, file_format: str
) -> None:
    content = bytearray(encoded(picture((1, 200, 30)), file_format))
    for _ in range(data.draw(st.integers(0, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        image = read_image(data_uri(bytes(content[:cut])), fit=64)
    except ImageError:
        return
    assert len(image.pixels) == image.width * image.height * 3


def test_sizes_are_judged_before_anything_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with pytest.raises(ImageError, match="32x32 pixels, the limit is 1000"):
        read_image(data_uri(encoded(picture((1, 2, 3)))), fit=64)
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 100)
    with pytest.raises(ImageError, match="the limit is 100"):
        read_image(data_uri(encoded(picture((1, 2, 3)))), fit=64)


# ------------------------------------------------------------------------------------------ SVG


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ('width="40" height="20"', (40, 20)),
        ('width="400" height="200"', (100, 50)),
        ('viewBox="0 0 30 60"', (30, 60)),
        ('width="10" viewBox="0 0 30 60"', (10, 20)),
        ('height="10" viewBox="0,0,30,60"', (5, 10)),
        ('width="1in" height="72pt"', (96, 96)),
        ('width="50%" height="50%"', (100, 100)),
        ('width="1e8" height="1e7"', (100, 10)),
    ],
)
def test_an_svg_has_its_own_size_or_fits(attributes: str, size: tuple[int, int]) -> None:
    svg = f'<svg {SVG} {attributes}><rect width="100%" height="100%" fill="lime"/></svg>'
    image = read_image(data_uri(svg.encode()), fit=100)
    assert (image.width, image.height) == size


def test_an_svg_is_on_white() -> None:
    svg = f'<?xml version="1.0"?>\n<svg {SVG} width="8" height="8"/>'
    assert set(read_image(data_uri(svg.encode()), fit=64).pixels) == {255}


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        (f"<svg {SVG}", "not well-formed"),
        ("<?xml version='1.0'?><html/>", "not SVG"),
        (f"<svg {SVG}><image href='/etc/a.png'/></svg>", "must be data URIs"),
        (f"<svg {SVG}><image href='file:///etc/a.png'/></svg>", "must be data URIs"),
        (f"<svg {SVG}><image xlink:href='http://a/b' xmlns:xlink='x'/></svg>", "must be data URIs"),
        (f"<!DOCTYPE svg [<!ENTITY a 'b'>]><svg {SVG}>&a;</svg>", "declares the entity"),
    ],
)
def test_an_svg_that_asks_for_more_is_refused(markup: str, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        read_image(data_uri(markup.encode()), fit=64)


def test_an_svg_of_too_many_elements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "MAX_ELEMENTS", 10)
    with pytest.raises(ImageError, match="more than 10 elements"):
        read_image(data_uri(f"<svg {SVG}>{'<g/>' * 10}</svg>".encode()), fit=64)


@pytest.mark.thorough
def test_a_small_file_does_not_hold_many_pixels() -> None:
    """A hundred kilobytes of PNG would otherwise unpack to 200 MB."""
    image = Pillow.new("RGB", (5001, 5000))
    with pytest.raises(ImageError, match="25000000"):
        read_image(data_uri(encoded(image, "PNG")), fit=1024)
    assert read_image(data_uri(encoded(image, "JPEG")), fit=1024).width == 1024


def test_the_images_of_a_request_share_a_budget() -> None:
    budget = PixelBudget(left=3 * 100 * 100)
    uri = data_uri(encoded(Pillow.new("RGB", (100, 100)), "PNG"))
    for _ in range(3):
        read_image(uri, fit=1024, budget=budget)
    with pytest.raises(ImageError, match="together"):
        read_image(uri, fit=1024, budget=budget)
