"""What is said of agents, deployments and a fleet: the words, and what they must never say."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.truth.agent_truth import (
    AgentFacts,
    paddlers_phase,
    truth_of_agent,
    truth_of_gone,
)
from paddler_trio.scheduler.truth.deployment_truth import (
    STATES,
    UNDER_WAY,
    AgentCounts,
    DeploymentFacts,
    RolloutFacts,
    truth_of_deployment,
)
from paddler_trio.scheduler.truth.problems import (
    BalancerFacts,
    FleetFacts,
    GoneFacts,
    RefusedFacts,
    problems_of,
)
from paddler_trio.scheduler.truth.truths import SEVERITIES, span

ROLLING = RolloutFacts(phase="rolling", aim="d", revision="revision 5", done=1, total=3)
ALL = AgentCounts(connected=3, answering=3, current=3, slots=12, free=12)
DOWN = AgentCounts(connected=2, failed=2, reason="the model could not be loaded.")

small = st.integers(0, 4)
counts = st.builds(
    AgentCounts,
    connected=small,
    answering=small,
    current=small,
    slots=small,
    free=small,
    failed=small,
    ejected=small,
    drained=small,
    unloaded=small,
    moving=small,
    reason=st.sampled_from(["", "no space left"]),
).filter(
    lambda c: (
        c.current <= c.answering <= c.connected
        and c.free <= c.slots
        and (c.slots > 0) == (c.answering > 0)
    )
)
rollouts = st.none() | st.builds(
    RolloutFacts,
    phase=st.sampled_from([*UNDER_WAY, "paused", "complete", "rolled_back", "aborted"]),
    aim=st.just("d"),
    revision=st.just("revision 5"),
    reason=st.sampled_from(["", "it did not load."]),
    done=small,
    total=small,
)
deployments = st.builds(
    DeploymentFacts,
    is_empty=st.booleans(),
    wanted=small,
    is_all=st.booleans(),
    agents=counts,
    offline=small,
    waiting=small,
    is_full=st.booleans(),
    expected=st.sampled_from(["", "the model is being loaded on a1"]),
    left_s=st.none() | st.floats(0, 100),
    timeout_s=st.just(30.0),
    rollout=rollouts,
)


@pytest.mark.parametrize(
    ("facts", "state", "severity", "sentence", "follows"),
    [
        (
            DeploymentFacts(wanted=3, agents=ALL),
            "serving",
            "ok",
            "3 agents answer with 12 slots",
            "",
        ),
        (  # a rolling change is no outage
            DeploymentFacts(
                wanted=3,
                agents=attrs.evolve(ALL, answering=2, current=1, slots=8, free=3, moving=1),
                expected="the model is being loaded on a1",
                left_s=4.0,
                rollout=ROLLING,
            ),
            "changing",
            "info",
            "2 agents answer with 8 slots; 1 of 3 agents has revision 5",
            "",
        ),
        (  # an agent was killed, and slots are free: nothing is held
            DeploymentFacts(
                wanted=2,
                agents=AgentCounts(connected=2, answering=2, current=2, slots=8, free=6),
                offline=1,
                expected="the model is being loaded on a1",
            ),
            "partly",
            "warn",
            "2 agents answer with 8 slots; 1 agent is offline",
            "",
        ),
        (
            DeploymentFacts(
                wanted=1, agents=AgentCounts(connected=1, answering=1, current=1, slots=4, free=0)
            ),
            "serving",
            "ok",
            "1 agent answers with 4 slots",
            "all slots are taken: a request waits for its turn",
        ),
        (
            DeploymentFacts(
                wanted=1,
                agents=AgentCounts(connected=1, moving=1),
                expected="the model is being loaded on a1",
                left_s=4.0,
            ),
            "loading",
            "info",
            "no agent answers: the model is being loaded on a1",
            "requests wait until it is there, about 4.0 s",
        ),
        (
            DeploymentFacts(wanted=2, agents=DOWN, timeout_s=30.0),
            "failed",
            "bad",
            "no agent answers: the model could not be loaded",
            "requests wait, and end with 504 after 30 s",
        ),
        (
            DeploymentFacts(
                wanted=2,
                agents=attrs.evolve(DOWN, answering=2, slots=8, free=8),
                rollout=attrs.evolve(ROLLING, phase="rolled_back", reason="no template."),
            ),
            "failed",
            "warn",
            "2 agents answer with 8 slots, all of them with what was desired before: no template",
            "",
        ),
        (
            DeploymentFacts(wanted=1, agents=AgentCounts(connected=2, unloaded=2), timeout_s=30.0),
            "drained",
            "warn",
            "no agent answers: operators unloaded it on all of its agents",
            "requests wait, and end with 504 after 30 s",
        ),
        (
            DeploymentFacts(agents=AgentCounts(connected=2, unloaded=1, drained=1), timeout_s=9.0),
            "drained",
            "warn",
            "no agent answers: operators unloaded or drained all of its agents",
            "requests wait, and end with 504 after 9.0 s",
        ),
        (
            DeploymentFacts(wanted=1, agents=AgentCounts(connected=1, drained=1), timeout_s=30.0),
            "drained",
            "warn",
            "no agent answers: all of its agents are drained",
            "requests wait, and end with 504 after 30 s",
        ),
        (
            DeploymentFacts(offline=2, timeout_s=30.0, is_full=True),
            "failed",
            "bad",
            "no agent answers: 2 agents that served it are gone",
            "as many requests wait as may: others are refused with 503",
        ),
        (  # nobody loads anything on an agent that was lost a moment ago
            DeploymentFacts(
                offline=1,
                expected="the connection to a1 broke, and may be up again",
                left_s=9.0,
                timeout_s=30.0,
            ),
            "failed",
            "bad",
            "no agent answers: the connection to a1 broke, and may be up again",
            "requests wait 9.0 s for it, and end with 504 30 s later",
        ),
        (  # there are agents, and none has room
            DeploymentFacts(
                is_all=True,
                wanted=1,
                timeout_s=30.0,
                rollout=attrs.evolve(ROLLING, reason="no memory on a1"),
            ),
            "waiting",
            "bad",
            "no agent answers: no memory on a1",
            "requests wait, and end with 504 after 30 s",
        ),
        (  # the queue is full, and agents answer
            DeploymentFacts(
                wanted=1,
                agents=AgentCounts(connected=1, answering=1, current=1, slots=4),
                waiting=3,
                is_full=True,
            ),
            "serving",
            "ok",
            "1 agent answers with 4 slots",
            "3 requests wait for a turn, as many as may: others are refused with 503",
        ),
        (  # an operator asked for the state before
            DeploymentFacts(
                wanted=3,
                agents=ALL,
                rollout=attrs.evolve(ROLLING, phase="rolling_back", is_wanted=True),
            ),
            "changing",
            "info",
            "3 agents answer with 12 slots; 1 of 3 agents is back at revision 5",
            "",
        ),
    ],
)
def test_every_state_of_a_deployment_has_its_words(
    facts: DeploymentFacts, state: str, severity: str, sentence: str, follows: str
) -> None:
    truth = truth_of_deployment(facts)
    assert (truth.state, truth.severity) == (state, severity)
    assert (truth.sentence, truth.follows) == (sentence, follows)


@given(deployments)
def test_nothing_is_held_that_is_answered_and_nothing_is_well_that_is_not(
    facts: DeploymentFacts,
) -> None:
    truth = truth_of_deployment(facts)
    assert truth.state in STATES
    assert truth.severity in SEVERITIES
    answers = facts.agents.answering > 0 and not facts.is_empty
    assert ("no agent answers" in truth.sentence) == (not answers and not facts.is_empty)
    if answers:
        assert "wait until" not in truth.follows
        assert "504" not in truth.follows
        assert (truth.follows == "") == (facts.meets == "slot" and not facts.waiting)
    if truth.severity == "ok":
        assert answers
        assert facts.agents.current >= facts.wanted
        assert facts.offline == 0
    assert not truth.sentence.endswith(".")


@pytest.mark.parametrize(
    ("agent", "word", "severity"),
    [
        (AgentFacts(label="a", phase="serving", gets_work=True), "serving", "ok"),
        (AgentFacts(label="a", phase="serving", gets_work=True, issues=1), "serving", "warn"),
        (AgentFacts(label="a", phase="serving"), "not accepting", "warn"),
        (
            AgentFacts(label="a", phase="serving", is_ejected=True, is_drained=True),
            "ejected",
            "bad",
        ),
        (AgentFacts(label="a", phase="serving", is_drained=True, busy=2), "draining", "quiet"),
        (AgentFacts(label="a", phase="serving", is_drained=True), "drained", "quiet"),
        (AgentFacts(label="a", phase="unloaded", is_drained=True), "unloaded", "quiet"),
        (AgentFacts(label="a", phase="unloaded", detail="since 2"), "unloaded", "quiet"),
        (AgentFacts(label="a", phase="unloading", busy=1), "unloading", "quiet"),
        (AgentFacts(label="a", phase="loading", progress=0.256), "loading 26%", "info"),
        (AgentFacts(label="a", phase="draining"), "changing the model", "info"),
        (AgentFacts(label="a", phase="failed"), "failed", "bad"),
        (
            AgentFacts(label="a", phase="failed", gets_work=True),
            "failed, serves the model before",
            "warn",
        ),
        (AgentFacts(label="a", phase="waiting"), "no model", "quiet"),
    ],
)
def test_every_state_of_an_agent_has_its_word(agent: AgentFacts, word: str, severity: str) -> None:
    truth = truth_of_agent(agent)
    assert (truth.word, truth.severity) == (word, severity)


def test_an_agent_of_paddler_has_a_phase_from_its_status() -> None:
    def phase(status: str, **more: bool | int) -> str:
        known = {"slots": 4, "downloads": False, "has_model": True} | more
        return paddlers_phase(
            status,
            slots=int(known["slots"]),
            downloads=bool(known["downloads"]),
            has_model=bool(known["has_model"]),
        )

    assert phase("Applied") == "serving"
    assert phase("Applied", slots=0) == "waiting"
    assert phase("Applied", downloads=True) == "downloading"
    assert phase("Fresh", has_model=False) == "waiting"
    assert phase("AttemptedAndRetrying") == "loading"
    assert phase("AttemptedAndNotAppliable") == phase("Stuck") == "failed"


def test_one_that_was_stopped_is_no_problem_and_one_that_was_lost_is() -> None:
    assert truth_of_gone(said_goodbye=True, last_words="").severity == "quiet"
    lost = truth_of_gone(said_goodbye=False, last_words="serving")
    assert (lost.word, lost.severity) == ("offline", "bad")
    assert lost.sentence == "its connection broke; its last words: serving"


def test_each_problem_says_what_it_is_what_follows_and_what_to_do() -> None:
    facts = FleetFacts(
        deployments={
            "default": DeploymentFacts(wanted=2, agents=DOWN, timeout_s=30.0),
            "coder": DeploymentFacts(
                wanted=3,
                agents=ALL,
                rollout=attrs.evolve(ROLLING, phase="rolled_back", reason="it did not load."),
            ),
        },
        agents=[AgentFacts(label="a1", phase="failed", detail="no space left on /models.")],
        gone=[
            GoneFacts(name="a2", said_goodbye=False, reason="it is gone"),
            GoneFacts(name="a3", said_goodbye=True),
        ],
        refused=[RefusedFacts(address="10.0.0.9", status=401, times=7)],
        balancer=BalancerFacts(
            waiting=30,
            most_waiting=30,
            lag_s=2.0,
            certificate_left_s=86_400.0,
            audit_problem="no space left.",
            history_problem="it cannot be written: no space left.",
            suspicious=["a4"],
        ),
    )
    problems = problems_of(facts)
    assert [each.id for each in problems if each.severity == "bad"] == [
        "balancer:full",
        "balancer:audit",
        "credential:a4",
        "deployment:default",
        "agent:a2",
        "agent:a1",
    ]
    assert [each.id for each in problems if each.severity == "warn"] == [
        "balancer:lag",
        "balancer:certificate",
        "balancer:history",
        "rollout:coder",
        "refused:10.0.0.9",
    ]
    assert len({each.id for each in problems}) == len(problems)
    by_id = {each.id: each for each in problems}
    assert by_id["rollout:coder"].sentence == "it failed and was taken back: it did not load"
    assert by_id["refused:10.0.0.9"].sentence == "it was refused with 401, 7 times"
    for each in problems:
        assert each.sentence
        assert each.todo, each.id
        assert not each.sentence.endswith(".")


@given(deployments)
def test_a_deployment_is_a_problem_if_and_only_if_it_is_said_to_be(
    facts: DeploymentFacts,
) -> None:
    truth = truth_of_deployment(facts)
    found = [each.id for each in problems_of(FleetFacts(deployments={"d": facts}))]
    assert ("deployment:d" in found) == (truth.severity in ("warn", "bad"))


def test_nothing_is_wrong_of_a_new_fleet() -> None:
    assert problems_of(FleetFacts()) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.02, "20 ms"),
        (4, "4.0 s"),
        (29.4, "29 s"),
        (600, "10 min"),
        (7201, "2 h"),
        (1e6, "12 days"),
    ],
)
def test_a_time_is_as_exact_as_somebody_needs_it(seconds: float, words: str) -> None:
    assert span(seconds) == words
