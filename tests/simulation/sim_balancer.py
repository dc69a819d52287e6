"""One simulation from start to end: the balancer's parts in the balancer's tree, without sockets.

The nurseries are nested and closed as `paddler_trio.nursery_tree.balancer_tree` does it: listeners,
then requests within the drain timeout, then connections after a moment to flush. Agents and clients
live outside, as the world does.
"""

from __future__ import annotations

import random

import attrs
import trio
from checks import check_aftermath, check_stories
from determinism import deterministic, logs_to
from second_deployment import open_pools
from sim_agent import SimAgent
from sim_client import SimClient
from sim_operator import operate
from strikes import strike_all
from trio.testing import MockClock
from watched_dispatcher import WatchedDispatcher
from world import World

from paddler_trio.balancer.agents.agent_socket import AgentSocket
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.exchange import Exchange, Params
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.balancer_tree import FLUSH_S
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits

LONGEST_RUN_S = 300.0
"""Virtual; every wait of a scenario together is far less."""
WATCH_INTERVAL_S = 0.2


def run(world: World) -> None:
    """Run the world's scenario in virtual time.

    What goes wrong is raised, alone or in groups; the world's trace then shows how it came about.
    """
    scenario = world.scenario
    with (
        deterministic(
            scenario.seed,
            outbox_steps=scenario.outbox_steps,
            outgoing_frames=scenario.outgoing_frames,
        ),
        logs_to(world.note, world.errors_logged.append),
    ):
        trio.run(_live, world, clock=MockClock(autojump_threshold=0))


async def _live(world: World) -> None:
    scenario = world.scenario
    balancer = _Balancer(world)
    async with trio.open_nursery() as outside:
        stop = trio.Event()
        for plan in scenario.agents:
            agent = SimAgent(plan, world, random.Random(f"{scenario.seed}/{plan.id}"))
            outside.start_soon(agent.run, name=plan.id)
            strikes = random.Random(f"{scenario.seed}/{plan.id}/strikes")
            outside.start_soon(strike_all, agent, strikes, name=f"strikes on {plan.id}")
        outside.start_soon(_run_clients, world, stop, name="clients")
        outside.start_soon(_stop_at, scenario.stop_at_s, stop)
        outside.start_soon(operate, world, balancer.dispatcher, balancer.states)
        outside.start_soon(balancer.watch)
        await balancer.run(stop)
        world.over.set()
        await world.clients_gone.wait()
        outside.cancel_scope.cancel()
    check_aftermath(world, balancer.dispatcher)
    check_stories(world)


@attrs.define(eq=False)
class _Balancer:
    world: World
    dispatcher: WatchedDispatcher = attrs.field(init=False)
    states: FleetKeeper = attrs.field(init=False)
    goodbye: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        scenario = self.world.scenario
        limits = DispatchLimits(
            max_buffered=scenario.max_buffered,
            buffered_timeout_s=scenario.buffered_timeout_s,
            item_timeout_s=scenario.item_timeout_s,
            stop_confirmation_s=scenario.stop_confirmation_s,
        )
        self.dispatcher = WatchedDispatcher(limits, self.world)
        self.states = FleetKeeper(MemoryDatabase(), self.dispatcher)

    async def run(self, stop: trio.Event) -> None:
        """As ``run_balancer``; a second SIGTERM cancels everything."""
        world, scenario = self.world, self.world.scenario
        agents = AgentSocket(self.dispatcher, self.goodbye, silence_s=scenario.silence_s)

        async def agent_socket(exchange: Exchange, params: Params) -> None:
            await agents.serve(exchange, params["agent_id"])

        management = Router()
        management.websocket("/api/v1/agent_socket/{agent_id}", agent_socket)
        inference = InferenceRoutes(self.dispatcher, self.states, self.goodbye).routes()
        await self.states.load()
        open_pools(self.dispatcher)
        with trio.CancelScope() as services:
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as agent_tasks:
                    async with trio.open_nursery() as requests:
                        self.dispatcher.open(agents=agent_tasks, requests=requests)
                        world.open(connections, inference=inference, management=management)
                        await stop.wait()
                        world.note("balancer", "SIGTERM")
                        world.close_listeners()
                        world.draining_since_s = trio.current_time()
                        self.dispatcher.drain()
                        deadline_s = trio.current_time() + scenario.drain_timeout_s
                        requests.cancel_scope.deadline = deadline_s
                        connections.start_soon(self._kill_later, services)
                    world.note("balancer", "requests have ended")
                    world.is_ending = True
                    self.goodbye.set()
                    with trio.move_on_after(FLUSH_S):
                        while not all(wire.finished for wire in world.wires):
                            await trio.sleep(WATCH_INTERVAL_S)
                    self._cut_all()
                    agent_tasks.cancel_scope.cancel()
                connections.cancel_scope.cancel()
        world.note("balancer", "down")

    async def watch(self) -> None:
        """What must hold at every moment, looked at every so often."""
        while True:
            await trio.sleep(WATCH_INTERVAL_S)
            if trio.current_time() > LONGEST_RUN_S:
                unended = [s.ask.prompt for s in self.world.stories.values() if not s.is_over]
                self.world.fail(f"not over after {LONGEST_RUN_S:g} s: {unended}")
            if not self.world.is_ending:
                self.dispatcher.check_nobody_lingers()

    async def _kill_later(self, services: trio.CancelScope) -> None:
        await trio.sleep(self.world.scenario.kill_after_s)
        self.world.note("balancer", "second SIGTERM")
        self.world.killed = self.world.is_ending = True
        self._cut_all()
        services.cancel()

    def _cut_all(self) -> None:
        for wire in self.world.wires:
            if not wire.finished:
                wire.hang_up()


async def _run_clients(world: World, stop: trio.Event) -> None:
    """All clients, and then the first SIGTERM."""
    scenario = world.scenario
    async with trio.open_nursery() as clients:
        for plan in scenario.clients:
            rng = random.Random(f"{scenario.seed}/{plan.name}")
            clients.start_soon(SimClient(plan, world, rng).run, name=plan.name)
        if any(plan.reading.stops_after < float("inf") for plan in scenario.clients):
            clients.start_soon(_stop_at, scenario.patience_s, stop)
    stop.set()
    world.clients_gone.set()


async def _stop_at(at_s: float, stop: trio.Event) -> None:
    await trio.sleep(at_s)
    stop.set()
