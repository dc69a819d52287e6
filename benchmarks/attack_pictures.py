"""Hostile images: drawings that never end, pictures of few bytes and very many pixels.

All of them are written by hand, byte by byte: a library would need as much memory to make them as
a victim to read them.
"""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib

from attack_call import Call, request
from attack_value import ABANDON_S, Attack, Body, ask, whole
from PIL import Image

PATHS = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/api/v2/generate",
    "/api/v1/continue_from_conversation_history",
)
MOST_SIDE = 8192

# -------------------------------------------------------------------------------- drawings


def svg_of(dice: random.Random, scale: float) -> tuple[str, bytes]:
    """A drawing that takes long to draw, or to read."""
    size = whole(dice, 10, 400, scale)
    maker = dice.choice(
        [
            _groups,
            _turbulence,
            _blur,
            _patterns,
            _masks,
            _rules,
            _rasters,
            _uses,
            _dashes,
            _huge,
            _chain,
            _markers,
            _stops,
            _attributes,
            _text,
        ]
    )
    inner = maker(dice, size)
    side = dice.choice([64, 1000, 4000])
    sides = f'width="{side}" height="{side}"' if "width=" not in inner[:20] else inner.split(">")[0]
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f"{sides}>{inner if sides != inner.split('>')[0] else inner.partition('>')[2]}</svg>"
    )
    return f"svg{maker.__name__} {size}", text.encode()


_BOX = '<rect width="100%" height="100%"/>'


def _groups(dice: random.Random, size: int) -> str:
    style = dice.choice(["", ' opacity=".9"', ' filter="url(#f)"', ' transform="scale(1.01)"'])
    return f"<g{style}>" * size * 10 + _BOX + "</g>" * size * 10


def _filter(primitives: str) -> str:
    box = 'x="-1000%" y="-1000%" width="3000%" height="3000%"'
    return f'<filter id="f" {box}>{primitives}</filter><g filter="url(#f)">{_BOX}</g>'


def _turbulence(dice: random.Random, size: int) -> str:
    octaves = dice.choice([100, 10**5, 10**8])
    return _filter(f'<feTurbulence baseFrequency=".1" numOctaves="{octaves}"/>')


def _blur(dice: random.Random, size: int) -> str:
    primitive = dice.choice(
        [
            f'<feGaussianBlur stdDeviation="{size * 10}"/>',
            f'<feMorphology operator="dilate" radius="{size * 5}"/>',
            f'<feDropShadow dx="9" dy="9" stdDeviation="{size * 10}"/>',
            '<feConvolveMatrix order="100" kernelMatrix="' + "1 " * 10_000 + '"/>',
        ]
    )
    return _filter(primitive * min(size, 20))


def _patterns(dice: random.Random, size: int) -> str:
    number = min(size, 12)
    made = "".join(
        f'<pattern id="p{n}" width=".01" height=".01"><rect width="9" height="9" '
        f'fill="url(#p{n + 1})"/></pattern>'
        for n in range(number)
    )
    return f'<defs>{made}</defs><rect width="100%" height="100%" fill="url(#p0)"/>'


def _masks(dice: random.Random, size: int) -> str:
    kind = dice.choice(["mask", "clipPath"])
    use = "mask" if kind == "mask" else "clip-path"
    made = "".join(
        f'<{kind} id="m{n}" {use}="url(#m{n + 1})"><rect width="100%" height="100%"/></{kind}>'
        for n in range(size)
    )
    return f'<defs>{made}</defs><g mask="url(#m0)" clip-path="url(#m0)">{_BOX * 10}</g>'


def _rules(dice: random.Random, size: int) -> str:
    rules = "".join(f"g:first-child>rect.c{n}{{fill:#00{n % 10}}}" for n in range(size * 50))
    boxes = "".join(f'<rect class="c{n}" width="1" height="1"/>' for n in range(size * 5))
    return f"<style>{rules}</style><g>{boxes}</g>"


