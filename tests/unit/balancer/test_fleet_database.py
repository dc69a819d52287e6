"""The fleet's files: a crash between any two writes leaves the old revision or the new one."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
import trio
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from effort import examples
from fleet_states import states
from paddler_trio.balancer.fleet import fleet_database, state_database
from paddler_trio.balancer.fleet.fleet_database import FileDatabase, open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.fleet.state_database import StateFile
from paddler_trio.balancer.fleet.stored_fleet import (
    MAX_HISTORY,
    FleetTooLargeError,
    GoodRevision,
    StoredFleet,
    StoredRollout,
    rendered_fleet,
)
from paddler_trio.errors import StateDatabaseError
from paddler_trio.nursery_tree.dispatcher import Dispatcher, DispatchLimits
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    LocalToAgent,
    applicable_state,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.default_deployment import desired_of
from paddler_trio.wire.trio.desired_state_extras import EngineOverrides, Extras
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState

NEW = BalancerDesiredState.default()
TIME = "2026-01-02T03:04:05Z"
CODER = DeploymentSpec(name="coder", model=LocalToAgent("/c.gguf"))
paddler_states = st.builds(
    attrs.evolve,
    st.just(NEW),
    model=st.sampled_from([NEW.model, LocalToAgent("/m.gguf"), LocalToAgent("/n.gguf")]),
    chat_template_override=st.none() | st.builds(ChatTemplate, st.sampled_from(["a", "b"])),
    use_chat_template_override=st.booleans(),
)
extras = st.builds(Extras, engine=st.builds(EngineOverrides, max_drafts=st.integers(0, 2)))


CRASHES: dict[str, Any] = {
    "after": st.none() | st.integers(0, 4),
    "how": st.sampled_from(["before", "after", "error"]),
}


class Crash(BaseException):
    """The process ends here."""


class Disk:
    """Replaces files, until it is told to fail."""

    def __init__(self) -> None:
        self.real: Callable[[Path, bytes], None] = state_database.replace
        self.left: int | None = None
        self.how = ""

    def fail(self, after: int, how: str) -> None:
        self.left, self.how = after, how

    def __call__(self, path: Path, text: bytes) -> None:
        if self.left is None:
            self.real(path, text)
            return
        self.left -= 1
        if self.left >= 0:
            self.real(path, text)
            return
        self.left = None
        if self.how == "after":
            self.real(path, text)
        if self.how == "error":
            raise StateDatabaseError("no space left")
        raise Crash


def keeper(path: Path) -> FleetKeeper:
    return FleetKeeper(
        FileDatabase(path, now=lambda: TIME),
        Dispatcher(DispatchLimits(max_buffered=1)),
        now=lambda: TIME,
    )


class FilesOfAFleet(RuleBasedStateMachine):
    """A keeper over real files, which crashes, is started again, and has its files edited."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="paddler-trio-fleet-"))
        self.path = self.folder / "state.json"
        self.disk = Disk()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(state_database, "replace", self.disk)
        self.patch.setattr(fleet_database, "replace", self.disk)
        self.patch.setattr(os, "fsync", lambda descriptor: None)  # no power cut is tested here
        self.restart()

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)

    def stored(self) -> StoredFleet:
        states = self.keeper
        return StoredFleet(
            desired=states.desired,
            history=states.history,
            good=states.good,
            rollouts=states.rollouts,
            load_s=states.load_s,
        )

    def restart(self) -> StoredFleet:
        self.keeper = keeper(self.path)
        trio.run(self.keeper.load)
        return self.stored()

    def change(self, action: Callable[[], Any], after: int | None, how: str) -> None:
        """Do something with a disk that fails at the write ``after`` so many, None for never."""
        before = self.stored()
        if after is not None:
            self.disk.fail(after, how)
        try:
            trio.run(action)
        except Crash:
            self.disk.left = None
            came_back = self.restart()
            if came_back == before:
                return
            # the new one, as it would have been
            trio.run(action)
            assert self.keeper.current.revision == came_back.current.revision
            assert self.stored() == came_back
        except StateDatabaseError:
            self.disk.left = None
            assert self.stored() == before
            assert self.restart() == before
        else:
            self.disk.left = None

    @rule(state=states, **CRASHES)
    def apply(self, state: FleetState, after: int | None, how: str) -> None:
        self.change(partial(self._apply, state), after, how)

    async def _apply(self, state: FleetState) -> None:
        await self.keeper.apply(state, author="ann")

    @rule(desired=paddler_states, extras=st.none() | extras, **CRASHES)
    def replace(
        self, desired: BalancerDesiredState, extras: Extras | None, after: int | None, how: str
    ) -> None:
        self.change(partial(self._replace, desired, extras), after, how)

    async def _replace(self, desired: BalancerDesiredState, extras: Extras | None) -> None:
        await self.keeper.replace(desired, extras, author="ann")

    @rule(**CRASHES)
    def make_progress(self, after: int | None, how: str) -> None:
        self.change(self._make_progress, after, how)

    async def _make_progress(self) -> None:
        current = self.keeper.current
        specs = current.state.by_name
        await self.keeper.store_rollouts(
            {
                name: StoredRollout(
                    good=None,
                    target=spec.digest,
                    phase="canary",
                    started=TIME,
                    advanced=TIME,
                    reason=None,
                )
                for name, spec in specs.items()
            },
            good={
                name: GoodRevision(revision=current.revision, spec=spec)
                for name, spec in specs.items()
            },
            load_s={spec.digest: 2.5 for spec in specs.values()},
        )

    @rule(desired=paddler_states)
    def edit_paddlers_file(self, desired: BalancerDesiredState) -> None:
        """Another program stores a state while no balancer runs."""
        before = self.stored()
        StateFile(self.path).write(desired)
        after = self.restart()
        assert after.desired == desired
        others = {n: s for n, s in before.current.state.by_name.items() if n != DEFAULT}
        assert {n: s for n, s in after.current.state.by_name.items() if n != DEFAULT} == others
        if applicable_state(desired) == applicable_state(before.desired):
            assert after.current == before.current
        else:
            assert after.current.author == "state file"
            assert after.current.revision == before.current.revision + 1

    @invariant()
    def a_restart_changes_nothing(self) -> None:
        before = self.stored()
        assert self.restart() == before

    @invariant()
    def paddlers_state_and_default_are_one(self) -> None:
        assert desired_of(self.keeper.current.state, self.keeper.desired) == self.keeper.desired

    @invariant()
    def revisions_count_up_and_neighbours_differ(self) -> None:
        numbers = [each.revision for each in self.keeper.history]
        assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))

    @invariant()
    def no_temporary_files_are_left(self) -> None:
        kept = {"state.json", "state.json.fleet.json", "state.json.fleet.json.previous"}
        assert {path.name for path in self.folder.iterdir()} <= kept


