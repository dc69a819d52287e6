"""The files of the panel: read once at the start, served from memory.

``index.html`` is asked for anew at each visit, and answered 304 while it is the same. What has a
digest of its content in its name a browser never asks for twice. The files are what ``make panel``
builds from ``panel/``, with a compressed copy ``NAME.gz`` beside each text; they are in the wheel.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import structlog

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import Header, HttpProblem
from paddler_trio.net.server.exchange import Exchange

log = structlog.get_logger("panel")

FOLDER: Final = Path(__file__).parent / "assets"
INDEX: Final = "index.html"
MAX_FILE_BYTES: Final = 4 * 1024**2
MAX_FILES: Final = 500
PACKED: Final = ".gz"
TYPES: Final[Mapping[str, bytes]] = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".ico": b"image/x-icon",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
CONTENT_SECURITY_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    b"connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; "
    b"frame-ancestors 'none'"
)
SECURITY_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
IMMUTABLE: Final = b"public, max-age=31536000, immutable"
ASKED_ANEW: Final = b"no-cache"

_HAS_DIGEST = re.compile(r".+-[0-9A-Za-z]{8,}\.[a-z0-9]+")


@attrs.frozen(eq=False)
class PanelFile:
    """One file in memory. ``packed`` is its gzip, if there is one."""

    body: bytes = attrs.field(repr=False)
    packed: bytes | None = attrs.field(repr=False)
    content_type: bytes
    caching: bytes
    digest: str

    async def send(self, exchange: Exchange) -> None:
        """Answer GET or HEAD, compressed for clients that take it; 304 for what they have."""
        body, headers = self.body, [(b"content-type", self.content_type)]
        tag = self.digest
        if self.packed is not None:
            headers.append((b"vary", b"accept-encoding"))
            if takes_gzip(exchange.header(b"accept-encoding")):
                body, tag = self.packed, f"{self.digest}-gz"
                headers.append((b"content-encoding", b"gzip"))
        quoted = f'"{tag}"'.encode()
        headers += [(b"etag", quoted), (b"cache-control", self.caching), *SECURITY_HEADERS]
        if has_tag(exchange.header(b"if-none-match"), quoted):
            await exchange.send({"type": "http.response.start", "status": 304, "headers": headers})
            await exchange.send({"type": "http.response.body", "body": b""})
            return
        headers.append((b"content-length", b"%d" % len(body)))
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        is_head = exchange.method == "HEAD"
        await exchange.send({"type": "http.response.body", "body": b"" if is_head else body})


@attrs.frozen(eq=False)
class PanelAssets:
    """All files by their path below the folder."""

    files: Mapping[str, PanelFile]

    @classmethod
    def read(cls, folder: Path = FOLDER) -> PanelAssets:
        """Read the files: none of them where nothing was built; ConfigurationError for what cannot
        be served."""
        found = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))[: MAX_FILES + 1]
            if path.is_file()
        }
        if len(found) > MAX_FILES:
            raise ConfigurationError(f"panel files {folder}: more than {MAX_FILES}")
        files = {
            name.removeprefix("assets/"): _file(name, body, found.get(name + PACKED))
            for name, body in found.items()
            if not name.endswith(PACKED)
        }
        if INDEX not in files:
            log.info("the panel has no pages: they are built by `make panel`")
        return cls(files)

    async def send_index(self, exchange: Exchange) -> None:
        """Send the page; HttpProblem 503 where nothing was built."""
        index = self.files.get(INDEX)
        if index is None:
            raise HttpProblem(
                503,
                "the pages of the panel are not built: run `make panel` (it needs node 20 or "
                "newer), or install a released wheel, which has them",
            )
        await index.send(exchange)

    async def send_asset(self, exchange: Exchange, name: str) -> None:
        """Send one of the other files; HttpProblem 404."""
        file = self.files.get(name)
        if file is None or name == INDEX:
            raise HttpProblem(404, "the panel has no such file; load the page again")
        await file.send(exchange)


def _read(path: Path) -> bytes:
    body = path.read_bytes()
    if len(body) > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"panel file {path}: {len(body)} bytes, the limit is {MAX_FILE_BYTES}"
        )
    return body


def _file(name: str, body: bytes, packed: bytes | None) -> PanelFile:
    suffix = Path(name).suffix
    if suffix not in TYPES:
        raise ConfigurationError(f"panel file {name}: no type is known for {suffix!r}")
    caching = IMMUTABLE if _HAS_DIGEST.fullmatch(name) else ASKED_ANEW
    digest = hashlib.sha256(body).hexdigest()[:32]
    return PanelFile(body, packed, TYPES[suffix], caching, digest)


def takes_gzip(accepted: bytes | None) -> bool:
    """Return whether an ``Accept-Encoding`` allows gzip."""
    for each in (accepted or b"").lower().split(b","):
        name, _, weight = each.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def has_tag(sent: bytes | None, tag: bytes) -> bool:
    """Return whether an ``If-None-Match`` holds ``tag``, which a proxy may have made weak."""
    tags = (each.strip().removeprefix(b"W/") for each in (sent or b"").split(b","))
    return any(each in (tag, b"*") for each in tags)
