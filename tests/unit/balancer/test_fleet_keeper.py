"""Revisions: counted, in order, never torn. Paddler's state is one of the deployments."""

from __future__ import annotations

import json

import attrs
import pytest
import trio
from trio.testing import MockClock

from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_diff import NoEarlierRevisionError
from paddler_trio.balancer.fleet.fleet_keeper import (
    FleetKeeper,
    RevisionConflictError,
)
from paddler_trio.balancer.fleet.stored_fleet import (
    ROLLOUT,
    GoodRevision,
    StoredFleet,
    StoredRollout,
    rendered_fleet,
    stored_in,
)
from paddler_trio.balancer.keys.api_keys import check_name
from paddler_trio.errors import ConfigurationError, StateDatabaseError
from paddler_trio.nursery_tree.dispatcher import Dispatcher, DispatchLimits
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    HuggingFaceModel,
    InferenceParameters,
    LocalToAgent,
    UrlModel,
    applicable_state,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import EngineOverrides, Extras, extended_digest
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState
from paddler_trio.wire.trio.replica_range import ReplicaRange

CODER = DeploymentSpec(name="coder", model=UrlModel("https://host/c.gguf"))
CHAT = DeploymentSpec(
    name=DEFAULT,
    model=HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main"),
    projection=UrlModel("https://host/p.gguf"),
)
NEW = BalancerDesiredState.default()


def one(spec: DeploymentSpec) -> FleetState:
    return FleetState((spec,))


def numbered(number: int) -> FleetState:
    return one(attrs.evolve(CODER, priority=number))


def rollout(spec: DeploymentSpec) -> StoredRollout:
    now = "2026-01-02T03:04:05Z"
    return StoredRollout(
        good=None, target=spec.digest, phase="canary", started=now, advanced=now, reason=None
    )


async def keeper(database: MemoryDatabase | None = None) -> FleetKeeper:
    made = FleetKeeper(
        MemoryDatabase() if database is None else database,
        Dispatcher(DispatchLimits(max_buffered=1)),
        now=lambda: "2026-01-02T03:04:05Z",
    )
    await made.load()
    return made


async def test_a_new_balancer_has_revision_0_and_serves_nothing() -> None:
    states = await keeper()
    assert (states.current.revision, states.current.state) == (0, FleetState())
    assert states.desired == NEW
    assert states.digest == extended_digest(applicable_state(NEW), Extras())


async def test_an_accepted_state_is_a_revision_with_author_time_and_note() -> None:
    states = await keeper()
    before = states.changed.ordinal
    revision = await states.apply(one(CODER), author="ann", note="first", expected_revision=0)
    assert revision == states.current == states.history[0]
    assert (revision.revision, revision.author, revision.note) == (1, "ann", "first")
    assert revision.time == "2026-01-02T03:04:05Z"
    assert states.changed.ordinal == before + 1
    assert states.desired == NEW, "Paddler's clients see nothing of other deployments"


async def test_an_equal_state_keeps_its_revision() -> None:
    states = await keeper()
    await states.apply(FleetState((CODER, CHAT)), author="ann")
    ordinal = states.changed.ordinal
    again = await states.apply(FleetState((CHAT, CODER)), author="bob", note="no news")
    assert (again.revision, again.author) == (1, "ann")
    await states.replace(states.desired)
    kept = attrs.evolve(states.desired, chat_template_override=ChatTemplate("kept, not in use"))
    await states.replace(kept)
    assert (states.current.revision, states.desired) == (1, kept)
    assert states.changed.ordinal == ordinal


async def test_another_revision_than_the_expected_one_is_a_conflict_that_says_whose() -> None:
    states = await keeper()
    await states.apply(numbered(1), author="ann")
    with pytest.raises(
        RevisionConflictError,
        match=r"revision 0 was expected, but 1 is in force, stored by ann at 2026-01-02T.*fleet di",
    ):
        await states.apply(numbered(2), author="bob", expected_revision=0)
    with pytest.raises(RevisionConflictError):
        await states.undo(author="bob", expected_revision=7)
    assert states.current.state == numbered(1)


