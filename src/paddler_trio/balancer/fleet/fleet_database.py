"""The store of the fleet: memory, or files.

    PATH                         Paddler's state file, byte for byte; the deployment ``default``
    PATH.fleet.json              all revisions, good states and rollouts
    PATH.fleet.json.previous     the same before the newest revision; read by people only

Paddler's file is the truth about ``default``: if another program changed it, that is a revision,
found at the next start. Each file is replaced as a whole, so a crash leaves the old or the new one
of each. Where a revision changes both, the rename of Paddler's file decides: ``PATH.fleet.json`` is
written first, with the digests of Paddler's state before and after. A read that finds the one
before drops the newest revision, whose request was never answered. Then the file is written once
more, without digests.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.state_database import (
    StateFile,
    content,
    digest_of,
    replace,
    state_file,
)
from paddler_trio.balancer.fleet.stored_fleet import (
    STATE_FILE,
    FleetTooLargeError,
    OtherVersionError,
    Pending,
    StoredFleet,
    rendered_fleet,
    stored_in,
)
from paddler_trio.errors import StateDatabaseError, WireError
from paddler_trio.wire.codec import loads
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.trio.default_deployment import desired_of, with_default
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS
from paddler_trio.wire.trio.fleet_state import DEFAULT, FleetState

log = structlog.get_logger("state")

MAX_FLEET_FILE_BYTES: Final = 8 * 1024 * 1024
"""A state of 2 MiB, which is the largest body of a request, beside a ``default`` of 2 MiB, and as
much of the good states. Old revisions are dropped where there is no room for them."""


def utc_now() -> str:
    """RFC 3339, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FleetDatabase(Protocol):
    """All raise StateDatabaseError and then have changed nothing."""

    async def read(self) -> StoredFleet:
        """Read what is stored, before all writes."""
        ...

    async def write(self, stored: StoredFleet) -> StoredFleet:
        """Store everything; what is returned may lack old revisions."""
        ...

    async def write_progress(self, stored: StoredFleet) -> StoredFleet:
        """Store good states and rollouts; Paddler's state and the revisions are as before."""
        ...


@attrs.define
class MemoryDatabase:
    """``memory://``: starts from a new balancer's state, forgets at the end of the process."""

    now: Callable[[], str] = utc_now
    _stored: StoredFleet | None = attrs.field(default=None, init=False)

    async def read(self) -> StoredFleet:
        await trio.lowlevel.checkpoint()
        return self._stored or StoredFleet.new(self.now())

    async def write(self, stored: StoredFleet) -> StoredFleet:
        await trio.lowlevel.checkpoint()
        self._stored = stored
        return stored

    async def write_progress(self, stored: StoredFleet) -> StoredFleet:
        return await self.write(stored)


