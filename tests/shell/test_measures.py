"""The measures of a balancer, next to the dispatcher that they are measures of."""

from __future__ import annotations

import random

import attrs
import pytest
import trio
from dispatch_world import LIMITS, WORK, Peer, World, heard, status_of, world
from trio.testing import MockClock, wait_all_tasks_blocked

from monitoring_files import BALANCER_METRICS
from paddler_trio.balancer.activity.measures.agent_measures import REMEMBERED_S, AgentMeasures
from paddler_trio.balancer.activity.measures.balancer_measures import BalancerMeasures
from paddler_trio.balancer.activity.measures.endings import request_outcome
from paddler_trio.balancer.activity.measures.request_measures import (
    INFERENCE_ROUTES,
    RequestMeasures,
)
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.fleet_database import open_fleet_database
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.net.server.router import WEBSOCKET
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.request import Request
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.scheduler.fleet.fleet_values import (
    Host,
    Instance,
    Rollout,
    RolloutPhase,
)
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.telemetry.exposition import Exposition
from paddler_trio.telemetry.label_values import (
    QUEUE_OUTCOMES,
    REQUEST_OUTCOMES,
    RETRY_REASONS,
    SLOT_STATES,
)
from paddler_trio.telemetry.metric_kind import MAX_LABEL_VALUES
from paddler_trio.wire.trace_parent import TraceContext
from paddler_trio.wire.trio.trio_link import Report

STEPS = 150
RUN_NOTHING = (
    *("tokenize", "apply-template", "render_prompt", "input_tokens", "count_tokens"),
    *("/lora-adapters", "/props", "/audio/transcriptions", "/completions/control"),
    *("/api/show", "/api/pull", "/api/create", "/api/copy", "/api/push"),
    *("/api/me", "/api/signout"),
)
"""The ends of paths on which a question is asked, or that are refused."""
Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def measured(here: World) -> BalancerMeasures:
    dispatcher = here.dispatcher
    activity = RequestActivity()
    keeper = FleetKeeper(open_fleet_database("memory://"), dispatcher)
    requests = RequestMeasures(
        activity.finished, dispatcher.pools.serves, AgentMeasures(lambda: dispatcher.agents)
    )
    measures = BalancerMeasures(
        dispatcher,
        FleetController(keeper, dispatcher),
        requests,
        InputBudget(),
        LoopLag(),
    )
    dispatcher.observers = Observers((activity, requests))
    return measures


def shown(measures: BalancerMeasures) -> dict[str, dict[Labels, float]]:
    """All samples by name, with its suffix, and labels; no two have the same."""
    found: dict[str, dict[Labels, float]] = {}
    for each in measures.collect():
        for sample in each.samples:
            series = found.setdefault(each.definition.name + sample.suffix, {})
            assert sample.labels not in series
            series[sample.labels] = sample.value
    return found


def total(found: dict[str, dict[Labels, float]], name: str) -> float:
    return sum(found.get(name, {}).values())


@pytest.mark.parametrize("seed", range(10))
async def test_the_counts_agree_with_the_requests_whatever_happens(
    seed: int, autojump_clock: MockClock
) -> None:
    dice = random.Random(seed)
    limits = DispatchLimits(max_buffered=6, buffered_timeout_s=10, item_timeout_s=30)
    async with world(limits) as here:
        measures = measured(here)
        requests: list[Request] = []
        peers: list[Peer] = []
        tokens = 0

        def leases() -> list[tuple[Peer, str]]:
            return [
                (peer, lease.wire_id)
                for peer in peers
                for lease in peer.connection.leases()
                if not lease.request.is_over
            ]

        for number in range(STEPS):
            match dice.choice(["submit"] * 4 + ["step"] * 6 + ["stop", "join", "lose", "wait"]):
                case "submit":
                    requests.append(here.submit(f"r{number}"))
                case "step" if leases():
                    peer, wire_id = dice.choice(leases())
                    pieces = "ab"[: dice.randint(1, 2)]
                    peer.says(wire_id, *pieces, done=dice.random() < 0.3)
                    tokens += len(pieces)
                case "stop" if requests:
                    dice.choice(requests).stop()
                case "join" if len(peers) < 3:
                    peers.append(here.agent(slots=2))
                case "lose" if peers:
                    peer = peers.pop(dice.randrange(len(peers)))
                    peer.connection.said_goodbye = dice.random() < 0.5
                    here.dispatcher.leave(peer.connection)
                case "wait":
                    await trio.sleep(dice.random() * 3)
            await trio.lowlevel.checkpoint()
            _check(measures, requests, tokens)
        for peer in peers:
            here.dispatcher.leave(peer.connection)
        await trio.sleep(60)
        _check(measures, requests, tokens)
        assert all(request.is_over for request in requests)


