"""Messages with which an agent gives the credential of its link another secret."""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.wire.shape import ShapeError

_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@attrs.frozen
class Rotate:
    """A new secret for the credential that this link was opened with; ``sha256`` is its hash. It
    takes the place of the one of the hash ``replaces``, which the agent has stored, with its first
    use."""

    sha256: str
    replaces: str

    def __attrs_post_init__(self) -> None:
        _check_sha256(self.sha256, "sha256")
        _check_sha256(self.replaces, "replaces")


@attrs.frozen
class Rotated:
    """The balancer has stored this hash: the secret may be used."""

    sha256: str

    def __attrs_post_init__(self) -> None:
        _check_sha256(self.sha256, "sha256")


def _check_sha256(text: str, place: str) -> None:
    if _SHA256.fullmatch(text) is None:
        raise ShapeError("a SHA-256 has 64 hexadecimal digits", place)
