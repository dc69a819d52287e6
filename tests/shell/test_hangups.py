"""SIGHUP to a balancer that does not serve yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from paddler_trio.balancer.hot_restart.bequest import Bequest
from paddler_trio.balancer.hot_restart.restartable import Restartable
from paddler_trio.net.server.listening import listen
from paddler_trio.net.server.router import Router
from paddler_trio.net.server.server import HttpServer
from paddler_trio.nursery_tree.balancer_tree import BalancerParts, run_balancer
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.signals import watch_signals
from paddler_trio.system.systemd_notify import SystemdNotifier


@attrs.define(eq=False)
class SlowPredecessor:
    """It has told systemd who is the main process, and has something to do before it lets go."""

    is_asked: trio.Event = attrs.field(factory=trio.Event)
    lets_go: trio.Event = attrs.field(factory=trio.Event)

    async def ready(self) -> None:
        self.is_asked.set()
        await self.lets_go.wait()

    async def wait_all(self) -> None:
        return

    async def wait_end(self, show: Callable[[int], None]) -> None:
        return


async def test_a_hangup_while_another_balancer_lets_go_reloads_and_does_not_stop() -> None:
    reloaded, predecessor = trio.Event(), SlowPredecessor()
    nobody = Bequest(None, {}, {}, lambda _: None, lambda: 0)

    async def load() -> None:
        return

    async def reload() -> None:
        reloaded.set()

    def assemble() -> BalancerParts:
        ports = [
            (HttpServer(Router(), name=name), listen("127.0.0.1:0"))
            for name in ("inference", "management")
        ]
        return BalancerParts(
            Dispatcher(DispatchLimits()),
            load_state=load,
            ports=ports,
            goodbyes=(),
            drain_timeout_s=1,
            services={},
            serving=Restartable(nobody, predecessor, trio.Event(), trio.Event(), 1.0),
            reloads=[reload],
        )

    async def run(stop: trio.Event) -> None:
        await run_balancer(assemble, stop, notifier=SystemdNotifier())

    stop = trio.Event()
    with trio.fail_after(50):
        async with trio.open_nursery() as root:
            await root.start(watch_signals, stop, root.cancel_scope)
            root.start_soon(run, stop)
            await predecessor.is_asked.wait()
            os.kill(os.getpid(), signal.SIGHUP)
            await wait_all_tasks_blocked()
            assert not stop.is_set()
            assert not reloaded.is_set(), "systemd takes its end for the end of the start"
            predecessor.lets_go.set()
            await reloaded.wait()
            assert not stop.is_set()
            root.cancel_scope.cancel()