async def test_undo_makes_the_state_before_a_new_revision_and_undone_it_comes_back() -> None:
    states = await keeper()
    await states.apply(numbered(1), author="ann")
    await states.apply(numbered(2), author="ann")
    undone = await states.undo(author="bob")
    assert (undone.revision, undone.state, undone.author) == (3, numbered(1), "bob")
    assert undone.note == "undo: as revision 1"
    assert (await states.undo(author="bob")).state == numbered(2)
    assert (await states.undo(author="bob", to=0, note="all gone")).state == FleetState()
    assert states.current.note == "all gone"


async def test_undo_passes_what_was_tried_in_vain_since_a_deployment_last_served() -> None:
    states = await keeper()
    first, second, third = (
        attrs.evolve(CODER, model=UrlModel(f"https://host/{name}.gguf")) for name in "abc"
    )
    await states.apply(one(first), author="ann")
    await states.store_rollouts({}, good={"coder": GoodRevision(revision=1, spec=first)})
    await states.apply(FleetState((second, CHAT)), author="ann")
    await states.apply(FleetState((third, CHAT)), author="ann")
    undone = await states.undo(author="bob")
    assert (undone.state, undone.note) == (one(first), "undo: as revision 1")
    # what serves now is gone back from to the one before, so that an undo can be undone
    assert (await states.undo(author="bob")).state == FleetState((third, CHAT))
    # where the history has nothing of what served, it is the one before
    served = attrs.evolve(CODER, model=UrlModel("https://host/gone.gguf"))
    await states.store_rollouts({}, good={"coder": GoodRevision(revision=1, spec=served)})
    assert (await states.undo(author="bob")).state == one(first)


def rollout_to(spec: DeploymentSpec, phase: str, reason: str | None) -> StoredRollout:
    return StoredRollout(
        good=None, target=spec.digest, phase=phase, started="", advanced="", reason=reason
    )


@pytest.mark.parametrize(
    ("phase", "reason", "has_failed"),
    [
        ("paused", "2 of 2 hosts failed", True),
        ("rolling_back", "no progress", True),
        ("paused", "paused by ann", False),
        ("rolling", "waits for memory", False),
        ("complete", None, False),
    ],
)
async def test_undo_returns_to_nothing_that_failed(
    phase: str, reason: str | None, has_failed: bool
) -> None:
    states = await keeper()
    first, second = (
        attrs.evolve(CODER, model=UrlModel(f"https://host/{name}.gguf")) for name in "ab"
    )
    await states.apply(one(first), author="ann")
    await states.apply(one(second), author="ann")
    await states.store_rollouts({"coder": rollout_to(second, phase, reason)})
    assert (await states.undo(author="ann")).state == one(first)
    kept, _ = stored_in(json.loads(rendered_fleet(states._stored, None)), states.desired)
    assert kept.history == states.history, "also after a restart"
    if has_failed:
        with pytest.raises(
            NoEarlierRevisionError, match=r"revision 2 failed \(coder\) and is undone already by re"
        ):
            await states.undo(author="ann")
        assert (await states.apply(numbered(7), author="ann")).revision == 4
        assert (await states.undo(author="ann")).state == one(first)
    else:
        assert (await states.undo(author="ann")).state == one(second)


async def test_undo_passes_a_revision_that_failed() -> None:
    states = await keeper()
    specs = [attrs.evolve(CODER, model=UrlModel(f"https://host/{name}.gguf")) for name in "abc"]
    for spec in specs:
        await states.apply(one(spec), author="ann")
        phase = "rolled_back" if spec is specs[1] else "complete"
        await states.store_rollouts({"coder": rollout_to(spec, phase, None)})
    assert (await states.undo(author="ann")).state == one(specs[0])


async def test_undo_passes_all_revisions_that_came_while_it_was_on_its_way_to_fail() -> None:
    states = await keeper()
    specs = [attrs.evolve(CODER, model=UrlModel(f"https://host/{name}.gguf")) for name in "ab"]
    await states.apply(one(specs[0]), author="ann")
    await states.apply(one(specs[1]), author="ann")
    await states.store_rollouts({"coder": rollout_to(specs[1], "rolling", None)})
    await states.apply(FleetState((attrs.evolve(specs[1], priority=3), CHAT)), author="bob")
    await states.store_rollouts({"coder": rollout_to(specs[1], "rolled_back", "no progress")})
    await states.apply(FleetState((specs[0], CHAT)), author=ROLLOUT, note="coder rolled back: x")
    assert [each.failed for each in states.history] == [(), ("coder",), ("coder",), (), ()]
    await states.apply(one(specs[0]), author="bob")
    await states.apply(FleetState((specs[0], CHAT)), author="bob")
    states_of_coder = [each.state.find("coder") for each in states.history if not each.failed]
    assert specs[1] not in states_of_coder