@attrs.define
class FileDatabase:
    """``file:///absolute/path``. Missing files become those of a new balancer; an empty one of
    Paddler's is mended where there are revisions."""

    path: Path
    now: Callable[[], str] = utc_now
    _state: StateFile = attrs.field(init=False)
    _digest: str = attrs.field(default="", init=False)
    """Of what is in Paddler's file."""
    _text: bytes = attrs.field(default=b"", init=False)
    """Of the fleet's file, when it last had no digests; empty if there is no such file."""
    _stored: StoredFleet | None = attrs.field(default=None, init=False)
    """What the files mean."""

    def __attrs_post_init__(self) -> None:
        self._state = StateFile(self.path)

    @property
    def fleet_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.fleet.json")

    async def read(self) -> StoredFleet:
        return await trio.to_thread.run_sync(self._read)

    async def write(self, stored: StoredFleet) -> StoredFleet:
        return await trio.to_thread.run_sync(self._write, stored)

    async def write_progress(self, stored: StoredFleet) -> StoredFleet:
        return await trio.to_thread.run_sync(self._write_fleet, stored)

    # ---------------------------------------------------------------- reading

    def _read(self) -> StoredFleet:
        if self._state.is_empty():
            self._mend_empty()
        desired = self._state.read()
        self._digest = digest_of(desired)
        self._warn_of_an_empty_fleet()
        found, is_complete = self._read_fleet(desired)
        default = found.current.state.find(DEFAULT)
        extras = NO_EXTRAS if default is None else default.extras
        state = with_default(found.current.state, desired, extras)
        if state != found.current.state:
            before = found.current.revision
            note = "" if before == 0 else "Paddler's state file was changed"
            if before != 0:  # a file that is gone, too, which desires no model
                log.warning(
                    "the state file is not as the newest revision left it, and counts",
                    path=str(self.path),
                    undo=f"paddler-trio fleet undo --to-revision {before}",
                )
            found = found.with_revision(
                state, desired, author=STATE_FILE, time=self.now(), note=note
            )
            is_complete = False
        if not is_complete:
            try:
                found = self._write_fleet(found)
            except StateDatabaseError as error:  # the next start finds the same again
                log.warning("the fleet's file is not as it should be", reason=str(error))
        _compute_digests(found.current.state)
        self._stored = found
        return found

    def _mend_empty(self) -> None:
        """Write Paddler's file as the newest revision left it. A program that means that nothing is
        desired writes so: an empty file is what a crash or a full disk leaves."""
        found, _ = self._read_fleet(BalancerDesiredState.default())
        current = found.current
        if current.revision == 0:
            log.warning(
                "the state file is empty, and no revision is kept: no model is desired",
                path=str(self.path),
            )
            return
        self._state.write(desired_of(current.state, found.desired))
        log.warning(
            "the state file was empty: it is as the newest revision left it again",
            path=str(self.path),
            revision=current.revision,
        )

    def _warn_of_an_empty_fleet(self) -> None:
        """No program of ours writes such a file. Serving what Paddler's file has is better than not
        to start, and less than what was desired."""
        if (
            not self.fleet_path.exists()
            or content(self.fleet_path, limit_bytes=MAX_FLEET_FILE_BYTES).strip()
        ):
            return
        previous = self.fleet_path.with_name(f"{self.fleet_path.name}.previous")
        log.warning(
            "the fleet's file is empty: revisions and other deployments are forgotten",
            path=str(self.fleet_path),
            undo=f"put {previous.name} in its place and restart" if previous.exists() else None,
        )

    def _read_fleet(self, desired: BalancerDesiredState) -> tuple[StoredFleet, bool]:
        """Read what the fleet's file holds beside Paddler's state; False if it is to be written."""
        text = content(self.fleet_path, limit_bytes=MAX_FLEET_FILE_BYTES)
        if not text.strip():
            return attrs.evolve(StoredFleet.new(self.now()), desired=desired), True
        try:
            stored, pending = stored_in(loads(text), desired)
        except OtherVersionError as error:
            raise StateDatabaseError(
                f"{self.fleet_path} is of another version: {error}; it was left as it is. Run that "
                f"version again, or move it away to start with what {self.path.name} has"
            ) from error
        except WireError as error:
            raise StateDatabaseError(
                f"{self.fleet_path} is not a valid fleet: {error}; it was left as it is. Repair "
                f"it, put {self.fleet_path.name}.previous in its place, or move it away to start "
                f"with what {self.path.name} has"
            ) from error
        if pending is None:
            self._text, self._stored = text, stored
            return stored, True
        if self._digest == pending.before:  # Paddler's file was not reached
            history = tuple(each for each in stored.history if each.revision <= pending.revision)
            stored = stored.with_history(history or StoredFleet.new(self.now()).history)
        return stored.without_leftovers(), False

    # ---------------------------------------------------------------- writing

    def _write(self, stored: StoredFleet) -> StoredFleet:
        before = self._stored
        assert before is not None, "read comes first"
        _compute_digests(stored.current.state)
        digest = digest_of(stored.desired)
        if digest == self._digest:
            self._state.write(stored.desired)  # the same again, should it be gone
            return self._write_fleet(stored)
        pending = Pending(before=self._digest, after=digest, revision=before.current.revision)
        either = attrs.evolve(
            stored,
            good=before.good,
            rollouts=before.rollouts,
            named=(*before.named, *stored.named),
            load_s={**before.load_s, **stored.load_s},
        )
        text, fitted = _fitted(either, pending)
        self._keep_previous(stored)
        replace(self.fleet_path, text)
        try:
            self._state.write(stored.desired)
        except StateDatabaseError:
            if self._text:
                self._complete(self._text)
            raise
        self._digest = digest
        fits = attrs.evolve(stored, history=fitted.history, named=fitted.named)
        self._stored = fits.without_leftovers()
        self._complete(rendered_fleet(self._stored, None))
        return self._stored

    def _write_fleet(self, stored: StoredFleet) -> StoredFleet:
        text, stored = _fitted(stored, None)
        self._keep_previous(stored)
        replace(self.fleet_path, text)
        self._text, self._stored = text, stored
        return stored

    def _keep_previous(self, stored: StoredFleet) -> None:
        """Before a new revision is written."""
        before = self._stored
        if self._text and before is not None and stored.current.revision > before.current.revision:
            replace(Path(f"{self.fleet_path}.previous"), self._text)

    def _complete(self, text: bytes) -> None:
        """Take the digests out. If that fails, the file means the same as long as Paddler's stays,
        and the next write does it."""
        try:
            replace(self.fleet_path, text)
        except StateDatabaseError as error:
            log.warning("the fleet's file still has digests", reason=str(error))
        else:
            self._text = text


def _fitted(stored: StoredFleet, pending: Pending | None) -> tuple[bytes, StoredFleet]:
    """The text of the file, without as many old revisions as there is no room for. Then rollouts
    lose what they name, what they superseded first: a restart in the middle of one begins it anew.

    Errors:
      FleetTooLargeError: there is no room for the newest one, or the one before while it is needed.
    """
    least = 1 if pending is None or pending.revision == stored.current.revision else 2
    while True:
        text = rendered_fleet(stored, pending)
        if len(text) <= MAX_FLEET_FILE_BYTES:
            return text, stored
        if len(stored.history) > least:
            stored = attrs.evolve(stored, history=stored.history[:-1])
        elif stored.named:
            stored = attrs.evolve(stored, named=stored.named[:-1])
        else:
            raise FleetTooLargeError(
                f"the fleet takes {len(text)} bytes of its file, with what is served now, the "
                f"limit is {MAX_FLEET_FILE_BYTES}: shorten templates"
            )


def _compute_digests(state: FleetState) -> None:
    """They are kept with the deployments; the event loop need not wait for them."""
    for spec in state.deployments:
        _ = spec.digest


def open_fleet_database(url: str) -> FleetDatabase:
    """``memory://`` or ``file:///absolute/path``; ConfigurationError for anything else."""
    path = state_file(url)
    return MemoryDatabase() if path is None else FileDatabase(path)
