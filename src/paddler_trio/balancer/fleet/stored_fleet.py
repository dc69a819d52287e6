"""Keep the fleet in the state database, and read its JSON. Pure.

``PATH.fleet.json`` holds all revisions, newest first. A deployment that is the same in several of
them is written once: revisions and good states name it by its place in ``specs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import attrs

from paddler_trio import __version__
from paddler_trio.errors import StateDatabaseError
from paddler_trio.wire.codec import dumps, structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.scalars import IntRange
from paddler_trio.wire.shape import OMITTED, ShapeError
from paddler_trio.wire.trio.fleet_state import (
    DeploymentSpec,
    FleetRevision,
    FleetState,
    RevisionNumber,
)

MAX_HISTORY: Final = 20
"""Revisions, the one in force among them."""
MAX_REASON_CHARS: Final = 2000
MAX_LOAD_MS: Final = 86_400_000
STATE_FILE: Final = "state file"
"""The author of what was changed in a file while no balancer ran."""
ROLLOUT: Final = "a rollout"
"""The author of what a rollout went back to. As above, no key can have the name: it has a blank."""
PAUSED_BY: Final = "paused by "
"""The beginning of the reason of a rollout that an operator paused."""
_IN_VAIN: Final = frozenset({"rolling_back", "rolled_back"})

VERSION: Final = 5
"""Of the file's format. The versions before it were never released."""
MAX_SHOWN_CHARS: Final = 80

_Place: TypeAlias = Annotated[int, IntRange(0, 100_000)]


class OtherVersionError(StateDatabaseError):
    """The file was written by a version of this program with another format."""


class FleetTooLargeError(StateDatabaseError):
    """The fleet does not fit its file even without its history."""


@attrs.frozen(kw_only=True)
class GoodRevision:
    """The last state of a deployment that was served, and the revision that it came with."""

    revision: RevisionNumber
    spec: DeploymentSpec

    @property
    def digest(self) -> str:
        return self.spec.digest


def _cut(reason: str | None) -> str | None:
    return None if reason is None else reason[:MAX_REASON_CHARS]


