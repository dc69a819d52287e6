"""The monitor of upstream servers against one that answers as llama-server, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock
from upstream_world import ADDRESS, TIMEOUTS

from paddler_trio.agent.servers.upstream_monitor import (
    NO_SLOTS_REASON,
    MonitorSettings,
    UpstreamMonitor,
)
from paddler_trio.agent.servers.upstream_probe import LONGEST_AFTERLIFE_S
from paddler_trio.agent.servers.upstream_state import (
    Modalities,
    Reachability,
    UpstreamModel,
    UpstreamState,
)
from paddler_trio.net.client.response_body import FailureKind, UpstreamError
from paddler_trio.net.client.upstream_client import UpstreamClient
from upstream_double import LlamaServerDouble, error

READY, LOADING, SLEEPING = Reachability.READY, Reachability.LOADING, Reachability.SLEEPING


@attrs.define(eq=False)
class World:
    """A server, and our view of it."""

    server: LlamaServerDouble
    client: UpstreamClient
    monitor: UpstreamMonitor
    is_down: bool = False
    is_silent: bool = False

    @property
    def state(self) -> UpstreamState:
        return self.monitor.state

    async def seen(self, reachability: Reachability) -> float:
        """Wait for it; when it was."""
        while self.state.reachability is not reachability:
            await self.monitor.wait_changed(self.state)
        return trio.current_time()

    async def generate(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """A request of ours, until it is cancelled or the server is done."""
        with trio.CancelScope() as scope, self.monitor.request() as ours:
            async with self.client.request(b"POST", b"/v1/chat/completions", [], b"{}") as response:
                task_status.started(scope)
                async for _ in response.body():
                    pass
            ours.is_whole = True


@asynccontextmanager
async def monitored(
    server: LlamaServerDouble,
    *,
    slots: int | None = None,
    lets_sleep: bool = False,
    key: bytes | None = None,
    is_down: bool = False,
) -> AsyncIterator[World]:
    async def serve(stream: trio.abc.Stream) -> None:
        try:
            if world.is_silent:
                await trio.sleep_forever()
            await server.handle(stream)
        finally:
            await trio.aclose_forcefully(stream)

    async def dial() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if world.is_down:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.lockstep_stream_pair()
        nursery.start_soon(serve, theirs)
        return ours

    client = UpstreamClient(address=ADDRESS, timeouts=TIMEOUTS, dial=dial, bearer=key)
    monitor = UpstreamMonitor(
        client,
        MonitorSettings(slots=slots, lets_sleep=lets_sleep),
        has_key=key is not None,
        chance=lambda: 1.0,
    )
    world = World(server, client, monitor, is_down)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await nursery.start(monitor.run)
        yield world
        nursery.cancel_scope.cancel()
    assert client.num_open == 0


async def test_a_server_that_is_well_is_known_at_the_start(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble()) as world:
        assert world.state == UpstreamState(
            reachability=READY,
            slots_total=4,
            models=(UpstreamModel("qwen", "", 4096),),
            context_tokens=4096,
            has_slots_endpoint=True,
            build="b9999-abc",
            model_path="/models/qwen.gguf",
            modalities=Modalities(vision=True),
        )
        assert world.state.slots_offered == 4
        assert world.server.asked == ["/health", "/props", "/v1/models", "/slots"]


async def test_it_is_asked_every_ten_seconds_and_every_second_while_it_works_for_us(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble()) as world, trio.open_nursery() as nursery:
        await trio.sleep(25)
        assert world.server.asked.count("/health") == 3
        scope = await nursery.start(world.generate)
        await trio.sleep(4.5)
        assert world.server.asked.count("/health") == 8
        scope.cancel()


async def test_loading_is_watched_until_it_is_over(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble(is_loading=True)) as world:
        assert (world.state.reachability, world.state.reason) == (LOADING, "Loading model")
        assert world.state.slots_offered == 0
        await trio.sleep(20.5)
        world.server.is_loading = False
        assert await world.seen(READY) == pytest.approx(21, abs=0.1)
        assert world.state.slots_offered == 4
        world.server.is_loading = True
        await world.seen(LOADING)


async def test_a_server_that_sleeps_is_not_woken_and_offers_its_slots(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble(is_sleeping=True)) as world:
        await trio.sleep(100)
        assert world.state.reachability is SLEEPING
        assert world.state.slots_offered == 4
        assert world.server.woken == 0
        assert world.server.is_sleeping


async def test_a_server_that_may_sleep_is_not_kept_awake(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble(), lets_sleep=True) as world:
        await trio.sleep(100)
        assert "/slots" not in world.server.asked
        async with trio.open_nursery() as nursery:
            scope = await nursery.start(world.generate)
            await trio.sleep(3)
            assert "/slots" in world.server.asked
            scope.cancel()
        await trio.sleep(5)
        before = world.server.asked.count("/slots")
        await trio.sleep(100)
        assert world.server.asked.count("/slots") == before


async def test_a_server_falls_asleep_under_the_eyes_of_its_monitor(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble(sleep_idle_s=300)) as world:
        await trio.sleep(200)
        assert 8 <= world.server.asked.count("/slots") < 12
        assert await world.seen(SLEEPING) < 1000
        await trio.sleep(1000)
        assert world.server.woken == 0


async def test_a_request_after_a_long_calm_makes_the_picture_young(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble()) as world, trio.open_nursery() as nursery:
        await trio.sleep(3000)
        before = world.server.asked.count("/slots")
        world.server.foreign = 2
        scope = await nursery.start(world.generate)
        await trio.sleep(1.5)
        assert world.server.asked.count("/slots") == before + 2
        assert world.state.slots_busy_elsewhere == 2
        scope.cancel()


async def test_that_a_server_sleeps_is_learnt(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble(is_sleeping=True)) as world:
        world.server.is_sleeping = False
        await trio.sleep(100)
        assert world.state.reachability is READY
        assert "/slots" not in world.server.asked


@pytest.mark.parametrize(
    ("key", "text"),
    [(None, "give --upstream-key-file FILE"), (b"old", "does not accept the key of --upstream")],
)
async def test_a_missing_or_wrong_key_is_said(
    autojump_clock: MockClock, key: bytes | None, text: str
) -> None:
    async with monitored(LlamaServerDouble(key="secret"), key=key) as world:
        assert world.state.reachability is Reachability.UNAUTHORISED
        assert text in world.state.reason
        assert "401" in world.state.reason
        assert "secret" not in str(world.state)
        assert world.state.slots_offered == 0


async def test_with_the_key_all_is_well(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble(key="secret"), key=b"secret") as world:
        assert world.state.reachability is READY


async def test_a_server_that_is_away_is_tried_again_at_growing_pauses(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble(), is_down=True) as world:
        assert world.state.reachability is Reachability.UNREACHABLE
        assert "Connection refused" in world.state.reason
        assert world.state.next_probe_s == pytest.approx(1)
        await trio.sleep(62)
        assert world.state.next_probe_s == pytest.approx(1 + 2 + 4 + 8 + 16 + 30 + 30)
        world.is_down = False
        assert await world.seen(READY) == pytest.approx(91, abs=0.1)
        assert world.state.next_probe_s is None
        world.is_down = True
        await world.seen(Reachability.UNREACHABLE)
        assert world.state.next_probe_s == pytest.approx(trio.current_time() + 1)


async def test_three_bad_probes_in_a_row_eject_and_a_good_one_readmits(
    autojump_clock: MockClock,
) -> None:
    server = LlamaServerDouble()
    async with monitored(server) as world:
        server.overrides["/health"] = lambda: (500, error(500, "out of memory"))
        await trio.sleep(11.5)
        assert world.state.reachability is READY
        await trio.sleep(1)
        assert world.state.reachability is Reachability.FAILING
        assert world.state.reason == "it answers /health with 500 (out of memory)"
        server.overrides.clear()
        await trio.sleep(1.1)
        assert world.state.reachability is READY


async def test_requests_that_a_server_breaks_on_bring_a_look_at_it_and_no_more(
    autojump_clock: MockClock,
) -> None:
    """A balancer sends it nothing until a look is told, also one that found what was known."""
    closed = UpstreamError(FailureKind.CLOSED, "closed it", before_first_byte=True)
    ours = UpstreamError(FailureKind.REQUEST, "bad header", before_first_byte=True)
    async with monitored(LlamaServerDouble()) as world:
        for _ in range(5):
            world.monitor.request_failed(ours)
        for _ in range(20):
            before = world.state
            for _ in range(9):
                world.monitor.request_failed(closed)
            assert world.state == before
            with trio.fail_after(0.15):
                after = await world.monitor.wait_changed(before)
            assert after.reachability is READY
            assert after.slots_offered == before.slots_offered > 0


async def test_one_failed_request_is_reason_enough_to_look(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble()) as world:
        await trio.sleep(4)  # no connection is kept any more
        world.is_down = True
        world.monitor.request_failed(
            UpstreamError(FailureKind.CLOSED, "x", before_first_byte=False)
        )
        assert await world.seen(Reachability.UNREACHABLE) < 4.2


async def test_others_are_noticed_with_the_second_read_and_forgotten_with_the_next(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble(), slots=3) as world, trio.open_nursery() as nursery:
        scopes = [await nursery.start(world.generate) for _ in range(2)]
        await trio.sleep(5)
        assert world.state.slots_busy_elsewhere == 0
        world.server.foreign = 1
        await trio.sleep(2.1)
        assert world.state.slots_busy_elsewhere == 1
        assert world.state.slots_offered == 2
        world.server.foreign = 0
        await trio.sleep(1.1)
        assert world.state.slots_busy_elsewhere == 0
        for scope in scopes:
            scope.cancel()


async def test_a_cancelled_request_holds_its_slot_until_the_server_is_done_with_it(
    autojump_clock: MockClock,
) -> None:
    server = LlamaServerDouble(afterlife_s=2)
    async with monitored(server) as world, trio.open_nursery() as nursery:
        scope = await nursery.start(world.generate)
        await trio.sleep(5.2)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert world.state.still_generating == 1
        assert world.state.slots_offered == 3
        start = trio.current_time()
        while world.state.still_generating:
            await world.monitor.wait_changed(world.state)
        assert server.ours == 0
        assert 1.5 < trio.current_time() - start < 4
        assert world.state.slots_busy_elsewhere == 0


async def test_a_request_that_ends_gives_its_slot_back_at_once(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble()) as world, trio.open_nursery() as nursery:
        await nursery.start(world.generate)
        world.server.finish.set()
        await trio.testing.wait_all_tasks_blocked()
        assert world.monitor.account.in_flight == 0
        assert world.state.still_generating == 0


async def test_a_slot_that_is_never_given_back_is_somebody_elses_in_the_end(
    autojump_clock: MockClock,
) -> None:
    server = LlamaServerDouble(afterlife_s=10_000)
    async with monitored(server) as world, trio.open_nursery() as nursery:
        scope = await nursery.start(world.generate)
        scope.cancel()
        await trio.sleep(LONGEST_AFTERLIFE_S - 1)
        assert world.state.still_generating == 1
        await trio.sleep(15)
        assert (world.state.still_generating, world.state.slots_busy_elsewhere) == (0, 1)


async def test_without_slots_a_cancelled_request_holds_nothing(autojump_clock: MockClock) -> None:
    server = LlamaServerDouble(is_other=True, afterlife_s=10)
    async with monitored(server, slots=2) as world, trio.open_nursery() as nursery:
        scope = await nursery.start(world.generate)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert world.state.still_generating == 0


async def test_other_servers_need_to_be_told_how_many_requests_they_take(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble(is_other=True)) as world:
        assert (world.state.reachability, world.state.reason) == (READY, NO_SLOTS_REASON)
        assert world.state.slots_offered == 0
    async with monitored(LlamaServerDouble(is_other=True), slots=7) as world:
        assert (world.state.reachability, world.state.reason) == (READY, "")
        assert world.state.slots_offered == 7
        assert world.state.context_tokens == 8192
        assert not world.state.has_slots_endpoint
        await trio.sleep(100)
        assert "/slots" not in world.server.asked


@pytest.mark.parametrize("tells_endpoints", [True, False])
async def test_a_server_without_slots_tells_its_load_by_its_metrics(
    autojump_clock: MockClock, tells_endpoints: bool
) -> None:
    server = LlamaServerDouble(
        has_slots=False, has_metrics=tells_endpoints, tells_endpoints=tells_endpoints, foreign=1
    )
    async with monitored(server) as world:
        await trio.sleep(21)
        assert not world.state.has_slots_endpoint
        assert world.state.slots_busy_elsewhere == tells_endpoints
        assert world.server.asked.count("/slots") == (0 if tells_endpoints else 1)


async def test_a_router_is_never_made_to_load_a_model(autojump_clock: MockClock) -> None:
    models = {"a b/c": "loaded", "d": "unloaded", "e": "sleeping", "f": "loading"}
    server = LlamaServerDouble(models=models, foreign=2)
    async with monitored(server, slots=4) as world:
        await trio.sleep(100)
        assert world.state.is_router
        assert [model.status for model in world.state.models] == list(models.values())
        assert world.state.slots_busy_elsewhere == 2
        assert server.loads == []
        assert server.woken == 0
        assert not world.state.changed_model
        models["d"] = "loading"
        await trio.sleep(1.1)
        assert world.state.models[1].status == "loading"


async def test_another_model_than_at_first_is_noticed(
    autojump_clock: MockClock,
) -> None:
    async with monitored(LlamaServerDouble()) as world:
        assert not world.state.changed_model
        world.server.name = "llama"
        await trio.sleep(10.1)
        assert world.state.changed_model
        assert world.state.models[0].name == "llama"


async def test_a_new_model_after_an_outage_is_noticed(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble()) as world:
        world.is_down = True
        await world.seen(Reachability.UNREACHABLE)
        world.is_down, world.server.name = False, "llama"
        await world.seen(READY)
        assert world.state.changed_model


@pytest.mark.parametrize(
    ("path", "answer", "text"),
    [
        ("/health", (302, b""), "it redirects /health (302): give --upstream the address"),
        ("/health", (200, b"x" * 3_000_000), "its /health is over the limit of 1048576 bytes"),
        ("/props", (200, b"x" * 3_000_000), "its /props is over the limit of 1048576 bytes"),
        ("/v1/models", (500, b"<html>"), "it answers /v1/models with 500"),
    ],
)
async def test_a_server_that_answers_nonsense_is_failing(
    autojump_clock: MockClock, path: str, answer: tuple[int, bytes], text: str
) -> None:
    server = LlamaServerDouble(overrides={path: lambda: answer})
    async with monitored(server, slots=1) as world:
        assert world.state.reachability is Reachability.FAILING
        assert text in world.state.reason


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "neither /health nor /v1/models"), (200, "its /v1/models is no list of models")],
)
async def test_a_page_for_every_question_is_no_inference_server(
    autojump_clock: MockClock, status: int, text: str
) -> None:
    def page() -> tuple[int, bytes]:
        return status, b"<html>"

    server = LlamaServerDouble(overrides=dict.fromkeys(["/health", "/props", "/v1/models"], page))
    async with monitored(server, slots=1) as world:
        assert world.state.reachability is Reachability.FAILING
        assert text in world.state.reason


async def test_silence_fails_after_three_seconds(autojump_clock: MockClock) -> None:
    async with monitored(LlamaServerDouble()) as world:
        world.is_silent = True
        await trio.sleep(22)  # the connection that was kept is closed before the first probe
        assert world.state.reachability is Reachability.FAILING
        assert world.state.reason == "it did not answer /health within 3 s"


async def test_a_model_that_takes_long_for_a_step_is_not_failing(
    autojump_clock: MockClock,
) -> None:
    server = LlamaServerDouble(slots_take_s=20, foreign=1)
    async with monitored(server) as world:
        await trio.sleep(100)
        assert world.state.reachability is READY
        assert world.state.slots_busy_elsewhere == 0
        server.slots_take_s = 0
        await trio.sleep(20.1)
        assert world.state.slots_busy_elsewhere == 1


@pytest.mark.parametrize("slots", [0, 5000])
def test_how_many_slots_there_can_be_has_limits(slots: int) -> None:
    with pytest.raises(ValueError, match="slots"):
        MonitorSettings(slots=slots)
