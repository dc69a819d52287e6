"""A call for many embeddings is answered by one revision, whatever becomes of its agents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.asgi import Message, Scope
from paddler_trio.net.server.exchange import App
from paddler_trio.net.server.input_budget import InputBudget, Reservation
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.pool import PoolSettings
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, InferenceParameters
from paddler_trio.wire.paddler.messages import AgentRequest
from paddler_trio.wire.trio.trio_link import Start

WIDE = DispatchLimits(max_buffered=30, buffered_timeout_s=10, item_timeout_s=30)
TEXTS = ["a", "b", "c"]
NATIVE = "/api/v1/generate_embedding_batch"
VALUES = {"old": 1.0, "new": 2.0}


@attrs.define(eq=False)
class Call:
    """One call of three documents, of which each is a request of its own."""

    path: str
    texts: list[str] = attrs.field(factory=lambda: TEXTS)
    sent: list[Message] = attrs.field(factory=list)
    room: Reservation = attrs.field(factory=lambda: InputBudget().reservation())

    async def run(self, app: App) -> None:
        documents = [{"id": text[:1], "content": text} for text in self.texts]
        body: object = {"input_batch": documents, "normalization_method": "None"}
        if self.path != NATIVE:
            body = {"input": self.texts, "model": "any"}
        arriving: list[Message] = [{"type": "http.request", "body": dumps(body)}]

        async def receive() -> Message:
            if arriving:
                return arriving.pop()
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            self.sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope: Scope = {"type": "http", "method": "POST", "path": self.path, "headers": headers}
        await app(exchange_for(scope, receive, send, room=self.room))

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    def values(self) -> set[float]:
        """Of all vectors that were sent."""
        if self.path != NATIVE:
            return {each["embedding"][0] for each in json.loads(self.body).get("data", [])}
        results = [
            json.loads(line)["Response"]["response"]["Embedding"]
            for line in self.body.splitlines()
            if "Response" in line
        ]
        return {each["Embedding"]["embedding"][0] for each in results if each != "Done"}

    def errors(self) -> list[Any]:
        lines = self.body.splitlines()
        return [json.loads(line)["Error"]["error"] for line in lines if "Error" in line]


def embedding(revision: str, source: str, *, width: int = 2) -> RawResult:
    """One vector, whose first number tells the revision."""
    return {
        "Embedding": {
            "embedding": [VALUES[revision], *[1.0] * (width - 1)],
            "normalization_method": "None",
            "pooling_type": "Last",
            "source_document_id": source,
        }
    }


@attrs.define(eq=False)
class Rollout:
    """Of a fleet that makes embeddings: an agent with the old state and one with the new."""

    here: World
    old: Peer
    new: Peer
    apps: dict[str, App]

    async def answer(self, name: str) -> int:
        """This agent embeds what it was given; how many documents that were."""
        await wait_all_tasks_blocked()
        count = 0
        for frame in list(getattr(self, name).received()):
            if isinstance(frame, AgentRequest | Start):
                count += 1
                self._embed(name, frame)
        return count

    def _embed(self, name: str, frame: AgentRequest | Start) -> None:
        lease = getattr(self, name).lease(frame.id)
        work: Any = frame.request
        inputs = getattr(work, "input_batch", None)
        names = [each.id for each in inputs] if inputs else list(map(str, range(len(work.inputs))))
        results = [embedding(name, source) for source in names]
        lease.deliver("Embedding", [*results, "Done"], ends=True)


@asynccontextmanager
async def rollout() -> AsyncIterator[Rollout]:
    async with world(WIDE) as here:
        states = FleetKeeper(MemoryDatabase(), here.dispatcher)
        parameters = InferenceParameters(enable_embeddings=True, embedding_batch_size=1)
        desired = BalancerDesiredState.default()
        await states.replace(attrs.evolve(desired, inference_parameters=parameters))
        here.dispatcher.set_deployments(
            [PoolSettings(name="default", admissible=frozenset({"old", "new"}))]
        )
        deployments = Deployments(here.dispatcher, states)
        api, *_ = api_routers(BalancerConfig(), here.dispatcher, states, deployments)
        native = InferenceRoutes(here.dispatcher, states, trio.Event(), deployments).routes()
        yield Rollout(
            here,
            here.agent(serves="old"),
            here.agent(serves="new", slots=0),
            {NATIVE: native, "/v1/embeddings": api},
        )


def give_slots(here: Rollout, peer: Peer, slots: int) -> None:
    connection = peer.connection
    connection.status = attrs.evolve(connection.status, slots_total=slots)
    connection.refresh_readiness()
    here.here.dispatcher.update(connection)


@pytest.mark.parametrize("path", [NATIVE, "/v1/embeddings"])
async def test_all_parts_wait_for_the_revision_that_answered_the_first(
    path: str, autojump_clock: MockClock
) -> None:
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call(path)
        nursery.start_soon(call.run, here.apps[path])
        await wait_all_tasks_blocked()
        give_slots(here, here.new, 4)
        counts = [await here.answer("old") + 100 * await here.answer("new") for _ in range(3)]
        assert counts == [1, 1, 1], "one slot after the other, and never the free ones"
        await wait_all_tasks_blocked()
        assert call.values() == {1.0}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", [NATIVE, "/v1/embeddings"])
async def test_a_call_of_which_nothing_was_sent_is_begun_again_on_the_other_revision(
    path: str, autojump_clock: MockClock
) -> None:
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call(path)
        nursery.start_soon(call.run, here.apps[path])
        await wait_all_tasks_blocked()
        give_slots(here, here.new, 4)
        if path != NATIVE:  # one part is answered, but nothing of the call has been sent
            assert await here.answer("old") == 1
        here.here.dispatcher.leave(here.old.connection)
        await trio.sleep(4)
        assert await here.answer("new") == 3
        await wait_all_tasks_blocked()
        assert call.errors() == []
        assert call.values() == {2.0}
        assert call.body.count("2.0") == 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("path", "counts_body"), [(NATIVE, False), ("/v1/embeddings", True)])
async def test_an_attempt_in_vain_holds_nothing_of_the_input_budget(
    path: str, autojump_clock: MockClock, *, counts_body: bool
) -> None:
    part_bytes = 7000
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call(path, [text * part_bytes for text in TEXTS])
        nursery.start_soon(call.run, here.apps[path])
        await wait_all_tasks_blocked()
        give_slots(here, here.new, 4)
        old = here.old.connection
        assert old.report is not None
        old.report = attrs.evolve(old.report, served_state="new")  # and it finishes what it has
        old.refresh_readiness()
        here.here.dispatcher.update(old)
        await trio.sleep(4)
        held_bytes = call.room.used_bytes
        assert await here.answer("new") == len(TEXTS), "the call was begun again"
        assert await here.answer("old") == 1
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    frames_bytes = held_bytes - counts_body * len(TEXTS) * part_bytes
    assert frames_bytes < 4 * part_bytes, "three frames, and none of those in vain"


async def test_vectors_of_an_attempt_in_vain_are_held_no_more(autojump_clock: MockClock) -> None:
    width = 10_000
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call("/v1/embeddings")
        nursery.start_soon(call.run, here.apps["/v1/embeddings"])
        await wait_all_tasks_blocked()
        give_slots(here, here.new, 4)
        (start,) = (frame for frame in here.old.received() if isinstance(frame, Start))
        wide = embedding("old", "0", width=width)
        here.old.lease(start.id).deliver("Embedding", [wide, "Done"], ends=True)
        await wait_all_tasks_blocked()
        assert call.room.used_bytes > 4 * width
        here.here.dispatcher.leave(here.old.connection)
        await trio.sleep(4)
        held_bytes = call.room.used_bytes
        assert await here.answer("new") == len(TEXTS), "the call was begun again"
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert held_bytes < 4 * width


async def test_what_was_begun_to_be_sent_ends_with_a_line_that_names_the_revision(
    autojump_clock: MockClock,
) -> None:
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call(NATIVE)
        nursery.start_soon(call.run, here.apps[NATIVE])
        await wait_all_tasks_blocked()
        give_slots(here, here.new, 4)
        assert await here.answer("old") == 1
        await wait_all_tasks_blocked()
        here.here.dispatcher.leave(here.old.connection)
        await trio.sleep(8)
        assert await here.answer("new") == 0
        assert call.values() == {1.0}
        errors = call.errors()
        assert [error["code"] for error in errors] == [502, 502]
        assert all("begun with revision old" in error["description"] for error in errors)
        assert call.body.endswith('"Done"}}}\n')
        nursery.cancel_scope.cancel()


async def test_a_part_that_loses_its_agent_in_the_middle_is_computed_anew(
    autojump_clock: MockClock,
) -> None:
    """Nothing of the call has been sent, so the client need not know."""
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call("/v1/embeddings")
        other = here.here.agent(serves="old", slots=0)
        nursery.start_soon(call.run, here.apps["/v1/embeddings"])
        await wait_all_tasks_blocked()
        (start,) = (frame for frame in here.old.received() if isinstance(frame, Start))
        here.old.lease(start.id).deliver("Embedding", [embedding("old", "0")], ends=False)
        await wait_all_tasks_blocked()
        here.here.dispatcher.leave(here.old.connection)
        here.old = other
        give_slots(here, other, 1)
        for _ in TEXTS:
            assert await here.answer("old") == 1
        await wait_all_tasks_blocked()
        assert call.errors() == []
        assert call.body.count("embedding") == 2 * len(TEXTS), "each of them once"
        assert call.values() == {1.0}
        nursery.cancel_scope.cancel()


async def test_a_part_that_is_computed_anew_is_counted_once(autojump_clock: MockClock) -> None:
    usage: RawResult = {"Usage": {"prompt_tokens": 5}}
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call("/v1/embeddings", TEXTS[:1])
        other = here.here.agent(serves="old", slots=0)
        nursery.start_soon(call.run, here.apps["/v1/embeddings"])
        await wait_all_tasks_blocked()
        (start,) = (frame for frame in here.old.received() if isinstance(frame, Start))
        results = [embedding("old", "0"), usage]
        here.old.lease(start.id).deliver("Embedding", results, ends=False)
        here.here.dispatcher.leave(here.old.connection)
        give_slots(here, other, 1)
        await wait_all_tasks_blocked()
        (start,) = (frame for frame in other.received() if isinstance(frame, Start))
        other.lease(start.id).deliver("Embedding", [*results, "Done"], ends=True)
        await wait_all_tasks_blocked()
        assert json.loads(call.body)["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        nursery.cancel_scope.cancel()


async def test_a_call_is_begun_again_only_so_often(autojump_clock: MockClock) -> None:
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call(NATIVE)
        nursery.start_soon(call.run, here.apps[NATIVE])
        states = ["a", "b", "c", "d"]
        here.here.dispatcher.set_deployments(
            [PoolSettings(name="default", admissible=frozenset(["old", *states]))]
        )
        agent = here.old
        for state in states:
            await wait_all_tasks_blocked()
            assert call.errors() == [], state
            here.here.dispatcher.leave(agent.connection)
            if state == "c":
                break
            agent = here.here.agent(serves=state)
            await trio.sleep(4)
        await trio.sleep(60)
        assert "begun with revision b" in call.errors()[0]["description"]
        nursery.cancel_scope.cancel()


async def test_a_long_answer_is_written_as_its_client_reads() -> None:
    """Its vectors are counted in the budget for inputs, and their text, which is five times as
    long, is not there at one time."""
    width, texts = 60_000, TEXTS * 2
    async with rollout() as here, trio.open_nursery() as nursery:
        call = Call("/v1/embeddings", texts)
        nursery.start_soon(call.run, here.apps["/v1/embeddings"])
        left = len(texts)
        with trio.fail_after(60):  # frames and portions are written in a thread
            while left:
                await trio.lowlevel.checkpoint()
                for frame in list(here.old.received()):
                    if isinstance(frame, Start):
                        wide = embedding("old", "0", width=width)
                        here.old.lease(frame.id).deliver("Embedding", [wide, "Done"], ends=True)
                        left -= 1
            while not call.sent or call.sent[-1].get("more_body", True):
                await trio.lowlevel.checkpoint()
    headers = dict(call.sent[0]["headers"])
    assert call.sent[0]["status"] == 200
    assert headers[b"content-type"] == b"application/json"
    assert b"content-length" not in headers
    assert [len(entry["embedding"]) for entry in json.loads(call.body)["data"]] == [width] * 6
    text_bytes = len(call.body)
    portions = [len(message["body"]) for message in call.sent[1:]]
    assert max(portions) < text_bytes / 3
    assert len(portions) > 3