@attrs.frozen(kw_only=True)
class StoredRollout:
    """A rollout, to be continued after a restart.

    ``good``, ``target`` and ``others`` are digests, the times are RFC 3339, ``canaries`` are ids of
    hosts. A long reason is cut.
    """

    good: str | None
    target: str
    phase: str
    started: str
    advanced: str
    reason: str | None = attrs.field(converter=_cut)
    canaries: tuple[str, ...] = ()
    is_proven: bool = False
    others: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Return whether its target did not serve as it should; what an operator paused or aborted
        may be good."""
        if self.phase == "paused":
            return not (self.reason or PAUSED_BY).startswith(PAUSED_BY)
        return self.phase in _IN_VAIN

    @property
    def digests(self) -> tuple[str, ...]:
        """Return all that it names; what it may go back to comes first."""
        return tuple(each for each in (self.good, self.target, *self.others) if each is not None)


@attrs.frozen(kw_only=True)
class StoredFleet:
    """Everything that outlives a balancer.

    Args:
      desired: Paddler's state; with the extras of the deployment ``default`` it is that one.
      history: newest first, the revision in force before all others; never empty.
      good, rollouts: by deployment.
      named: what the rollouts name, as far as it is known. Many revisions in the middle of a
        rollout drop it from the history.
      load_s: by digest: what the last load took, in seconds; kept to the millisecond.
    """

    desired: BalancerDesiredState
    history: tuple[FleetRevision, ...]
    good: Mapping[str, GoodRevision] = attrs.field(factory=dict)
    rollouts: Mapping[str, StoredRollout] = attrs.field(factory=dict)
    named: tuple[DeploymentSpec, ...] = ()
    load_s: Mapping[str, float] = attrs.field(factory=dict)

    @classmethod
    def new(cls, now: str) -> StoredFleet:
        """Return what a new balancer stores: revision 0, without a deployment."""
        nothing = FleetRevision(revision=0, author="", time=now, note="", state=FleetState())
        return cls(desired=BalancerDesiredState.default(), history=(nothing,))

    @property
    def current(self) -> FleetRevision:
        """Return the revision in force."""
        return self.history[0]

    def spec(self, deployment: str, digest: str) -> DeploymentSpec | None:
        """Return a deployment as it was when agents were sent ``digest``, the newest of several;
        None if that is not kept."""
        named = (spec for spec in self._specs() if spec.name == deployment)
        return next((spec for spec in named if spec.digest == digest), None)

    def _specs(self) -> Iterator[DeploymentSpec]:
        """Return all that are kept, the newest first."""
        for revision in self.history:
            yield from revision.state.deployments
        yield from (each.spec for each in self.good.values())
        yield from self.named

    def with_history(self, history: tuple[FleetRevision, ...]) -> StoredFleet:
        """Return it with other revisions, at least one, and without what is kept of deployments
        that the newest does not have."""
        return attrs.evolve(
            attrs.evolve(self, named=self._named(self.rollouts)), history=history
        ).without_leftovers()

    def with_revision(
        self, state: FleetState, desired: BalancerDesiredState, *, author: str, time: str, note: str
    ) -> StoredFleet:
        """``state`` as the next revision, and Paddler's state that goes with it.

        Deployments that stay the same stay the same objects: they are held and written once.
        """
        known = self.current.state.by_name
        specs = tuple(
            known[spec.name] if known.get(spec.name) == spec else spec for spec in state.deployments
        )
        revision = FleetRevision(
            revision=self.current.revision + 1,
            author=author,
            time=time,
            note=note,
            state=FleetState(specs),
        )
        history = (revision, *self._with_failed())[:MAX_HISTORY]
        return attrs.evolve(self.with_history(history), desired=desired)

    def _with_failed(self) -> Iterator[FleetRevision]:
        """Return the history as the current revision is replaced: what has failed of it failed in
        the revisions before as well that came during the same rollout, and changed something else.
        """
        failed = {
            spec.name: spec.digest
            for spec in self.current.state.deployments
            if (rollout := self.rollouts.get(spec.name)) is not None
            and rollout.target == spec.digest
            and rollout.has_failed
        }
        for revision in self.history:
            specs = revision.state.by_name
            failed = {
                name: digest
                for name, digest in failed.items()
                if name in specs and specs[name].digest == digest
            }
            names = (*revision.failed, *(name for name in failed if name not in revision.failed))
            yield revision if names == revision.failed else attrs.evolve(revision, failed=names)

    def without_leftovers(self) -> StoredFleet:
        """Without what is kept of deployments that the current revision does not have."""
        names = self.current.state.by_name
        good = {name: each for name, each in self.good.items() if name in names}
        digests = {
            *(spec.digest for spec in self.current.state.deployments),
            *(each.digest for each in good.values()),
        }
        rollouts = {name: each for name, each in self.rollouts.items() if name in names}
        return attrs.evolve(
            self,
            load_s={digest: each for digest, each in self.load_s.items() if digest in digests},
            good=good,
            rollouts=rollouts,
            named=self._named(rollouts),
        )

    def _named(self, rollouts: Mapping[str, StoredRollout]) -> tuple[DeploymentSpec, ...]:
        known: dict[tuple[str, str], DeploymentSpec] = {}
        for spec in self._specs() if rollouts else ():
            known.setdefault((spec.name, spec.digest), spec)
        wanted = ((name, digest) for name, each in rollouts.items() for digest in each.digests)
        return tuple(known[each] for each in wanted if each in known)

    def __repr__(self) -> str:
        return f"<StoredFleet {self.current!r}>"


# ------------------------------------------------------------------------------------ its JSON


class _Version(StrEnum):
    NEWEST = str(VERSION)


@attrs.frozen(kw_only=True)
class Pending:
    """Paddler's file is to be replaced next: digests of what is in it before and after, and the
    revision in force before."""

    before: str
    after: str
    revision: RevisionNumber


@attrs.frozen(kw_only=True)
class _Revision:
    revision: RevisionNumber
    author: str
    time: str
    note: str
    failed: tuple[str, ...]
    deployments: tuple[_Place, ...]


@attrs.frozen(kw_only=True)
class _Good:
    deployment: str
    revision: RevisionNumber
    spec: _Place


@attrs.frozen(kw_only=True)
class _Rollout:
    deployment: str
    rollout: StoredRollout


@attrs.frozen(kw_only=True)
class _Load:
    digest: str
    load_ms: Annotated[int, IntRange(0, MAX_LOAD_MS)]


@attrs.frozen(kw_only=True)
class _Document:
    version: _Version
    written_by: str
    history: tuple[_Revision, ...]
    good: tuple[_Good, ...]
    rollouts: tuple[_Rollout, ...]
    loads: tuple[_Load, ...]
    named: tuple[_Place, ...]
    specs: tuple[DeploymentSpec, ...]
    pending: Pending | None = attrs.field(default=None, metadata=OMITTED)


def rendered_fleet(stored: StoredFleet, pending: Pending | None) -> bytes:
    """Return the text of the file; every deployment is rendered once in its life."""
    places: dict[int, int] = {}
    specs: list[bytes] = []

    def place(spec: DeploymentSpec) -> int:
        if id(spec) not in places:
            places[id(spec)] = len(specs)
            specs.append(spec.json)
        return places[id(spec)]

    document = unstructure(
        _Document(
            version=_Version.NEWEST,
            written_by=f"paddler-trio {__version__}",
            history=tuple(
                _Revision(
                    revision=each.revision,
                    author=each.author,
                    time=each.time,
                    note=each.note,
                    failed=each.failed,
                    deployments=tuple(place(spec) for spec in each.state.deployments),
                )
                for each in stored.history
            ),
            good=tuple(
                _Good(deployment=name, revision=each.revision, spec=place(each.spec))
                for name, each in stored.good.items()
            ),
            rollouts=tuple(
                _Rollout(deployment=name, rollout=each) for name, each in stored.rollouts.items()
            ),
            loads=tuple(
                _Load(digest=digest, load_ms=round(each * 1000))
                for digest, each in stored.load_s.items()
            ),
            named=tuple(place(spec) for spec in stored.named),
            specs=(),
            pending=pending,
        )
    )
    assert isinstance(document, dict)
    fields = [
        dumps(name) + b":" + dumps(value) for name, value in document.items() if name != "specs"
    ]
    fields.append(b'"specs":[\n%b\n]' % b",\n".join(specs))
    return b"{\n%b\n}\n" % b",\n".join(fields)


def stored_in(
    document: object, desired: BalancerDesiredState
) -> tuple[StoredFleet, Pending | None]:
    """Return what a document holds, beside Paddler's state; OtherVersionError, WireError."""
    if isinstance(document, dict):
        _check_version(document)
    read = structure(document, _Document)
    if not read.history:
        raise ShapeError("no revision", "history")
    history = tuple(
        FleetRevision(
            revision=each.revision,
            author=each.author,
            time=each.time,
            note=each.note,
            failed=each.failed,
            state=FleetState(tuple(_specs(read, each.deployments))),
        )
        for each in read.history
    )
    good = {
        each.deployment: GoodRevision(revision=each.revision, spec=spec)
        for each in read.good
        for spec in _specs(read, (each.spec,))
    }
    stored = StoredFleet(
        desired=desired,
        history=history[:MAX_HISTORY],
        good=good,
        rollouts={each.deployment: each.rollout for each in read.rollouts},
        named=tuple(_specs(read, read.named)),
        load_s={each.digest: each.load_ms / 1000 for each in read.loads},
    )
    return stored, read.pending


def _check_version(document: Mapping[str, object]) -> None:
    found, writer = document.get("version"), document.get("written_by")
    if isinstance(found, str) and found != str(VERSION):
        by = f" by {writer[:MAX_SHOWN_CHARS]}" if isinstance(writer, str) and writer else ""
        raise OtherVersionError(
            f"it has version {found[:MAX_SHOWN_CHARS]} and was written{by}; this program reads "
            f"version {VERSION}"
        )


def _specs(document: _Document, places: Iterable[int]) -> Iterable[DeploymentSpec]:
    for place in places:
        if place >= len(document.specs):
            raise ShapeError(f"there is no {place}, only {len(document.specs)}", "specs")
        yield document.specs[place]
