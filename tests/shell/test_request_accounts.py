"""What becomes of each request of a client is accounted for once, whatever happens to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import structlog
import trio
from dispatch_world import LIMITS, WORK, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.activity.accounts.account_keeper import AccountKeeper
from paddler_trio.balancer.activity.accounts.account_spans import operation, spans_of
from paddler_trio.balancer.activity.accounts.entrance import Entrance
from paddler_trio.balancer.activity.accounts.request_account import MAX_RECORDS, RequestAccount
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.net.server.asgi import Header, Message, Scope, send_text
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.net.server.router import HttpProblem, refuse_upgrade, refuse_websocket
from paddler_trio.nursery_tree.agent_kinds import Feature
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.request import Request
from paddler_trio.telemetry.trace_context import (
    Sampling,
    begin_message,
    refuse_message,
    trace_of,
)
from paddler_trio.wire.trace_parent import TraceContext, parse_traceparent
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.trio_link import Start

CALLER = TraceContext("a" * 32, "b" * 16, is_sampled=True)
ALL = Sampling(exports=True)
ROUTE = "/v1/chat/completions"


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@attrs.define(eq=False)
class Desk:
    """A dispatcher with accounts, and applications behind the entrance."""

    here: World
    keeper: AccountKeeper
    done: list[RequestAccount]
    entrance: Entrance
    sent: list[Message] = attrs.field(factory=list)

    @property
    def line(self) -> dict[str, Any]:
        """Of the only account that is complete."""
        (account,) = self.done
        line: dict[str, Any] = json.loads(account.entry().line("json"))
        return line

    def is_empty(self) -> bool:
        return not self.keeper._accounts and not self.keeper._requests

    async def ask(self, app: App, *headers: Header, kind: str = "http", path: str = ROUTE) -> None:
        """One request to ``app`` from its first byte to its last."""

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        scope: Scope = {
            "type": kind,
            "path": path,
            "headers": list(headers),
            "client": ("::1", 5000),
            **({"method": "POST"} if kind == "http" else {}),
        }
        app = self.entrance(app, lambda given: ROUTE if given == ROUTE else "")
        await app(exchange_for(scope, receive, send))

    def submit(self, exchange: Exchange, number: int = 0, **options: Any) -> Request:
        return self.here.dispatcher.submit(
            f"r.{number}", WORK, trace=trace_of(exchange), route=exchange.path, **options
        )


@asynccontextmanager
async def desk(sampling: Sampling = ALL, limits: DispatchLimits = LIMITS) -> AsyncIterator[Desk]:
    async with world(limits) as here:
        activity = RequestActivity()
        done: list[RequestAccount] = []
        keeper = AccountKeeper(activity.in_flight, [done.append])
        here.dispatcher.observers = Observers((activity, keeper))
        yield Desk(here, keeper, done, Entrance(sampling, keeper))


def answering(at: Desk, requests: int = 1, status: int = 200) -> App:
    """Answers when all of so many requests to agents have ended."""

    async def app(exchange: Exchange) -> None:
        submitted = [at.submit(exchange, number) for number in range(requests)]
        for request in submitted:
            async for _ in request.outbox:
                pass
        await send_text(exchange.send, status, "answer")

    return app


async def test_a_request_is_accounted_for_with_its_times_and_tokens(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at, trio.open_nursery() as nursery:
        parent = (b"traceparent", CALLER.traceparent().encode())
        nursery.start_soon(at.ask, answering(at), parent, (b"x-request-id", b"mine"))
        await trio.sleep(2)
        peer = at.here.agent(features={Feature.TRACES})
        (start,) = peer.received()
        assert isinstance(start, Start)
        assert start.trace is not None
        assert start.trace.request == "r.0"
        await trio.sleep(1)
        peer.says("1.1")
        peer.lease("1.1").report_prompt(
            PromptStages(tokens=9, cached=4, template_ms=1, wait_ms=2, prefill_ms=3)
        )
        peer.says("1.1", "a")
        await trio.sleep(3)
        peer.says("1.1", "b", "c", done=True)
        await wait_all_tasks_blocked()
        line = at.line
        assert {name: line[name] for name in line if name != "time"} == {
            "address": "[::1]:5000",
            "client": None,
            "method": "POST",
            "route": ROUTE,
            "status": 200,
            "outcome": "completed",
            "queue_s": 2,
            "ttft_s": 3,
            "duration_s": 6,
            "prompt_tokens": 9,
            "cached_tokens": 4,
            "generated_tokens": 3,
            "deployment": "default",
            "agents": ["a1"],
            "continuations": 0,
            "request": "mine",
            "trace": CALLER.trace_id,
        }
        spans = spans_of(at.done[0])
        assert [span.name for span in spans] == [
            f"POST {ROUTE}",
            "queue",
            "placement",
            "prefill",
            "decode",
        ]
        whole, queue, placement, prefill, decode = spans
        assert (whole.trace.trace_id, whole.parent_id) == (CALLER.trace_id, CALLER.span_id)
        sent = parse_traceparent(start.trace.parent)
        assert sent is not None
        assert (sent.trace_id, sent.span_id) == (CALLER.trace_id, placement.span_id)
        assert [(s.end_s - s.start_s) for s in spans] == [6, 2, 4, 1, 3]
        assert queue.parent_id == placement.parent_id == whole.span_id
        assert prefill.parent_id == decode.parent_id == placement.span_id
        assert whole.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
        assert whole.attributes["gen_ai.response.time_to_first_chunk"] == 3
        assert placement.attributes["paddler.prompt.prefill_ms"] == 3
        assert at.is_empty()
        assert dict(at.sent[0]["headers"])[b"x-request-id"] == b"mine"
        assert b"-" + whole.span_id.encode() in dict(at.sent[0]["headers"])[b"traceresponse"]


async def test_several_choices_are_one_account_with_their_sums(autojump_clock: MockClock) -> None:
    async with desk() as at, trio.open_nursery() as nursery:
        peer = at.here.agent(slots=2)
        nursery.start_soon(at.ask, answering(at, 2))
        await wait_all_tasks_blocked()
        peer.says("1.1", "a", done=True)
        await trio.sleep(1)
        assert not at.done
        peer.says("2.1", "a", "b", done=True)
        await wait_all_tasks_blocked()
        assert (at.line["generated_tokens"], at.line["duration_s"]) == (3, 1)
        assert len(spans_of(at.done[0])) == 1 + 2 * 4
        ids = [span.span_id for span in spans_of(at.done[0])]
        assert len(set(ids)) == len(ids)


async def test_of_many_requests_only_the_first_are_kept_and_all_are_counted(
    autojump_clock: MockClock,
) -> None:
    limits = attrs.evolve(LIMITS, max_buffered=100)
    async with desk(limits=limits) as at, trio.open_nursery() as nursery:
        peer = at.here.agent(slots=50)
        nursery.start_soon(at.ask, answering(at, 50))
        await wait_all_tasks_blocked()
        for number in range(1, 51):
            peer.says(f"{number}.1", "a", done=True)
        await wait_all_tasks_blocked()
        assert at.line["generated_tokens"] == 50
        assert len(at.done[0].records) == MAX_RECORDS


async def test_a_client_that_leaves_is_complete_when_its_agent_has_stopped(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at, trio.open_nursery() as nursery:
        peer = at.here.agent()

        async def app(exchange: Exchange) -> None:
            request = at.submit(exchange)
            await trio.sleep(1)
            request.stop()

        nursery.start_soon(at.ask, app)
        await trio.sleep(2)
        assert not at.done, "its slot is taken"
        peer.says("1.1", done=True)
        assert (at.line["outcome"], at.line["status"], at.line["duration_s"]) == (
            "stopped",
            None,
            1,
        )
        assert not spans_of(at.done[0])[0].error
        assert at.is_empty()


async def test_a_loss_shows_both_agents_and_no_reason_of_an_agents_making(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at, trio.open_nursery() as nursery:
        first, second = at.here.agent(), at.here.agent()
        nursery.start_soon(at.ask, answering(at))
        await wait_all_tasks_blocked()
        one, other = (first, second) if first.connection.leases() else (second, first)
        one.says("1.1", "a")
        at.here.dispatcher.hand_back(one.lease("1.1"), "the prompt was: secret", suspects=0)
        other.says("1.2", "b", done=True)
        await wait_all_tasks_blocked()
        names = [one.connection.label, other.connection.label]
        assert (at.line["agents"], at.line["continuations"]) == (names, 1)
        spans = spans_of(at.done[0])
        assert "secret" not in repr(spans)
        placements = [span for span in spans if span.name == "placement"]
        assert [span.error for span in placements] == ["handed back", None]
        assert [event.name for event in spans[0].events] == ["continuation"]
        assert spans[0].error is None


async def test_a_full_queue_is_refused_and_a_server_error_is_an_error(
    autojump_clock: MockClock,
) -> None:
    limits = attrs.evolve(LIMITS, max_buffered=0)
    async with desk(limits=limits) as at:
        await at.ask(answering(at, status=503))
        assert (at.line["outcome"], at.line["status"], at.line["agents"]) == ("overflow", 503, [])
        whole, queue = spans_of(at.done[0])
        assert (whole.error, whole.attributes["error.type"]) == ("overflow", "503")
        assert queue.error == "refused"


@pytest.mark.parametrize(
    ("status", "outcome"), [(200, "completed"), (401, "refused"), (500, "failed")]
)
async def test_what_never_asks_an_agent_has_a_line_too(status: int, outcome: str) -> None:
    async with desk() as at:

        async def app(exchange: Exchange) -> None:
            exchange.identity.key_name = "web"
            await send_text(exchange.send, status, "no", headers=[(b"x-request-id", b"theirs")])

        await at.ask(app, path="/v1/" + "x" * 500)
        line = at.line
        assert (line["status"], line["outcome"], line["client"]) == (status, outcome, "web")
        assert (line["route"], line["path"]) == (None, "/v1/" + "x" * 196)
        assert (line["queue_s"], line["generated_tokens"]) == (None, None)
        names = [name for name, _ in at.sent[0]["headers"]]
        assert names.count(b"x-request-id") == 1
        (whole,) = spans_of(at.done[0])
        assert "gen_ai.operation.name" not in whole.attributes
        assert (whole.error is None) is (status < 500)


async def test_an_application_that_fails_is_accounted_for_all_the_same() -> None:
    async with desk() as at:

        async def app(exchange: Exchange) -> None:
            raise KeyError("a bug")

        with pytest.raises(KeyError):
            await at.ask(app)
        assert at.line["outcome"] == "stopped"
        assert at.is_empty()


async def test_probes_leave_no_trace() -> None:
    async with desk() as at:

        async def app(exchange: Exchange) -> None:
            await send_text(exchange.send, 200, "OK")

        await at.ask(app, path="/readyz")
        assert not at.done
        assert b"x-request-id" not in dict(at.sent[0]["headers"])


async def test_upgrades_have_a_line_with_how_they_were_answered() -> None:
    async def accepts(exchange: Exchange) -> None:
        await exchange.send({"type": "websocket.accept"})
        await exchange.send({"type": "websocket.close", "code": 1000})

    async def closes(exchange: Exchange) -> None:
        await refuse_websocket(exchange.send)

    async def refuses(exchange: Exchange) -> None:
        await refuse_upgrade(exchange.send, HttpProblem(401, "who?"))

    async with desk() as at:
        for app in (accepts, closes, refuses):
            await at.ask(app, kind="websocket")
        assert [account.status for account in at.done] == [101, 403, 401]
        assert [account.outcome for account in at.done] == ["completed", "refused", "refused"]


async def test_each_message_of_a_socket_is_an_account(autojump_clock: MockClock) -> None:
    async with desk() as at, trio.open_nursery() as nursery:
        peer = at.here.agent(slots=2)

        async def app(exchange: Exchange) -> None:
            await exchange.send({"type": "websocket.accept"})
            for number in range(2):
                at.here.dispatcher.submit(
                    f"m{number}", WORK, trace=begin_message(exchange), route=exchange.path
                )
            refuse_message(exchange, "m2", 400)
            await trio.sleep(5)

        nursery.start_soon(partial(at.ask, app, kind="websocket"))
        await trio.sleep(1)
        peer.says("1.1", "a", done=True)
        peer.says("2.1", "a", done=True)
        lines = [json.loads(account.entry().line("json")) for account in at.done]
        assert [line["request"] for line in lines] == ["m2", "m0", "m1"]
        assert [line["status"] for line in lines] == [400, 200, 200]
        assert [line["outcome"] for line in lines] == ["refused", "completed", "completed"]
        assert [line["address"] for line in lines] == ["[::1]:5000"] * 3
        assert len({line["trace"] for line in lines}) == 3
        await trio.sleep(5)
        assert at.done[-1].status == 101
        assert at.is_empty()


async def test_a_request_without_an_entrance_has_an_account_of_its_own(
    autojump_clock: MockClock,
) -> None:
    async with desk() as at:
        peer = at.here.agent()
        trace = TraceContext("c" * 32, "d" * 16)
        at.here.dispatcher.submit("panel", WORK, trace=trace, route="/x", client="me")
        peer.says("1.1", "a", done=True)
        assert (at.line["request"], at.line["client"], at.line["route"]) == ("panel", "me", "/x")
        assert at.is_empty()


async def test_the_log_of_a_request_has_its_names_and_only_there() -> None:
    seen: list[dict[str, Any]] = []

    async def app(exchange: Exchange) -> None:
        seen.append(structlog.contextvars.get_contextvars())
        await send_text(exchange.send, 200, "")

    async with desk(Sampling()) as at:
        parents = (b"nonsense", CALLER.traceparent().encode())
        for headers in (
            [(b"x-request-id", b"mine"), (b"traceparent", parents[0])],
            [(b"traceparent", parents[1])],
        ):
            async with trio.open_nursery() as nursery:  # as a connection runs them
                nursery.start_soon(at.ask, app, *headers)
        assert not structlog.contextvars.get_contextvars()
    assert seen[0]["request"] == "mine"
    assert seen[0]["trace"] == at.done[0].trace.trace_id
    assert seen[1]["trace"] == CALLER.trace_id
    assert seen[1]["request"].startswith("req_")
    first, second = (dict(m["headers"]) for m in at.sent if m["type"] == "http.response.start")
    assert b"traceresponse" not in first, "a client could find nothing under it"
    assert second[b"traceresponse"] == CALLER.traceparent().encode()


async def test_an_agent_that_does_not_read_traces_is_sent_none() -> None:
    async with desk() as at:
        peer = at.here.agent()
        at.here.dispatcher.submit("r", WORK, trace=CALLER)
        (start,) = peer.received()
        assert isinstance(start, Start)
        assert start.trace is None
        peer.says("1.1", done=True)


@pytest.mark.parametrize(
    ("kind", "route", "name"),
    [
        (None, ROUTE, None),
        ("generation", ROUTE, "chat"),
        ("generation", "/v1/messages", "chat"),
        ("generation", "/v1/completions", "text_completion"),
        ("generation", None, "text_completion"),
        ("embedding", "/v1/embeddings", "embeddings"),
        ("rank", "/rerank", "rank"),
    ],
)
def test_operations_have_the_names_of_the_conventions(
    kind: str | None, route: str | None, name: str | None
) -> None:
    assert operation(kind, route) == name
