"""When a wait for a revision ends, and how: a machine over random histories, and single cases."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.cli.fleet.fleet_client import (
    LIVE,
    DeploymentView,
    FleetStateView,
    InstanceView,
    ReplicasView,
    RevisionView,
    RolloutsView,
    RolloutView,
)
from paddler_trio.cli.fleet.rollout_progress import (
    STUCK_S,
    Ended,
    Ending,
    RolloutProgress,
    exit_code,
)
from paddler_trio.cli.terminal import DONE, FAILED, ROLLED_BACK, TIMED_OUT

OURS = 5
SPECS = {"default": {"name": "default", "model": "a"}, "coder": {"name": "coder", "model": "b"}}
OVER = ("complete", "rolled_back", "aborted")
PHASES = st.sampled_from([*sorted(LIVE), *OVER])
AGENT_PHASES = st.sampled_from(
    ["waiting", "prefetching", "prefetched", "draining", "loading", "probing", "serving", "failed"]
)


def progress(*names: str) -> RolloutProgress:
    return RolloutProgress(OURS, {name: SPECS[name] for name in names})


def view(*rollouts: RolloutView) -> RolloutsView:
    return RolloutsView(rollouts=list(rollouts))


def rollout(
    phase: str, *agents: str, name: str = "default", to: int = OURS, reason: str | None = None
) -> RolloutView:
    shown = [InstanceView(agent=f"a{i}", phase=each) for i, each in enumerate(agents)]
    return RolloutView(
        deployment=name, phase=phase, reason=reason, before=to - 1, to=to, agents=shown
    )


def fleet(
    *specs: dict[str, str], revision: int = OURS, note: str = "", serving: int = 0, wanted: int = 1
) -> FleetStateView:
    state = {"deployments": list(specs)}
    return FleetStateView(
        revision=RevisionView(revision=revision, note=note, author="bob", state=state),
        deployments=[
            DeploymentView(name=spec["name"], replicas=ReplicasView(serving=serving, wanted=wanted))
            for spec in specs
        ],
    )


class Waiting(RuleBasedStateMachine):
    """Anything the balancer may show, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = progress("default", "coder")
        self.now_s = 0.0
        self.shown: set[tuple[str, str]] = set()
        self.known: dict[str, Ended] = {}

    @rule(
        entries=st.lists(
            st.tuples(
                st.sampled_from(sorted(SPECS)),
                PHASES,
                st.integers(OURS - 1, OURS + 1),
                st.lists(AGENT_PHASES, max_size=3),
            ),
            max_size=2,
            unique_by=lambda entry: entry[0],
        ),
        passes_s=st.floats(0, 10),
    )
    def observe(self, entries: list[tuple[str, str, int, list[str]]], passes_s: float) -> None:
        self.now_s += passes_s
        for name, phase, to, _ in entries:
            if to >= OURS:  # a later revision may roll the same state out
                self.shown.add((name, phase))
        shown = (rollout(phase, *its, name=name, to=to) for name, phase, to, its in entries)
        self.progress.observe(view(*shown), self.now_s)

    @rule(
        specs=st.lists(st.sampled_from([*SPECS.values(), {"name": "coder", "model": "other"}])),
        revision=st.integers(OURS, OURS + 2),
        note=st.sampled_from(["", "default rolled back: a0 failed", "coder rolled back: x"]),
        serving=st.integers(0, 2),
    )
    def look_at(self, specs: list[dict[str, str]], revision: int, note: str, serving: int) -> None:
        shown = fleet(*specs, revision=revision, note=note, serving=serving)
        self.progress.look_at(shown, self.now_s)

    @invariant()
    def what_has_ended_stays_as_it_ended(self) -> None:
        ended = {each.deployment: each for each in self.progress.ended or []}
        for name, before in self.known.items():
            assert ended[name] == before
        self.known = ended

    @invariant()
    def an_ending_that_only_a_rollout_has_was_shown(self) -> None:
        for each in self.progress.ended or []:
            if each.ending is Ending.ABORTED:
                assert (each.deployment, "aborted") in self.shown
            if each.ending is Ending.PAUSED:
                assert (each.deployment, "paused") in self.shown

    @invariant()
    def time_that_is_up_gives_everyone_an_ending(self) -> None:
        ended = self.progress.ended
        if ended is not None:
            assert [each.deployment for each in ended] == list(SPECS)
            assert self.progress.give_up() == ended, "too late changes nothing"


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(stateful_step_count=15)


def test_all_deployments_must_have_an_ending() -> None:
    waiting = progress("default", "coder")
    waiting.observe(view(rollout("complete")), 0.0)
    assert waiting.ended is None
    assert waiting.asks_for_state, "of coder nothing is shown"
    waiting.observe(view(rollout("complete"), rollout("rolled_back", name="coder")), 1.0)
    assert waiting.ended is not None
    assert exit_code(waiting.ended) == ROLLED_BACK


def test_a_rollout_of_an_older_revision_is_not_ours() -> None:
    waiting = progress("default")
    waiting.observe(view(rollout("complete", to=OURS - 1)), 0.0)
    waiting.look_at(fleet(SPECS["default"], serving=0), 0.0)
    assert waiting.ended is None


