"""A key in a file of its own: how clients and agents get theirs.

Never as an argument, which every user of a machine can read in its list of processes.
"""

from __future__ import annotations

from pathlib import Path

from paddler_trio.errors import ConfigurationError

MAX_SECRET_CHARS = 512


def read_secret(path: Path) -> str:
    """Return the key in a client's or agent's own file; ConfigurationError if it holds none.

    The error never contains any of the file.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SECRET_CHARS + 3).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the key in {path}: {error.strerror}") from error
    if not raw or len(raw) > MAX_SECRET_CHARS or any(not 0x21 <= byte <= 0x7E for byte in raw):
        raise ConfigurationError(
            f"{path} must hold one key and nothing else: 1 to {MAX_SECRET_CHARS} printable "
            "characters without spaces"
        )
    return raw.decode("ascii")