def _check(measures: BalancerMeasures, requests: list[Request], tokens: int) -> None:
    found = shown(measures)
    over = [each for each in requests if each.is_over]
    assert total(found, "requests_total") == len(over)
    assert total(found, "request_duration_seconds_count") == len(over)
    for outcome in REQUEST_OUTCOMES:
        labels = (("route", "other"), ("outcome", outcome))
        expected = sum(request_outcome(each.ending) == outcome for each in over)
        assert found.get("requests_total", {}).get(labels, 0) == expected
    assert total(found, "generation_tokens_total") == tokens
    first = total(found, "time_to_first_token_seconds_count")
    assert first == sum(each.num_results > 0 for each in requests)
    between = total(found, "inter_token_latency_seconds_count")
    assert between <= tokens - first
    grants = sum(len(each.agents) for each in requests)
    dispatched = found["queue_duration_seconds_count"][(("outcome", "dispatched"),)]
    assert dispatched == grants
    waiting = found["requests_buffered"][()]
    retries = total(found, "retries_total")
    stays = len(requests) + retries
    assert total(found, "queue_duration_seconds_count") == stays - waiting
    assert total(found, "continuations_total") <= retries
    assert found["slots_processing"][()] == total_of(found, "agent_slots", state="processing")
    assert {dict(each)["outcome"] for each in found["queue_duration_seconds_count"]} == set(
        QUEUE_OUTCOMES
    )
    assert {dict(each)["reason"] for each in found["retries_total"]} == set(RETRY_REASONS)


def total_of(found: dict[str, dict[Labels, float]], name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for each, value in found.get(name, {}).items() if wanted <= set(each))


async def test_ways_out_of_the_queue_have_words_of_their_own(autojump_clock: MockClock) -> None:
    async with world(LIMITS) as here:
        measures = measured(here)
        here.submit("waits too long, and there is no agent")
        left = here.submit("its client leaves")
        here.submit("finds the queue full")
        left.stop()
        here.dispatcher.submit("is of no deployment", WORK, deployment="nothing")
        await trio.sleep(11)
        here.agent(slots=0)
        here.submit("waits too long, and an agent has no slot")
        await trio.sleep(11)
        peer = here.agent(slots=1)
        got = here.submit("gets a slot")
        peer.says(f"{got.key}.1", "a", done=True)
        await heard(got)
        found = shown(measures)["queue_duration_seconds_count"]
    assert {dict(labels)["outcome"]: value for labels, value in found.items() if value} == {
        "dispatched": 1,
        "rejected_capacity": 1,
        "rejected_other": 1,
        "evicted_no_endpoints": 2,
        "evicted_context_cancelled": 1,
    }


