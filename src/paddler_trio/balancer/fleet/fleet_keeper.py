"""The desired fleet: kept, counted in revisions, and published.

Publishing is one synchronous step: whatever is derived from a revision changes before anything else
runs, so an agent that joins meanwhile cannot get the old state. An equal state is no new revision,
and no agent reloads because of it. Paddler's desired state is the deployment ``default``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.fleet_database import FleetDatabase, utc_now
from paddler_trio.balancer.fleet.fleet_diff import earlier_revision
from paddler_trio.balancer.fleet.stored_fleet import (
    GoodRevision,
    StoredFleet,
    StoredRollout,
)
from paddler_trio.errors import PaddlerError, StateDatabaseError
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    DesiredModel,
    applicable_state,
)
from paddler_trio.wire.trio.default_deployment import (
    PADDLERS_RULES,
    desired_of,
    fleet_problem,
    with_default,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest
from paddler_trio.wire.trio.fleet_state import (
    DEFAULT,
    DeploymentSpec,
    FleetRevision,
    FleetState,
    RolloutSpec,
)

log = structlog.get_logger("state")

ANONYMOUS: Final = "anonymous"
"""The author where management asks for no key."""
WRITE_S: Final = 30.0


class RevisionConflictError(PaddlerError):
    """Another revision is in force than the one that a change was made for."""


@attrs.define(eq=False)
class FleetKeeper:
    """The only writer of the desired fleet. ``load`` must have run before anything reads it.

    What is stored and published is one step for others: cancellation does both or neither.
    """

    database: FleetDatabase
    dispatcher: Dispatcher
    now: Callable[[], str] = utc_now
    """RFC 3339."""
    rules: RolloutSpec = PADDLERS_RULES
    """Of a ``default`` that comes into being through Paddler's API."""
    on_publish: Callable[[], None] = lambda: None
    """Called within the step in which another state comes into force."""
    changed: Changes = attrs.field(factory=Changes, init=False)
    """Another revision is in force."""
    published: Changes = attrs.field(factory=Changes, init=False)
    """Also when Paddler's state changed without a revision."""
    mode_changed: Changes = attrs.field(factory=Changes, init=False)
    """``default`` generates tokens now, or does not any more."""
    _stored: StoredFleet = attrs.field(init=False)
    _specs: Mapping[str, DeploymentSpec] = attrs.field(factory=dict, init=False)
    """Of the revision in force, by name."""
    _applicable: AgentDesiredState | None = attrs.field(default=None, init=False)
    _digest: str = attrs.field(default="", init=False)
    _writing: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _is_frozen: bool = attrs.field(default=False, init=False)
    """Another process may write the database."""

    def __attrs_post_init__(self) -> None:
        self._stored = StoredFleet.new(self.now())

    def __repr__(self) -> str:
        return f"<FleetKeeper {self._stored!r}>"

    async def load(self) -> None:
        """Read what is stored and publish it; StateDatabaseError if it cannot be read.

        A state that would be refused today was stored by an older version: it stays in force, and
        the agents report why they cannot serve it.
        """
        stored = await self.database.read()
        problem = fleet_problem(stored.current.state)
        if problem is not None:
            log.warning("the stored desired state cannot be served: store another", reason=problem)
        self._publish(stored)

    async def freeze(self) -> None:
        """Another process takes over: a write from now on is an error."""
        async with self._writing:
            self._is_frozen = True

    def thaw(self) -> None:
        """Write again."""
        self._is_frozen = False

    # ------------------------------------------------------------- revisions

    @property
    def current(self) -> FleetRevision:
        """Return the revision in force; 0 of a new balancer."""
        return self._stored.current

    @property
    def history(self) -> tuple[FleetRevision, ...]:
        """Return the newest first, that is the one in force."""
        return self._stored.history

    def find(self, deployment: str) -> DeploymentSpec | None:
        """Return what is desired of a deployment; None if there is none of this name."""
        return self._specs.get(deployment)

    async def apply(
        self,
        state: FleetState,
        *,
        author: str,
        note: str = "",
        expected_revision: int | None = None,
    ) -> FleetRevision:
        """Store and publish a whole new state; an equal one keeps the revision that is in force.

        Args:
          expected_revision: the one that must be in force now; None for any.

        Errors:
          RevisionConflictError: it is another one, or a name is taken by servers behind agents.
          StateDatabaseError: it could not be stored; the old state stays in force.
        """
        async with self._writing:
            self._expect(expected_revision)
            self._expect_free_names(state)
            await self._store(state, desired_of(state, self.desired), author, note)
            return self.current

    async def undo(
        self,
        *,
        author: str,
        to: int | None = None,
        note: str = "",
        expected_revision: int | None = None,
    ) -> FleetRevision:
        """Return the state of an earlier revision as a new one.

        Args:
          to: that revision; None for the one before the one in force, past those that failed, and
            what was tried in vain since a deployment that does not serve its present state last
            served.

        Errors:
          NoEarlierRevisionError: it is not kept, or there never was one; or, without ``to``, a
            rollout has gone back by itself, or what failed is undone already.
          others: as of :meth:`apply`.
        """
        async with self._writing:
            self._expect(expected_revision)
            earlier = earlier_revision(self._stored, to)
            self._expect_free_names(earlier.state)
            await self._store(
                earlier.state,
                desired_of(earlier.state, self.desired),
                author,
                note or f"undo: as revision {earlier.revision}",
            )
            return self.current

    def spec(self, deployment: str, digest: str) -> DeploymentSpec | None:
        """See :meth:`StoredFleet.spec`."""
        return self._stored.spec(deployment, digest)

    @property
    def kept_digests(self) -> frozenset[str]:
        """Return the digests of all states that an operator or a rollout may go back to."""
        specs = [spec for revision in self.history for spec in revision.state.deployments]
        specs += [good.spec for good in self.good.values()]
        return frozenset(spec.digest for spec in specs)

    def revision_of(
        self, deployment: str, digest: str, *, earlier_than: int | None = None
    ) -> int | None:
        """Return the revision that last brought ``digest``; None if that is not known any more."""
        found = None
        for revision in self.history:
            if earlier_than is not None and revision.revision >= earlier_than:
                continue
            spec = revision.state.find(deployment)
            if spec is not None and spec.digest == digest:
                found = revision.revision
            elif found is not None:
                return found
        good = self.good.get(deployment)
        if found is None and good is not None and good.digest == digest:
            is_early = earlier_than is None or good.revision < earlier_than
            return good.revision if is_early else None
        return found

    # -------------------------------------------------------------- rollouts

    @property
    def good(self) -> Mapping[str, GoodRevision]:
        """Return, by deployment, the last state that was served."""
        return self._stored.good

    @property
    def rollouts(self) -> Mapping[str, StoredRollout]:
        """Return, by deployment, what is to be continued after a restart."""
        return self._stored.rollouts

    @property
    def load_s(self) -> Mapping[str, float]:
        """Return, by digest, what the last load took that was measured, in seconds."""
        return self._stored.load_s

    async def store_rollouts(
        self,
        rollouts: Mapping[str, StoredRollout],
        *,
        good: Mapping[str, GoodRevision] | None = None,
        load_s: Mapping[str, float] | None = None,
    ) -> None:
        """Keep these and no other rollouts; and these good states and load times by digest, None
        for those that are kept.

        Deployments that are not desired any more are left out.

        Errors:
          StateDatabaseError: they could not be stored; the ones before are kept.
        """
        async with self._writing:
            stored = attrs.evolve(
                self._stored,
                rollouts=rollouts,
                good=self.good if good is None else good,
                load_s=self.load_s if load_s is None else load_s,
            ).without_leftovers()
            if stored != self._stored:
                self._must_own()
                self._stored = await _written(self.database.write_progress, stored)
                self.published.notify()

    def wanted_models(
        self, may_serve: Callable[[DeploymentSpec], bool] = lambda spec: True
    ) -> tuple[DesiredModel, ...]:
        """Return what agents may fetch: the models of all deployments that ``may_serve`` holds for,
        those of ``default`` first; and while one is rolled out, what it goes back to if that fails.
        """
        specs = sorted(self.current.state.deployments, key=lambda spec: spec.name != DEFAULT)
        specs += [self.good[name].spec for name in self.rollouts if name in self.good]
        may = filter(may_serve, specs)
        return tuple(dict.fromkeys(each for spec in may for each in spec.sources))

    # ------------------------------------------------ Paddler's desired state

    async def replace(
        self,
        desired: BalancerDesiredState,
        extras: Extras | None = None,
        *,
        author: str = ANONYMOUS,
        note: str = "",
    ) -> str:
        """Store and publish Paddler's state; the last of several concurrent ones wins.

        Args:
          extras: settings beside it; None keeps the current ones.

        Returns:
          The digest under which our agents report what they serve.

        Errors:
          StateDatabaseError: it could not be stored; the old state stays in force.
        """
        async with self._writing:
            new_extras = self.extras if extras is None else extras
            state = with_default(self.current.state, desired, new_extras, rules=self.rules)
            await self._store(state, desired, author, note)
        return self._digest

    @property
    def desired(self) -> BalancerDesiredState:
        """Paddler's."""
        return self._stored.desired

    @property
    def extras(self) -> Extras:
        """Return the settings beside Paddler's state."""
        spec = self.find(DEFAULT)
        return NO_EXTRAS if spec is None else spec.extras

    @property
    def applicable(self) -> AgentDesiredState | None:
        """Return what agents of ``default`` are sent."""
        return self._applicable

    @property
    def digest(self) -> str:
        """Return the digest of what agents of ``default`` are sent."""
        return self._digest

    @property
    def generates_tokens(self) -> bool:
        """False while the cluster is in embeddings mode."""
        return self._applicable is None or not (
            self._applicable.inference_parameters.enable_embeddings
        )

    # ---------------------------------------------------------------- within

    def _must_own(self) -> None:
        if self._is_frozen:
            raise StateDatabaseError("another process has taken over the state: send it again")

    def _expect(self, revision: int | None) -> None:
        current = self.current
        if revision not in (None, current.revision):
            by = f" by {current.author}" if current.author else ""
            raise RevisionConflictError(
                f"revision {revision} was expected, but {current.revision} is in force, stored{by} "
                f"at {current.time}: look at what it changed (`paddler-trio fleet diff`, or GET "
                "/api/v2/fleet/history), then apply again"
            )

    def _expect_free_names(self, state: FleetState) -> None:
        servers = {pool.name for pool in self.dispatcher.pools.upstreams()}
        for name in (*state.by_name, *state.presets):
            if name in servers:
                raise RevisionConflictError(
                    f"{name!r} is the deployment of servers behind agents (--upstream): choose "
                    "another name for the models"
                )

    async def _store(
        self, state: FleetState, desired: BalancerDesiredState, author: str, note: str
    ) -> None:
        """Under the lock; an equal state is written again, and its revision stays."""
        self._must_own()
        if state.serves_the_same(self.current.state):
            stored = attrs.evolve(self._stored, desired=desired)
        else:
            stored = self._stored.with_revision(
                state, desired, author=author, time=self.now(), note=note
            )
        self._publish(await _written(self.database.write, stored))

    def _publish(self, stored: StoredFleet) -> None:
        generated, revision = self.generates_tokens, self.current.revision
        self._stored, self._specs = stored, stored.current.state.by_name
        self._applicable = applicable_state(stored.desired)
        spec = self.find(DEFAULT)
        self._digest = extended_digest(self._applicable, NO_EXTRAS) if spec is None else spec.digest
        self.published.notify()
        log.info(
            "desired state",
            revision=stored.current.revision,
            deployments=len(stored.current.state.deployments),
            digest=self._digest[:12],
            model=str(stored.desired.model),
        )
        self.on_publish()
        self.dispatcher.agents_changed.notify()  # the digest is shown, also where there are none
        if stored.current.revision != revision:
            self.changed.notify()
        if self.generates_tokens != generated:
            self.mode_changed.notify()


async def _written(
    write: Callable[[StoredFleet], Awaitable[StoredFleet]], stored: StoredFleet
) -> StoredFleet:
    """Return what is in the database now; StateDatabaseError. A write that has begun is waited
    for."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + WRITE_S):
        return await write(stored)
    raise StateDatabaseError(
        f"the write did not begin within {WRITE_S:g} s, since other work has all threads: send it "
        "again"
    )
