"""Check names of deployments and labels of hosts.

Apart from the messages that carry them: command lines check them, too, and answer at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from paddler_trio.wire.shape_error import ShapeError

MAX_AGENT_NAME_CHARS: Final = 256
MAX_LABELS: Final = 32
_DEPLOYMENT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}", re.ASCII)
_LABEL: Final = re.compile(r"[\w./-]{1,63}", re.ASCII)


def check_deployment(name: str, *place: str | int) -> None:
    """Raise ShapeError if this is no name of a deployment; ``place`` is where it stands, innermost
    first."""
    if _DEPLOYMENT_NAME.fullmatch(name) is None:
        raise ShapeError(
            f"{name[:80]!r} is no name of a deployment: 1 to 63 of a-z, 0-9, '.', '_' and '-', the "
            "first a letter or a digit",
            *place,
        )


def check_labels(labels: Mapping[str, str], *place: str | int) -> None:
    """Raise ShapeError if these are no labels; ``place`` is where they stand, innermost first."""
    if len(labels) > MAX_LABELS:
        raise ShapeError(f"{len(labels)} labels, the limit is {MAX_LABELS}", *place)
    for key, value in labels.items():
        for text in (key, value):
            if _LABEL.fullmatch(text) is None:
                raise ShapeError(
                    f"{text[:80]!r} cannot stand in a label: 1 to 63 of A-Z, a-z, 0-9, '.', '_', "
                    "'/' and '-'",
                    key,
                    *place,
                )