async def test_undo_of_what_a_rollout_went_back_to_would_bring_the_failure_back() -> None:
    states = await keeper()
    await states.apply(numbered(1), author="ann")
    await states.apply(numbered(2), author="ann")
    await states.apply(numbered(1), author=ROLLOUT, note="coder rolled back: no file")
    with pytest.raises(
        NoEarlierRevisionError,
        match=r"revision 2 is undone already by revision 3 \(coder rolled back: no file\): say",
    ):
        await states.undo(author="bob")
    assert states.current.revision == 3
    assert (await states.undo(author="bob", to=2)).state == numbered(2)


async def test_a_key_may_be_named_as_a_rollout_is_told() -> None:
    states = await keeper()
    for number in (1, 2):
        await states.apply(numbered(number), author=check_name("rollout"))
    assert (await states.undo(author="rollout")).state == numbered(1)
    with pytest.raises(ConfigurationError):
        check_name(ROLLOUT)


async def test_there_is_nothing_to_undo_before_the_first_revision() -> None:
    states = await keeper()
    with pytest.raises(NoEarlierRevisionError, match="no revision before 0 is kept"):
        await states.undo(author="ann")
    with pytest.raises(NoEarlierRevisionError, match="revision 9 is not kept: there are 0 to 0"):
        await states.undo(author="ann", to=9)


async def test_twenty_revisions_are_kept() -> None:
    states = await keeper()
    for number in range(25):
        await states.apply(numbered(number), author="ann")
    assert [each.revision for each in states.history] == list(range(25, 5, -1))


async def test_paddlers_state_is_the_deployment_default() -> None:
    states = await keeper()
    await states.apply(one(CODER), author="ann")
    desired = attrs.evolve(
        NEW,
        model=LocalToAgent("/m.gguf"),
        inference_parameters=InferenceParameters(temperature=0.25),
    )
    extras = Extras(engine=EngineOverrides(max_drafts=2))
    digest = await states.replace(desired, extras, author="bob")
    spec = states.current.state.find(DEFAULT)
    assert spec is not None
    assert (spec.model, spec.parameters, spec.extras) == (
        desired.model,
        desired.inference_parameters,
        extras,
    )
    assert (spec.replicas.is_all, spec.digest) == (True, digest)
    assert states.current.state.find("coder") == CODER
    assert (states.current.revision, states.current.author) == (2, "bob")
    await states.replace(attrs.evolve(desired, model=LocalToAgent("/n.gguf")))
    assert states.extras == extras, "as long as nothing else is said about them"


async def test_paddlers_clients_find_room_in_a_full_fleet() -> None:
    states = await keeper()
    await states.apply(
        FleetState(tuple(attrs.evolve(CODER, name=f"d{n}") for n in range(64))), author="ann"
    )
    await states.replace(attrs.evolve(NEW, model=LocalToAgent("/m.gguf")))
    assert states.find(DEFAULT) is not None
    assert len(states.current.state.deployments) == 65


async def test_a_swap_of_the_model_keeps_the_rules_of_default() -> None:
    states = await keeper()
    ruled = attrs.evolve(CHAT, replicas=ReplicaRange(1, 2), where=("gpu=yes",), aliases=("x",))
    await states.apply(one(ruled), author="ann")
    await states.replace(attrs.evolve(states.desired, model=LocalToAgent("/m.gguf")))
    assert states.current.state == one(attrs.evolve(ruled, model=LocalToAgent("/m.gguf")))


async def test_default_set_over_the_fleet_is_what_paddlers_clients_read() -> None:
    states = await keeper()
    await states.apply(one(attrs.evolve(CHAT, template="{{ x }}")), author="ann")
    assert states.desired.model == CHAT.model
    assert states.desired.use_chat_template_override
    assert states.digest == states.current.state.deployments[0].digest
    await states.apply(FleetState(), author="ann")
    assert states.desired.model == NEW.model


async def test_what_cannot_be_stored_is_not_in_force() -> None:
    class Full(MemoryDatabase):
        async def write(self, stored: StoredFleet) -> StoredFleet:
            await trio.lowlevel.checkpoint()
            raise StateDatabaseError("no space left")

    states = await keeper(Full())
    with pytest.raises(StateDatabaseError):
        await states.apply(one(CODER), author="ann")
    with pytest.raises(StateDatabaseError):
        await states.replace(attrs.evolve(NEW, model=LocalToAgent("/m.gguf")))
    assert (states.current.revision, states.desired) == (0, NEW)


