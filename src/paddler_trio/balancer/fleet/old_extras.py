"""``PATH.v2.json``: where the extras were kept before there was a fleet. Blocking.

It is read once: what it holds becomes that of the deployment ``default``, and the file is renamed
to ``PATH.v2.json.migrated``. A balancer of an older version writes it anew.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import attrs
import structlog

from paddler_trio.balancer.fleet.state_database import MAX_FILE_BYTES, content, digest_of
from paddler_trio.errors import StateDatabaseError, WireError
from paddler_trio.wire.codec import loads, structure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.shape import OMITTED
from paddler_trio.wire.trio.desired_state_extras import Extras

log = structlog.get_logger("state")


class _Version(StrEnum):
    V2 = "2"


@attrs.frozen
class _Document:
    """``replaced``: the extras of any other state than the one with the digest ``state``."""

    extras: Extras
    version: _Version = _Version.V2
    state: str | None = attrs.field(default=None, metadata=OMITTED)
    replaced: Extras | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen
class OldExtrasFile:
    """The file beside ``state``."""

    state: Path

    @property
    def path(self) -> Path:
        return self.state.with_name(f"{self.state.name}.v2.json")

    def read(self, desired: BalancerDesiredState) -> Extras | None:
        """Read the extras that belong to Paddler's state; None if there is no file.
        StateDatabaseError: it is none, and was left as it is."""
        text = content(self.path, limit_bytes=MAX_FILE_BYTES)
        if not text.strip():
            return None
        try:
            document = structure(loads(text), _Document)
        except WireError as error:
            raise StateDatabaseError(
                f"{self.path} holds no valid extras: {error}; it was left as it is. "
                "Repair it, or move it away to go on without what it holds"
            ) from error
        if document.replaced is not None and document.state != digest_of(desired):
            return document.replaced
        return document.extras

    def put_away(self) -> None:
        """Rename it: what it held is kept elsewhere now."""
        try:
            self.path.replace(f"{self.path}.migrated")
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("a file of extras is read again", path=str(self.path), reason=str(error))