FilesOfAFleet.TestCase.settings = settings(
    max_examples=examples(50),
    stateful_step_count=15,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink files takes minutes
)
TestFilesOfAFleet = pytest.mark.thorough(FilesOfAFleet.TestCase)


CHAT = DeploymentSpec(name=DEFAULT, model=LocalToAgent("/m.gguf"))
UNUSED = ChatTemplate("not in use")
STEPS: dict[str, Callable[[StoredFleet], StoredFleet]] = {
    "another deployment": lambda stored: revision(stored, FleetState((CHAT, CODER))),
    "another default": lambda stored: revision(
        stored, FleetState((attrs.evolve(CHAT, template="{{ x }}"), CODER))
    ),
    "no deployment any more": lambda stored: revision(stored, FleetState()),
    "a template that is not in use": lambda stored: attrs.evolve(
        stored, desired=attrs.evolve(stored.desired, chat_template_override=UNUSED)
    ),
}
"""From a state with default, coder, a good coder and its rollout."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["before", "after", "error"])
async def test_whatever_write_is_the_last_one_the_old_or_the_new_fleet_is_there(
    tmp_path: Path, step: str, how: str
) -> None:
    path = tmp_path / "state.json"
    database = FileDatabase(path, now=lambda: TIME)
    coder = attrs.evolve(CODER, priority=1)
    old = revision(await database.read(), FleetState((CHAT, coder)))
    rollout = StoredRollout(
        good=None, target=coder.digest, phase="canary", started=TIME, advanced=TIME, reason="why"
    )
    old = await database.write(old)
    old = await database.write_progress(
        attrs.evolve(
            old,
            good={"coder": GoodRevision(revision=1, spec=coder)},
            rollouts={"coder": rollout},
            load_s={coder.digest: 12.345, CHAT.digest: 2.5},
        ).without_leftovers()
    )
    assert old.named == (coder,)
    files = contents(tmp_path)
    new = STEPS[step](old)
    found = []
    for writes in range(6):
        put_back(tmp_path, files)
        database = FileDatabase(path, now=lambda: TIME)
        assert await database.read() == old
        disk = Disk()
        disk.fail(writes, how)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_database, "replace", disk)
            patch.setattr(fleet_database, "replace", disk)
            try:
                told = await database.write(new)
            except Crash:
                told = None
            except StateDatabaseError:
                told = old
        came_back = await FileDatabase(path, now=lambda: TIME).read()
        assert came_back in (old, new) if told is None else came_back == told
        assert await FileDatabase(path, now=lambda: TIME).read() == came_back
        found.append(came_back)
    assert found == sorted(found, key=lambda each: each == new), "once it is new it stays new"
    assert found[-1] == new


async def test_what_a_rollout_names_outlives_its_revision(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    database = FileDatabase(path, now=lambda: TIME)
    models = [LocalToAgent(f"/{number}.gguf") for number in range(MAX_HISTORY + 5)]
    coders = [attrs.evolve(CODER, model=model) for model in models]
    first, second = coders[:2]
    stored = revision(await database.read(), FleetState((first,)))
    stored = revision(await database.write(stored), FleetState((second,)))
    rollout = StoredRollout(
        good=first.digest,
        target=second.digest,
        phase="rolling",
        started=TIME,
        advanced=TIME,
        reason=None,
        others=("0" * 64,),
    )
    stored = attrs.evolve(stored, rollouts={"coder": rollout}).without_leftovers()
    for coder in coders[2:]:
        stored = await database.write(revision(stored, FleetState((coder,))))
    came_back = await FileDatabase(path, now=lambda: TIME).read()
    assert came_back == stored
    assert came_back.named == (first, second)
    assert came_back.spec("coder", first.digest) == first
    assert came_back.spec("coder", "0" * 64) is None

    over = attrs.evolve(stored, rollouts={}).without_leftovers()
    assert over.named == ()


def test_a_file_that_is_too_small_loses_what_rollouts_name_before_it_refuses_a_revision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = [attrs.evolve(CODER, template=letter * 1000) for letter in "abc"]
    stored = StoredFleet.new(TIME)
    for spec in large:
        stored = revision(stored, FleetState((spec,)))
    stored = attrs.evolve(stored, named=tuple(large[:2]))
    fits = attrs.evolve(stored, history=stored.history[:1], named=(large[0],))
    most_bytes = len(rendered_fleet(fits, None))
    monkeypatch.setattr(fleet_database, "MAX_FLEET_FILE_BYTES", most_bytes)
    _, fitted = fleet_database._fitted(stored, None)
    assert (len(fitted.history), fitted.named) == (1, (large[0],))


def test_load_times_go_with_the_good_state_that_they_were_kept_for() -> None:
    served = StoredFleet.new(TIME).with_revision(
        FleetState((CODER,)), NEW, author="ann", time=TIME, note=""
    )
    before = attrs.evolve(CODER, priority=1)
    served = attrs.evolve(
        served,
        good={"coder": GoodRevision(revision=1, spec=before)},
        load_s={CODER.digest: 2.5, before.digest: 3.5},
    )
    assert served.without_leftovers() == served
    gone = served.with_revision(FleetState(), NEW, author="ann", time=TIME, note="")
    assert (gone.good, gone.load_s) == ({}, {})


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.iterdir()}


def put_back(folder: Path, files: dict[Path, bytes]) -> None:
    for file in folder.iterdir():
        file.unlink()
    for file, text in files.items():
        file.write_bytes(text)


def revision(stored: StoredFleet, state: FleetState) -> StoredFleet:
    desired = desired_of(state, stored.desired)
    return stored.with_revision(state, desired, author="ann", time=TIME, note="")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: StateFile(path).write(NEW),
        lambda path: path.unlink(),
    ],
)
async def test_what_another_program_changed_is_a_revision_with_the_file_before_it_kept(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    database = FileDatabase(tmp_path / "state.json")
    await database.write(revision(await database.read(), FleetState((CHAT, CODER))))
    first = database.fleet_path.read_text()
    change(tmp_path / "state.json")
    with structlog.testing.capture_logs() as told:
        found = await FileDatabase(tmp_path / "state.json").read()
        assert await FileDatabase(tmp_path / "state.json").read() == found
    assert (found.current.revision, found.current.author) == (2, "state file")
    assert (tmp_path / "state.json.fleet.json.previous").read_text() == first
    assert [each["undo"] for each in told if each["log_level"] == "warning"] == [
        "paddler-trio fleet undo --to-revision 1"
    ], "an operator who did not mean it hears so once"


@pytest.mark.parametrize("blank", ["", "\n  \n"])
async def test_an_empty_file_is_damage_and_becomes_what_the_newest_revision_left(
    tmp_path: Path, blank: str
) -> None:
    path = tmp_path / "state.json"
    database = FileDatabase(path)
    await database.write(revision(await database.read(), FleetState((CHAT,))))
    stored = await database.write(revision(await database.read(), FleetState((CHAT, CODER))))
    kept = contents(tmp_path)
    path.write_text(blank)
    with structlog.testing.capture_logs() as told:
        assert await FileDatabase(path).read() == stored
    assert contents(tmp_path) == kept
    (warning,) = [each for each in told if each["log_level"] == "warning"]
    assert warning["event"].startswith("the state file was empty")
    assert (warning["path"], warning["revision"]) == (str(path), 2)


async def test_an_empty_file_beside_a_damaged_one_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("")
    FileDatabase(path).fleet_path.write_text("{")
    kept = contents(tmp_path)
    with pytest.raises(StateDatabaseError, match="is not a valid fleet"):
        await FileDatabase(path).read()
    assert contents(tmp_path) == kept


async def test_an_empty_file_without_revisions_is_that_of_a_new_balancer_and_it_is_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    path.write_text("")
    with structlog.testing.capture_logs() as told:
        found = await FileDatabase(path).read()
    assert found.desired == NEW
    assert found.current.revision == 0
    (warning,) = [each for each in told if each["log_level"] == "warning"]
    assert warning["event"] == (
        "the state file is empty, and no revision is kept: no model is desired"
    )


async def test_an_empty_fleet_costs_deployments_and_it_is_said_how_to_undo_that(
    tmp_path: Path,
) -> None:
    database = FileDatabase(tmp_path / "state.json")
    await database.write(revision(await database.read(), FleetState((CHAT, CODER))))
    await database.write(revision(await database.read(), FleetState((CHAT,))))
    database.fleet_path.write_text("")
    with structlog.testing.capture_logs() as told:
        await FileDatabase(database.path).read()
    (warning,) = [each for each in told if each["log_level"] == "warning"]
    assert warning["event"].startswith("the fleet's file is empty")
    assert warning["undo"] == "put state.json.fleet.json.previous in its place and restart"


async def test_the_file_before_the_newest_revision_is_kept(tmp_path: Path) -> None:
    database = FileDatabase(tmp_path / "state.json")
    stored = await database.read()
    assert not database.fleet_path.exists(), "a new balancer has nothing to keep"
    previous = tmp_path / "state.json.fleet.json.previous"
    stored = await database.write(revision(stored, FleetState((CODER,))))
    first = database.fleet_path.read_text()
    assert not previous.exists()
    stored = await database.write(revision(stored, FleetState()))
    assert previous.read_text() == first
    await database.write_progress(stored)
    assert previous.read_text() == first


async def test_what_is_equal_in_many_revisions_is_written_once(tmp_path: Path) -> None:
    database = FileDatabase(tmp_path / "state.json")
    stored = await database.read()
    large = attrs.evolve(CODER, template="x" * 100_000)
    for number in range(25):
        other = attrs.evolve(CODER, name="other", priority=number)
        stored = await database.write(revision(stored, FleetState((large, other))))
    assert len(stored.history) == 20
    assert database.fleet_path.stat().st_size < 200_000
    assert await FileDatabase(tmp_path / "state.json").read() == stored


@pytest.mark.thorough
async def test_old_revisions_make_room_and_the_newest_must_fit(tmp_path: Path) -> None:
    database = FileDatabase(tmp_path / "state.json")
    stored = await database.read()
    for letter in "abcdef":
        large = attrs.evolve(CODER, template=letter * 1_800_000)
        stored = await database.write(revision(stored, FleetState((large,))))
    assert [each.revision for each in stored.history] == [6, 5, 4, 3]
    assert await FileDatabase(tmp_path / "state.json").read() == stored
    too_large = tuple(
        attrs.evolve(CODER, name=f"d{n}", template=str(n) * 1_800_000) for n in range(5)
    )
    with pytest.raises(FleetTooLargeError, match=r"bytes of its file.*limit is 8388608: shorten"):
        await database.write(revision(stored, FleetState(too_large)))
    assert await FileDatabase(tmp_path / "state.json").read() == stored


EMPTY_FILE: dict[str, object] = {
    "version": "5",
    "written_by": "",
    "history": [],
    "good": [],
    "rollouts": [],
    "loads": [],
    "named": [],
    "specs": [],
}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not valid JSON"),
        ("{}", r"required field missing @ \$.version"),
        ('{"version": 2}', r"expected 5, got 2 @ \$.version"),
        (json.dumps(EMPTY_FILE), r"no revision @ \$.history"),
        (
            json.dumps(
                {
                    **EMPTY_FILE,
                    "history": [
                        {
                            "revision": 1,
                            "author": "",
                            "time": "",
                            "note": "",
                            "failed": [],
                            "deployments": [3],
                        }
                    ],
                }
            ),
            r"there is no 3, only 0 @ \$.specs",
        ),
    ],
)
async def test_a_broken_file_is_named_and_left_as_it_is(
    tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "state.json.fleet.json"
    file.write_text(content)
    with pytest.raises(StateDatabaseError, match=problem) as caught:
        await open_fleet_database(f"file://{tmp_path}/state.json").read()
    assert "put state.json.fleet.json.previous in its place" in str(caught.value)
    assert file.read_text() == content


async def test_a_folder_that_is_only_read_is_read_all_the_same(tmp_path: Path) -> None:
    """As of before there was a fleet: Paddler's file alone."""
    state = StateFile(tmp_path / "state.json")
    state.write(attrs.evolve(NEW, model=LocalToAgent("/m.gguf")))
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk()
        disk.fail(0, "error")
        patch.setattr(fleet_database, "replace", disk)
        stored = await FileDatabase(tmp_path / "state.json").read()
    assert (stored.current.revision, stored.current.author) == (1, "state file")
    assert stat.S_ISREG((tmp_path / "state.json").lstat().st_mode)
    assert not (tmp_path / "state.json.fleet.json").exists()


@pytest.mark.parametrize("version", ["6", "4", "one"])
async def test_a_file_of_another_version_is_left_alone_and_its_writer_is_named(
    tmp_path: Path, version: str
) -> None:
    file = tmp_path / "state.json.fleet.json"
    other = json.dumps({"version": version, "written_by": "paddler-trio 7", "other": 1})
    file.write_text(other)
    with pytest.raises(StateDatabaseError) as caught:
        await FileDatabase(tmp_path / "state.json").read()
    assert f"version {version} and was written by paddler-trio 7" in str(caught.value)
    assert "reads version 5" in str(caught.value)
    assert file.read_text() == other