async def test_classes_of_tokens_are_apart_and_a_step_shares_its_time(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        measures, peer = measured(here), here.agent()
        request = here.submit()
        lease = peer.lease(f"{request.key}.1")
        await trio.sleep(0.3)
        for tag, number in (("ReasoningToken", 1), ("ContentToken", 4), ("ToolCallToken", 2)):
            lease.deliver("GeneratedToken", [{tag: "x"}], ends=False, tokens=[1] * number)
            await trio.sleep(0.2)
        peer.says(lease.wire_id, done=True)
        found = shown(measures)
    classes = {dict(each)["class"]: n for each, n in found["generation_tokens_total"].items()}
    assert classes == {"reasoning": 1, "content": 4, "tool_call": 2, "undeterminable": 0}
    default = ("deployment", "default")
    bucket = found["inter_token_latency_seconds_bucket"]
    assert bucket[default, ("le", "0.05")] == 4  # 0.2 s for four: 50 ms each
    assert bucket[default, ("le", "0.1")] == 6
    assert found["inter_token_latency_seconds_sum"][(default,)] == pytest.approx(0.4)
    assert found["time_to_first_token_seconds_sum"][(default,)] == pytest.approx(0.3)


async def test_a_route_is_one_that_there_is() -> None:
    async with world() as here:
        measures = measured(here)
        for route in ("/v1/chat/completions", "/of/a/client", None):
            here.dispatcher.submit("r", WORK, route=route).stop()
        found = shown(measures)["requests_total"]
    assert found == {
        (("route", "/v1/chat/completions"), ("outcome", "stopped")): 1,
        (("route", "other"), ("outcome", "stopped")): 2,
    }


async def test_an_example_names_the_trace_and_never_what_a_client_chose(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        measures = measured(here)
        trace = TraceContext("ab" * 16, "cd" * 8, is_sampled=True)
        here.dispatcher.submit("traced", WORK, trace=trace).stop()
        untraced = here.dispatcher.submit("\"} 7 # a client's", WORK)
        untraced.stop()
        await wait_all_tasks_blocked()
    duration = measures.requests.duration.of("default")
    (example,) = duration.exemplars.values()
    assert example[:2] == ("request_id", str(untraced.key))
    exemplars = measures.requests.queue.of("evicted_context_cancelled").exemplars
    assert exemplars[0][:2] == ("request_id", str(untraced.key))


async def test_an_agent_goes_by_its_name_unless_another_one_has_it() -> None:
    async with world() as here:
        measures = measured(here)
        first, twin = here.agent(name="gpu"), here.agent(name="gpu")
        up = shown(measures)["agent_up"]
        assert up == {(("agent", "gpu"),): 1, (("agent", twin.connection.id),): 1}
        here.dispatcher.leave(first.connection)
        up = shown(measures)["agent_up"]
        assert up == {(("agent", "gpu"),): 0, (("agent", twin.connection.id),): 1}
        here.agent(name="gpu")
        found = shown(measures)
        assert found["agent_up"][(("agent", "gpu"),)] == 1
        assert found["agent_connections_total"][(("agent", "gpu"),)] == 2


async def test_two_agents_share_a_label_where_the_name_of_one_is_the_id_of_the_other(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        measures = measured(here)
        here.agent(name="id2")
        twin = here.agent(name="id2")
        assert twin.connection.id == "id2"
        here.dispatcher.leave(twin.connection)
        await trio.sleep(REMEMBERED_S + 1)
        first = here.agent(name="another")
        found = shown(measures)
        assert found["agent_up"] == {(("agent", "id2"),): 1, (("agent", "another"),): 1}
        here.dispatcher.update(first.connection)


async def test_a_name_that_utf_8_does_not_have_spoils_no_text() -> None:
    async with world() as here:
        measures = measured(here)
        here.agent(name="gpu \ud800")
        here.agent(name='"} 1\n#' + "x" * 1000)
        text = (await Exposition("paddler_", measures.collect).text()).decode()
    # what cannot be seen is escaped in a name, and the backslash of that in a label
    assert 'paddler_agent_up{agent="gpu \\\\ud800"} 1.0\n' in text
    assert 'paddler_agent_up{agent="\\"} 1\\\\n#xx' in text
    assert max(map(len, text.splitlines())) < 400


async def test_a_lost_agent_is_down_for_an_hour_and_one_that_said_goodbye_is_not_shown(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        measures = measured(here)
        lost, gone = here.agent(name="lost"), here.agent(name="gone")
        gone.connection.said_goodbye = True
        for peer in (lost, gone):
            here.dispatcher.leave(peer.connection)
        found = shown(measures)
        assert found["agent_up"] == {(("agent", "lost"),): 0}
        assert "agent_slots" not in found
        await trio.sleep(REMEMBERED_S + 1)
        found = shown(measures)
        assert "agent_up" not in found
        assert "agent_connections_total" not in found


async def test_beyond_a_thousand_agents_the_others_are_one(autojump_clock: MockClock) -> None:
    more = 5
    async with world() as here:
        measures = measured(here)
        peers = [here.agent(slots=2) for _ in range(MAX_LABEL_VALUES + more)]
        found = shown(measures)
        slots = found["agent_slots"]
        assert len(slots) == (MAX_LABEL_VALUES + 1) * len(SLOT_STATES)
        assert slots[("agent", "other"), ("state", "idle")] == 2 * more
        assert found["agent_up"][(("agent", "other"),)] == more
        here.dispatcher.leave(peers.pop().connection)
        await trio.sleep(REMEMBERED_S + 1)  # one of the others is no longer remembered: not all
        here.dispatcher.update(peers[-1].connection)
        assert shown(measures)["agent_up"][(("agent", "other"),)] == more - 1
        for peer in peers:
            here.dispatcher.leave(peer.connection)
        assert total(shown(measures), "agent_up") == 0


async def test_what_an_agent_reports_is_bounded_and_added_up() -> None:
    async with world() as here:
        measures, peer = measured(here), here.agent()
        agent = peer.connection
        engine: dict[str, object] = {
            "cells_total": 100,
            "cells_used": 250,
            "cells_resident": -1,
            "last_sequences": "three",
            "restarts_crash": 2,
        }
        agent.engine_restarts = 3
        agent.report = Report("p" * 99, "s", "s", "m", None, None, engine=engine)
        here.dispatcher.update(agent)
        found = shown(measures)
        a1 = ("agent", "a1")
        assert found["agent_phase"] == {(a1, ("phase", "other")): 1}
        assert found["kv_cache_usage_ratio"] == {(a1,): 1}
        assert found["batch_width"] == {(a1,): 0}
        restarts = found["engine_restarts_total"]
        assert restarts[a1, ("reason", "crash")] == 2
        assert restarts[a1, ("reason", "unknown")] == 1


async def test_downloads_count_what_came_between_two_reports() -> None:
    async with world() as here:
        measures, peer = measured(here), here.agent()
        agent = peer.connection
        for name, current in (("a", 10), ("a", 60), ("a", 50), ("b", 500), ("b", 520), (None, 0)):
            agent.status = attrs.evolve(
                status_of(1), download_filename=name, download_current=current
            )
            here.dispatcher.update(agent)
        found = shown(measures)["download_bytes_total"]
    assert found == {(("agent", "a1"),): 70}


async def test_a_load_counts_once_and_not_when_an_agent_comes_back() -> None:
    async with world() as here:
        measures, peer = measured(here), here.agent()
        agent = peer.connection
        for load_s in (None, 2.0, 2.0, 3.0):
            agent.report = Report("serving", "s", "s", "m", None, None, load_s=load_s)
            here.dispatcher.update(agent)
        again = here.agent(name="b").connection
        again.report = Report("serving", "s", "s", "m", None, None, load_s=4.0)
        here.dispatcher.leave(again)
        assert shown(measures)["model_load_seconds_sum"] == {(): 5.0}


async def test_a_rollout_under_way_shows_who_does_what_and_for_how_long_nobody_advanced(
    autojump_clock: MockClock,
) -> None:
    async with world() as here:
        measures = measured(here)
        fleet = measures.fleet
        hosts = tuple(
            Host(
                id=f"id{number}",
                name=f"h{number}",
                instances={name: Instance(deployment=name, phase=phase, assigned="t")},
            )
            for number, (name, phase) in enumerate(
                [("coder", "loading"), ("coder", "invented"), ("default", "serving")]
            )
        )
        fleet.observation.seen.update((host.id, host) for host in hosts)
        begun = Rollout(
            deployment="coder",
            good=None,
            target="t",
            phase=RolloutPhase.ROLLING,
            started_s=trio.current_time(),
            advanced_s=trio.current_time(),
        )
        over = attrs.evolve(begun, deployment="default", phase=RolloutPhase.COMPLETE)
        fleet.rollouts = {"coder": begun, "default": over}
        await trio.sleep(7)
        found = shown(measures)
    assert found["rollout_state"] == {
        (("deployment", "coder"), ("phase", "rolling")): 1,
        (("deployment", "default"), ("phase", "complete")): 1,
    }
    assert found["rollout_stalled_seconds"] == {(("deployment", "coder"),): pytest.approx(7)}
    assert found["rollout_phase"] == {
        (("agent", "h0"), ("phase", "loading")): 1,
        (("agent", "h1"), ("phase", "other")): 1,
    }


async def test_the_families_are_those_of_the_registry_each_once() -> None:
    async with world() as here:
        measures = measured(here)
        measures.certificate_left_s = lambda: 86_400.4
        measures.placed = PlacementObserver(WarmPlacement(trio.current_time))
        names = [each.definition.name for each in measures.collect()]
        assert shown(measures)["tls_certificate_expiry_seconds"] == {(): 86_400}
    absent = ("api_key_", "model_store_")  # there is no key file, and no store
    expected = [e.name for e in BALANCER_METRICS if not e.name.startswith(absent)]
    assert sorted(names) == sorted(expected)
    assert names[:3] == expected[:3]  # Paddler's come first


async def test_every_path_to_which_requests_are_sent_is_a_route_with_a_name() -> None:
    async with world() as here:
        keeper = FleetKeeper(open_fleet_database("memory://"), here.dispatcher)
        deployments = Deployments(
            here.dispatcher,
            keeper,
            False,
            keeper.find,
            lambda: keeper.current.state.deployments,
        )
        apis, *_ = api_routers(BalancerConfig(), here.dispatcher, keeper, deployments)
        native = InferenceRoutes(here.dispatcher, keeper, trio.Event(), deployments).routes()
        tables = [apis.routes._exact, native._table._exact]
    taken = {
        path
        for table in tables
        for path, handlers in table.items()
        if {"POST", WEBSOCKET} & handlers.keys()
    }
    runs_nothing = {path for path in taken if path.endswith(RUN_NOTHING)}
    assert taken - runs_nothing == INFERENCE_ROUTES