async def test_a_write_that_never_begins_is_one_that_failed(autojump_clock: MockClock) -> None:
    """Other work has all threads, as with a disk that hangs."""

    class Stalling(MemoryDatabase):
        stalls = False

        async def write(self, stored: StoredFleet) -> StoredFleet:
            if self.stalls:
                await trio.sleep_forever()
            return await super().write(stored)

    database = Stalling()
    states = await keeper(database)
    await states.apply(one(CODER), author="ann")
    database.stalls = True
    with pytest.raises(StateDatabaseError, match="did not begin within 30 s"):
        await states.apply(FleetState(), author="ann")
    assert states.current.revision == 1
    with pytest.raises(StateDatabaseError, match="did not begin within 30 s"):
        await states.store_rollouts({"coder": rollout(CODER)})
    assert states.rollouts == {}


async def test_cancellation_stores_and_publishes_or_does_neither() -> None:
    database = MemoryDatabase()
    states = await keeper(database)
    with trio.CancelScope() as scope:
        scope.cancel(reason="the client left")
        await states.apply(one(CODER), author="ann")
    assert (await database.read()).history == states.history


async def test_rollouts_and_good_states_are_kept_until_their_deployment_is_gone() -> None:
    database = MemoryDatabase()
    states = await keeper(database)
    await states.apply(FleetState((CODER, CHAT)), author="ann")
    good = {
        "coder": GoodRevision(revision=1, spec=CODER),
        "gone": GoodRevision(revision=1, spec=CODER),
    }
    ordinal = states.changed.ordinal
    await states.store_rollouts({"coder": rollout(CODER), "gone": rollout(CODER)}, good=good)
    assert states.rollouts == {"coder": rollout(CODER)}
    assert states.good == {"coder": good["coder"]}
    assert states.changed.ordinal == ordinal, "whoever stores them has seen them"
    assert (await keeper(database)).rollouts == {"coder": rollout(CODER)}
    await states.store_rollouts({})
    assert (states.rollouts, states.good) == ({}, {"coder": good["coder"]})
    await states.apply(one(CHAT), author="ann")
    assert states.good == {}


async def test_the_store_keeps_all_models_and_what_a_rollout_goes_back_to() -> None:
    states = await keeper()
    local = DeploymentSpec(name="z", model=LocalToAgent("/z.gguf"), projection=CODER.model)
    await states.apply(FleetState((CODER, local, CHAT)), author="ann")
    wanted = (CHAT.model, CHAT.projection, CODER.model, local.model)
    assert states.wanted_models() == wanted
    old = attrs.evolve(CODER, model=UrlModel("https://host/old.gguf"))
    await states.store_rollouts({}, good={"coder": GoodRevision(revision=1, spec=old)})
    assert states.wanted_models() == wanted
    told = states.published.ordinal
    await states.store_rollouts({"coder": rollout(CODER)})
    assert states.wanted_models() == (*wanted, old.model)
    assert states.published.ordinal == told + 1


async def test_a_digest_is_found_in_the_history_and_in_good_states() -> None:
    states = await keeper()
    first, second = CODER, attrs.evolve(CODER, template="{{ x }}")
    for spec in (first, second, attrs.evolve(second, priority=1), first, second):
        await states.apply(one(spec), author="ann")
    assert states.revision_of("coder", second.digest) == 5
    assert states.revision_of("coder", first.digest) == 4
    assert states.revision_of("coder", first.digest, earlier_than=4) == 1
    assert states.revision_of("coder", second.digest, earlier_than=5) == 2
    assert states.revision_of("coder", second.digest, earlier_than=2) is None
    assert states.revision_of("other", first.digest) is None
    assert states.spec("coder", first.digest) == first
    gone = attrs.evolve(CODER, template="{{ y }}")
    assert states.spec("coder", gone.digest) is None
    await states.store_rollouts({}, good={"coder": GoodRevision(revision=9, spec=gone)})
    assert states.spec("coder", gone.digest) == gone
    assert states.revision_of("coder", gone.digest) == 9
    assert states.revision_of("coder", gone.digest, earlier_than=9) is None