def _rasters(dice: random.Random, size: int) -> str:
    uri = data_uri(png_of(dice, whole(dice, 500, 4096, 1.0))[1], "image/png")
    image = f'<image width="9" height="9" href="{uri}"/>'
    return image * min(max(size // 10, 1), max(1, 200_000 // len(image)))


def _uses(dice: random.Random, size: int) -> str:
    levels = min(max(size // 8, 2), 24)
    made = '<g id="u0"><rect width="1" height="1"/></g>'
    for n in range(1, levels):
        made += f'<g id="u{n}"><use xlink:href="#u{n - 1}"/><use href="#u{n - 1}"/></g>'
    return f'<defs>{made}</defs><use xlink:href="#u{levels - 1}" href="#u{levels - 1}"/>'


def _dashes(dice: random.Random, size: int) -> str:
    length = size * 10**5
    return f'<path d="M0 0H{length}V{length}" stroke="#000" stroke-dasharray=".0001 .0001"/>'


def _huge(dice: random.Random, size: int) -> str:
    side = dice.choice(["1e9", "1e38", "99999999", "-1"])
    return f'width="{side}" height="{side}" viewBox="0 0 1e-9 1e9">{_BOX}'


def _chain(dice: random.Random, size: int) -> str:
    steps = "".join(
        f'<feGaussianBlur stdDeviation="50" result="r{n}"/><feTile/><feImage href="#x"/>'
        for n in range(size)
    )
    return _filter(steps)


def _markers(dice: random.Random, size: int) -> str:
    inner = '<path d="M0 0L1 1L2 2L3 3" marker-mid="url(#k1)"/>'
    made = f'<marker id="k0">{inner}</marker><marker id="k1">{_BOX}</marker>'
    points = "L1 1" * size * 50
    return f'<defs>{made}</defs><path d="M0 0{points}" stroke="#000" marker-mid="url(#k0)"/>'


def _stops(dice: random.Random, size: int) -> str:
    stops = '<stop offset=".5"/>' * size * 100
    return f'<linearGradient id="g">{stops}</linearGradient><rect fill="url(#g)" width="9"/>' * 3


def _attributes(dice: random.Random, size: int) -> str:
    many = " ".join(f'a{n}="1"' for n in range(size * 100))
    return f"<rect {many}/>"


def _text(dice: random.Random, size: int) -> str:
    return f'<text font-size="1e9">{"<tspan>a" * size}{"</tspan>" * size}</text>'


# -------------------------------------------------------------------------------- pictures


def png_of(dice: random.Random, side: int) -> tuple[str, bytes]:
    """One colour, whatever the depth; a few hundred KB at most for 8192 x 8192."""
    depth, colours = dice.choice([(1, 0), (8, 0), (8, 2), (8, 6), (8, 3)])
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[colours]
    row = 1 + (side * depth * channels + 7) // 8
    squeeze = zlib.compressobj(1)
    rows = bytes(row * 64)
    data = b"".join(squeeze.compress(rows) for _ in range(side // 64)) + squeeze.flush()
    palette = _chunk(b"PLTE", bytes(range(48))) if colours == 3 else b""
    kind = dice.choice(["", " chunks"])
    extra = _chunk(b"tEXt", b"a\0b") * 5000 if kind else b""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, colours, 0, 0, 0))
    file = b"\x89PNG\r\n\x1a\n" + header + palette + extra + _chunk(b"IDAT", data)
    return f"png{kind} {side}x{side} {depth} bit {channels}", file + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def webp_of(side: int) -> tuple[str, bytes]:
    """A lossless picture of one colour in 32 bytes."""
    sizes = [(side - 1, 14), (side - 1, 14), (0, 1), (0, 3), (0, 3)]
    codes = [(1, 1), (0, 1), (0, 1), (0, 1)] * 5  # each is one symbol, which takes no bits
    value = place = 0
    for number, width in [*sizes, *codes]:
        value |= number << place
        place += width
    content = b"\x2f" + value.to_bytes((place + 7) // 8 + 5, "little")
    content += bytes(len(content) % 2)
    chunk = b"VP8L" + len(content).to_bytes(4, "little") + content
    return f"webp {side}x{side}", b"RIFF" + (4 + len(chunk)).to_bytes(4, "little") + b"WEBP" + chunk


def gif_of(side: int, pictures: int) -> tuple[str, bytes]:
    """Very many empty pictures after a very large one."""
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
    one = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00"
    return f"gif {side}x{side} x {pictures}", head + one * pictures + b";"


def bmp_of(side: int) -> tuple[str, bytes]:
    """Its pixels are all in one run of their own compression."""
    runs = (b"\xff\x00" * (side // 255) + b"\x00\x00") * side
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    offset = 14 + len(head) + 1024
    file = (
        b"BM" + struct.pack("<IHHI", offset + len(runs), 0, 0, offset) + head + bytes(1024) + runs
    )
    return f"bmp {side}x{side} runs", file


def picture_of(dice: random.Random, scale: float) -> tuple[str, bytes]:
    side = min(max(64, round(dice.choice([1024, 4096, 8192]) * scale) // 64 * 64), MOST_SIDE)
    kind = dice.choice(["png", "png", "webp", "gif", "bmp", "damaged"])
    if kind == "png":
        return png_of(dice, side)
    if kind == "webp":
        return webp_of(dice.choice([side, 16383]))
    if kind == "gif":
        return gif_of(side, whole(dice, 10, 1000, scale))
    if kind == "bmp":
        return bmp_of(side)
    file = bytearray(png_of(dice, min(side, 1024))[1])
    for _ in range(9):
        file[dice.randrange(len(file))] = dice.randrange(256)
    return "png, damaged", bytes(file)


# ------------------------------------------------------------------------------- requests


def data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def showing(path: str, uris: list[str]) -> Body:
    """A body of this surface with these images in its one message."""
    parts: list[Body] = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    text: Body = {"type": "text", "text": "What is this?"}
    if path == "/v1/responses":
        inputs = [{"type": "input_image", "image_url": uri} for uri in uris]
        content = [*inputs, {"type": "input_text", "text": "What is this?"}]
        return ask(path, input=[{"role": "user", "content": content}])
    if path == "/v1/messages":
        images: list[Body] = [
            {"type": "image", "source": {"type": "url", "url": uri}} for uri in uris
        ]
        return ask(path, messages=[{"role": "user", "content": [*images, text]}])
    messages = [{"role": "user", "content": [*parts, text]}]
    if path == "/api/v2/generate":
        return ask(path, prompt={"Conversation": {"messages": messages}})
    if path.startswith("/api/v1/"):
        return ask(path, conversation_history=messages)
    return ask(path, messages=messages)


def honest_picture(size_bytes: int) -> bytes:
    """A photograph's worth of pixels in about so many bytes: noise, which does not compress."""
    side = max(8, round((size_bytes / 3) ** 0.5))
    noise = random.Random(side).randbytes(side * side * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), noise).save(file, "PNG", compress_level=0)
    return file.getvalue()


def _attack(
    dice: random.Random, name: str, content: bytes, mime: str, *, copies: int = 1
) -> Attack:
    path = dice.choice(PATHS)
    leaves = ABANDON_S if dice.random() < 0.3 else None

    def calls() -> list[Call]:
        body = showing(path, [data_uri(content, mime)] * copies)
        return [Call(steps=[request(path, body)], leave_after_s=leaves)]

    def honest() -> list[Call]:
        uri = data_uri(honest_picture(len(content)), "image/png")
        return [Call(steps=[request(path, showing(path, [uri] * copies))])]

    left = ", left" if leaves else ""
    many = f" x {copies}" if copies > 1 else ""
    return Attack(name=f"{path} {name}{many}, {len(content)} B{left}", calls=calls, honest=honest)


def drawings(dice: random.Random, scale: float) -> Attack:
    """One small drawing."""
    name, content = svg_of(dice, scale)
    while len(content) > 1_400_000:
        name, content = svg_of(dice, scale)
    return _attack(dice, name, content, "image/svg+xml")


def pictures(dice: random.Random, scale: float) -> Attack:
    """One picture of few bytes and many pixels, or as many of them as a request may show."""
    name, content = picture_of(dice, scale)
    copies = dice.choice([1, 1, whole(dice, 2, 32, scale)])
    most = max(1, 1_400_000 // len(content))
    return _attack(dice, name, content, "image/png", copies=min(copies, most))


def addresses(dice: random.Random, scale: float) -> Attack:
    """Data URIs that are none, and addresses that nobody should fetch."""
    number = whole(dice, 1000, 1_000_000, scale)
    uri = dice.choice(
        [
            "data:image/png;base64," + "A" * number,
            "data:" + "a;" * number + "base64,AAAA",
            "data:image/png;base64," + "*" * number,
            "file:///etc/passwd",
            "http://127.0.0.1:1/",
            "http://[::1]/" + "a" * min(number, 100_000),
            "\x00" * min(number, 10_000),
        ]
    )
    path = dice.choice(PATHS)
    call = Call(steps=[request(path, showing(path, [uri]))])
    size = len(uri)

    def honest() -> list[Call]:
        shown = data_uri(honest_picture(size * 3 // 4), "image/png")
        return [Call(steps=[request(path, showing(path, [shown]))])]

    return Attack(name=f"{path} {uri[:24]!r}, {size} B", calls=lambda: [call], honest=honest)
