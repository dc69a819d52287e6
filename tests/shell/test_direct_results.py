"""Whatever the kernel takes at once and whenever the consumer has its turn: a client gets every
result, once, in order, and none waits for a later one."""

from __future__ import annotations

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.agents.direct_results import DirectResults, send_directly
from paddler_trio.balancer.agents.ready_steps import StepReader
from paddler_trio.balancer.agents.work_encoding import encode_work
from paddler_trio.net.server.asgi import ClientGoneError
from paddler_trio.nursery_tree.request import Request
from paddler_trio.nursery_tree.request_endings import Completed
from paddler_trio.nursery_tree.step_results import NOTHING, Results
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams


@attrs.define
class Socket:
    """A body whose kernel takes ``room`` bytes at once, and more when the test drains it."""

    room: int = 10_000
    sent: bytes = b""
    unsent: bytes = b""
    is_gone: bool = False
    drained: trio.Event = attrs.field(factory=trio.Event)

    def write_now(self, piece: bytes) -> bool:
        if self.is_gone:
            raise ClientGoneError("gone")
        if self.unsent:
            self.unsent += piece
            return False
        self._send(piece)
        return not self.unsent

    async def write(self, piece: bytes) -> None:
        self.unsent += piece
        while self.unsent:
            data, self.unsent = self.unsent, b""
            self._send(data)
            if self.unsent:
                await self.drained.wait()
        await trio.lowlevel.checkpoint()

    def _send(self, data: bytes) -> None:
        taken = min(self.room, len(data))
        self.sent += data[:taken]
        self.unsent = data[taken:] + self.unsent
        self.room -= taken

    def drain(self) -> None:
        """The client reads everything."""
        self.room = 10_000
        self.drained.set()
        self.drained = trio.Event()


def text_of(results: Results) -> bytes | None:
    if results.results == ["no"]:
        return None
    if results.results == ["bad"]:
        raise ValueError("nobody can say this")
    return b"".join(b"%b " % str(each).encode() for each in results.results)


def spoken(results: Results) -> bytes:
    return b"".join(b"%b " % str(each).encode() for each in results.results)


actions = st.lists(
    st.one_of(
        st.integers(1, 4).map(lambda count: ("deliver", count)),
        st.sampled_from([("no", 0), ("bad", 0)]),
        st.just(("flush", 0)),
        st.integers(0, 3).map(lambda turns: ("turns", turns)),
        st.integers(0, 12).map(lambda room: ("room", room)),
        st.just(("drain", 0)),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(actions, st.booleans())
def test_every_result_arrives_once_in_order_and_soon(
    todo: list[tuple[str, int]], ends: bool
) -> None:
    async def run() -> None:
        work = encode_work(ContinueFromRawPromptParams("x", 5))
        request, socket = Request(RequestKey(1), "r", work), Socket()
        direct = request.sink = DirectResults(request, socket, text_of)
        expected = b""
        number = 0

        async def consume() -> None:
            async for steps in StepReader(request, direct):
                await socket.write(b"".join(spoken(step) for step in steps))
            await socket.write(b"end")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            for what, count in todo:
                if what == "deliver":
                    results = Results(
                        None, "GeneratedToken", [str(number + n) for n in range(count)]
                    )
                    number += count
                    expected += spoken(results)
                    assert request.emit(results, 0.0)
                elif what in ("no", "bad"):
                    expected += what.encode() + b" "
                    assert request.emit(Results(None, "GeneratedToken", [what]), 0.0)
                elif what == "flush":
                    direct.flush()
                elif what == "turns":
                    for _ in range(count):
                        await trio.lowlevel.checkpoint()
                elif what == "room":
                    socket.room = count
                else:
                    socket.drain()
            direct.flush()
            if not ends:
                while socket.unsent or socket.sent != expected:
                    before = socket.sent
                    socket.drain()
                    await wait_all_tasks_blocked()
                    assert socket.sent != before, (socket, direct, expected)
            request.end(Completed())
            with trio.fail_after(50):
                while not socket.sent.endswith(b"end"):
                    socket.drain()
                    await trio.lowlevel.checkpoint()
        assert socket.sent == expected + b"end"

    trio.run(run)


async def test_a_client_that_left_costs_its_deliverer_nothing() -> None:
    work = encode_work(ContinueFromRawPromptParams("x", 5))
    request, socket = Request(RequestKey(1), "r", work), Socket(is_gone=True)
    direct = request.sink = DirectResults(request, socket, text_of)
    direct.consumer_waits()
    assert request.emit(Results(None, "GeneratedToken", ["a"]), 0.0)
    direct.flush()
    assert request.outbox.receive_nowait() is NOTHING
    assert request.emit(Results(None, "GeneratedToken", ["b"]), 0.0)
    assert request.outbox.receive_nowait().results == ["b"]
    assert repr(direct) == "<DirectResults of r through the outbox: 0 to flush>"


async def test_a_request_that_is_over_gets_no_sink() -> None:
    """It would keep it, and with it the client's connection, until a full collection."""
    exchange = exchange_for({}, open_body=Socket)
    request = Request(RequestKey(1), "r", encode_work(ContinueFromRawPromptParams("x", 5)))
    direct = send_directly(exchange, request, text_of)
    assert direct is not None
    assert request.sink is direct
    request.end(Completed())
    assert send_directly(exchange, request, text_of) is None
    assert request.sink is None
