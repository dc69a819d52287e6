"""``store://sha256/HEX/NAME``: how the desired state names a pushed model. Pure."""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.models.hub.hub_cache import path_problem

SCHEME: Final = "store://"
MAX_NAME_CHARS: Final = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@~ ()-]*")
_SOURCE = re.compile(r"store://sha256/([0-9a-f]{64})/([^/]+)")


@attrs.frozen
class PushedSource:
    """A model that a ``store://`` source names."""

    manifest_sha256: str
    name: str


def is_pushed(url: str) -> bool:
    """Return whether it is meant to name a pushed model."""
    return url.startswith(SCHEME)


def pushed_source(url: str) -> PushedSource | None:
    """Return what ``url`` names; None if it does not have the form above."""
    match = _SOURCE.fullmatch(url)
    if match is None or pushed_name_problem(match[2]) is not None:
        return None
    return PushedSource(match[1], match[2])


def pushed_name_problem(name: str) -> str | None:
    """Return why a pushed file cannot have this name; None if it can."""
    if len(name) > MAX_NAME_CHARS:
        return f"a name of {len(name)} characters, the limit is {MAX_NAME_CHARS}"
    if _NAME.fullmatch(name) is None or path_problem(name) is not None:
        return (
            f"{name!r} is no name of a pushed file: letters, digits and ._+=@~()- or blanks, "
            "the first one a letter or digit"
        )
    return None