def test_a_rollout_to_the_state_that_an_older_revision_brought_is_waited_for() -> None:
    for unchanged in (frozenset({"default"}), frozenset[str]()):
        waiting = RolloutProgress(OURS, {"default": SPECS["default"]}, unchanged=unchanged)
        waiting.observe(view(rollout("paused", "failed", to=OURS - 2)), 0.0)
        waiting.look_at(fleet(SPECS["default"], serving=1), 0.0)
        assert (waiting.ended is not None) == bool(unchanged)


def test_what_serves_without_a_rollout_has_ended() -> None:
    waiting = progress("default")
    waiting.observe(view(), 0.0)
    waiting.look_at(fleet(SPECS["default"], serving=1, wanted=2), 0.0)
    assert waiting.ended is None
    waiting.look_at(fleet(SPECS["default"], serving=2, wanted=2), 1.0)
    assert waiting.ended == [Ended("default", Ending.COMPLETE)]


def test_agents_that_fail_without_a_rollout_end_the_wait_after_a_while() -> None:
    waiting = progress("default")
    shown = fleet(SPECS["default"])
    failed = attrs.evolve(shown, deployments=[attrs.evolve(shown.deployments[0], phase="failed")])
    for now_s, each in ((0.0, failed), (1.0, shown), (2.0, failed), (1.9 + STUCK_S, failed)):
        waiting.observe(view(), now_s)
        waiting.look_at(each, now_s)
        assert waiting.ended is None
    waiting.look_at(failed, 2.0 + STUCK_S)
    assert waiting.ended is not None
    assert waiting.ended[0].ending is Ending.FAILED


def test_what_is_removed_has_ended_when_the_balancer_lists_it_no_more() -> None:
    waiting = RolloutProgress(OURS, {"coder": None})
    waiting.observe(view(), 0.0)
    assert waiting.ended is None
    waiting.look_at(fleet(SPECS["default"]), 0.0)
    assert waiting.ended == [Ended("coder", Ending.COMPLETE)]


def test_a_newer_revision_takes_the_place_of_ours_only_where_it_differs() -> None:
    waiting = progress("default", "coder")
    waiting.observe(view(rollout("rolling", to=OURS + 1)), 0.0)
    other = {"name": "coder", "model": "other"}
    waiting.look_at(fleet(SPECS["default"], other, revision=OURS + 1), 0.0)
    waiting.observe(view(rollout("complete", to=OURS + 1)), 1.0)
    waiting.look_at(fleet(SPECS["default"], other, revision=OURS + 1, serving=1), 1.0)
    assert waiting.ended == [
        Ended("default", Ending.COMPLETE),
        Ended("coder", Ending.SUPERSEDED, f"revision {OURS + 1} by bob took its place"),
    ]
    assert exit_code(waiting.ended) == FAILED


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("a0 crashed", Ending.ROLLED_BACK), ("aborted by bob", Ending.ABORTED)],
)
def test_a_rollback_whose_rollout_is_forgotten_shows_in_the_note(
    reason: str, ending: Ending
) -> None:
    waiting = progress("default")
    waiting.observe(view(), 0.0)
    before = {"name": "default", "model": "before"}
    note = f"default rolled back: {reason}"
    waiting.look_at(fleet(before, revision=OURS + 1, note=note), 0.0)
    assert waiting.ended == [Ended("default", ending, reason)]


def test_agents_that_failed_and_do_nothing_end_the_wait_after_a_while() -> None:
    waiting = progress("default")
    waiting.observe(view(rollout("canary", "failed", "loading")), 0.0)
    waiting.observe(view(rollout("canary", "failed", "waiting")), 1.0)
    waiting.observe(view(rollout("canary", "loading", "waiting")), 2.0)
    stuck = view(rollout("canary", "failed", "waiting"))
    waiting.observe(stuck, 3.0)
    waiting.observe(stuck, 2.9 + STUCK_S)
    assert waiting.ended is None
    waiting.observe(stuck, 3.0 + STUCK_S)
    assert waiting.ended == [Ended("default", Ending.FAILED, "a0: it does not say why")]


def test_a_pause_that_nobody_ordered_ends_the_wait() -> None:
    ordered = "paused by the operator"
    for agent, reason in (("failed", ordered), ("waiting", "no agent advanced for 600 s")):
        waiting = progress("default")
        waiting.observe(view(rollout("paused", "serving", "waiting", reason=ordered)), 0.0)
        assert waiting.ended is None
        waiting.observe(view(rollout("paused", "serving", agent, reason=reason)), 1.0)
        assert waiting.ended == [Ended("default", Ending.PAUSED, reason)]


def test_time_that_is_up_names_who_is_not_ready() -> None:
    waiting = progress("default")
    waiting.observe(view(rollout("rolling", "serving", "loading", *["waiting"] * 7)), 0.0)
    (ended,) = waiting.give_up()
    assert ended.reason == "rolling (loading: a1, waiting: a2, a3, a4, a5, a6 and more)"
    assert exit_code([ended]) == TIMED_OUT
    assert exit_code([]) == DONE
