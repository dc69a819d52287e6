"""A load test in virtual time, against a server in memory that does what servers may do."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import h11
import pytest
import trio
from bench_world import STREAM, Answering, BenchServer, Conversation, answer
from trio.testing import MockClock

from certificates import Authority
from paddler_trio.cli.bench.bench_figures import figures_of
from paddler_trio.cli.bench.client_connection import listed_model
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.runner import Results, TargetSilentError, run_bench
from paddler_trio.cli.bench.target import Resolved, Target, TargetUnreachableError
from paddler_trio.cli.bench.target_address import BaseUrl
from paddler_trio.cli.bench.workloads import Sizes
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import ClientTls

SIZES = Sizes(prompt_words=5, max_tokens=4)
PLAN = BenchPlan(concurrencies=(3,), rounds=1, requests=2, warmup=0, sizes=SIZES)


@asynccontextmanager
async def serving(answering: Answering = answer) -> AsyncIterator[BenchServer]:
    """At the end of the block the server ends, and no client may have left a connection open."""
    async with trio.open_nursery() as nursery:
        server = BenchServer(nursery, answering)
        yield server
        assert all(stream.is_closed for stream in server.dialled)
        nursery.cancel_scope.cancel()


def counting(*answers: Answering) -> Answering:
    """Each request gets the next of these; all further ones get the last."""
    left = list(answers)

    async def next_answer(conversation: Conversation, body: dict[str, object]) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(conversation, body)

    return next_answer


async def refuse(conversation: Conversation, _: dict[str, object]) -> None:
    await conversation.refuse(503, "the buffer is full")


async def leave(conversation: Conversation, _: dict[str, object]) -> None:
    await conversation.head(200, STREAM)
    await conversation.text("word")
    await conversation.stream.aclose()


async def be_silent(_: Conversation, __: dict[str, object]) -> None:
    await trio.sleep_forever()


async def test_figures_are_those_of_the_clock(autojump_clock: MockClock) -> None:
    results = Results()
    async with serving() as server:
        await run_bench(PLAN, (server.target(),), results)
    figures = figures_of(results.runs)
    assert figures.requests == 6
    assert (figures.failed, figures.unfinished) == (0, 0)
    for values, seconds in ((figures.ttft, 0.2), (figures.itl, 0.05), (figures.queue, 0.05)):
        assert values is not None
        assert (values.p50, values.p99) == pytest.approx((seconds, seconds))
    assert figures.wall_s == pytest.approx(2 * 0.35)
    assert figures.tokens_per_s == pytest.approx(6 * 4 / 0.7)
    assert figures.prompt_tokens == 60
    assert server.most_in_flight == 3
    assert len(server.dialled) == 3, "each client keeps its connection"


async def test_a_request_is_a_chat_completion_below_the_base_url_with_the_key(
    autojump_clock: MockClock,
) -> None:
    async with serving() as server:
        await run_bench(PLAN, (server.target(key="secret"),), Results())
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("demo", 4, True)
    assert body["ignore_eos"] is True
    assert server.headers[0][b":path"] == b"/base/v1/chat/completions"
    assert server.headers[0][b"authorization"] == b"Bearer secret"
    assert server.headers[0][b"host"] == b"127.0.0.1:8061"


async def test_two_targets_take_turns(autojump_clock: MockClock) -> None:
    results = Results()
    plan = BenchPlan(
        concurrencies=(1, 2), rounds=2, requests=1, warmup=0, sizes=SIZES, num_targets=2
    )
    async with serving() as one, serving() as other:
        await run_bench(plan, (one.target("one"), other.target("other")), results)
    assert [each.run.target for each in results.runs] == [0, 1, 1, 0, 0, 1, 1, 0]
    assert len(one.bodies) == len(other.bodies) == 6
    assert all(
        each.began_s >= before.ended_s
        for before, each in zip(results.runs, results.runs[1:], strict=False)
    )


async def test_what_warms_up_is_not_counted(autojump_clock: MockClock) -> None:
    results = Results()
    async with serving() as server:
        await run_bench(
            BenchPlan(concurrencies=(1,), rounds=1, requests=1, warmup=3),
            (server.target(),),
            results,
        )
    assert len(server.bodies) == 4
    assert figures_of(results.runs).requests == 1


async def test_a_target_that_refuses_everything_ends_the_test_with_its_words(
    autojump_clock: MockClock,
) -> None:
    results = Results()
    async with serving(refuse) as server:
        with pytest.raises(
            TargetSilentError, match="server answers no request: status 503: the buf"
        ):
            await run_bench(BenchPlan(), (server.target(),), results)
    assert results.runs == []


async def test_refusals_are_counted_and_the_connection_is_kept(autojump_clock: MockClock) -> None:
    results = Results()
    async with serving(counting(answer, refuse, answer)) as server:
        await run_bench(
            BenchPlan(concurrencies=(1,), rounds=1, requests=3, warmup=0),
            (server.target(),),
            results,
        )
    figures = figures_of(results.runs)
    assert (figures.requests, figures.errors) == (3, {"status 503": 1})
    assert len(server.dialled) == 1


@pytest.mark.parametrize(
    ("bad", "label"),
    [(leave, "broken off"), (be_silent, "timeout")],
)
async def test_after_a_failed_answer_the_client_goes_on_with_another_connection(
    autojump_clock: MockClock, bad: Answering, label: str
) -> None:
    results = Results()
    plan = BenchPlan(concurrencies=(1,), rounds=1, requests=3, warmup=0, timeout_s=5)
    async with serving(counting(bad, answer)) as server:
        await run_bench(plan, (server.target(),), results)
    assert figures_of(results.runs).errors == {label: 1}
    assert figures_of(results.runs).requests == 3
    assert len(server.dialled) == 2


async def test_a_kept_connection_that_the_server_closed_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    async def answer_and_close(conversation: Conversation, body: dict[str, object]) -> None:
        await answer(conversation, body)
        await conversation.stream.aclose()

    results = Results()
    async with serving(answer_and_close) as server:
        await run_bench(
            BenchPlan(concurrencies=(1,), rounds=1, requests=3, warmup=0),
            (server.target(),),
            results,
        )
    assert figures_of(results.runs).errors == {}
    assert len(server.dialled) == 3


async def test_a_page_instead_of_a_stream_is_a_failure(autojump_clock: MockClock) -> None:
    async def page(conversation: Conversation, _: dict[str, object]) -> None:
        await conversation.head(200, ("Content-Type", "text/html"), ("Content-Length", "2"))
        await conversation.send(h11.Data(data=b"hi"))
        await conversation.send(h11.EndOfMessage())

    async with serving(page) as server:
        with pytest.raises(TargetSilentError, match="a stream was asked for, this is text/html"):
            await run_bench(BenchPlan(), (server.target(),), Results())


async def test_a_turn_that_takes_too_long_sends_nothing_more_and_ends_what_it_began(
    autojump_clock: MockClock,
) -> None:
    results = Results()
    plan = BenchPlan(concurrencies=(2,), rounds=1, requests=100, warmup=0, run_s=1.0)
    async with serving() as server:
        await run_bench(plan, (server.target(),), results)
    figures = figures_of(results.runs)
    assert figures.requests == 2 * 3, "each takes 0.35 s, and the fourth would begin after 1.05 s"
    assert (figures.failed, figures.unfinished) == (0, 0)
    assert results.stopped == ""


async def test_the_whole_test_ends_in_its_time_with_the_results_so_far(
    autojump_clock: MockClock,
) -> None:
    results = Results()
    plan = BenchPlan(concurrencies=(1, 2, 4), rounds=9, requests=9, warmup=0, max_s=5.0)
    async with serving() as server:
        await run_bench(plan, (server.target(),), results)
    assert autojump_clock.current_time() == pytest.approx(5.0, abs=0.01)
    assert results.stopped == "--max-time 5 was over"
    assert 0 < len(results.runs) < len(plan.runs)
    last = figures_of(results.runs[-1:])
    assert last.unfinished == results.runs[-1].run.concurrency
    assert results.runs[-1].is_over


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2, 0.22, 0.34, 0.36, 1.2])
async def test_whoever_cancels_it_has_the_results_so_far(
    autojump_clock: MockClock, after_s: float
) -> None:
    results = Results()
    async with serving() as server:
        with trio.move_on_after(after_s) as scope:
            await run_bench(PLAN, (server.target(),), results)
        assert scope.cancelled_caught is (after_s < 0.7)
    expected = 3 * min(2, int(after_s / 0.35))
    assert sum(len(each.samples) for each in results.runs) == expected


async def test_what_connects_nowhere_is_a_failure_with_the_system_s_words(
    autojump_clock: MockClock,
) -> None:
    async def refuse_to_dial() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(111, "Connection refused")

    async with serving() as server:
        target = server.target()
        object.__setattr__(target, "dial", refuse_to_dial)
        with pytest.raises(TargetSilentError, match="connect: Connection refused"):
            await run_bench(BenchPlan(), (target,), Results())


async def test_connections_go_to_the_address_that_takes_them() -> None:
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, trio.aclose_forcefully, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        url = BaseUrl("host", listeners[0].socket.getsockname()[1])
        for ips in (("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("127.0.0.1",)):
            assert await Resolved(url, ips).answering_ip() == "127.0.0.1"
        nursery.cancel_scope.cancel()
    assert await Resolved(url, ("::1", "127.0.0.1")).answering_ip() == "::1", "none is better"


def listing(body: bytes, status: int = 200) -> Answering:
    async def models(conversation: Conversation, _: dict[str, object]) -> None:
        await conversation.head(status, ("Content-Length", str(len(body))))
        await conversation.send(h11.Data(data=body))
        await conversation.send(h11.EndOfMessage())

    return models


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"data": [{"id": "a"}, {"id": "b"}]}', "a"),
        (
            b'{"data": [{"id": "a", "status": {"value": "unloaded"}}, {"id": "b"}]}',
            "b",
        ),
        (b'{"data": [{"id": "a", "status": {"value": "unloaded"}}]}', "a"),
        (b'{"data": [7, {"id": 3}, {"id": "c"}]}', "c"),
        (b'{"data": [{"id": "%s"}, {"id": "c"}]}' % (b"x" * 5000), "c"),
        (b'{"data": [%s{"id": "c"}]}' % (b'{"id": 0}, ' * 20_000), "c"),
    ],
)
async def test_the_model_is_the_first_that_is_listed_as_loaded(
    autojump_clock: MockClock, body: bytes, model: str
) -> None:
    async with serving(listing(body)) as server:
        assert await listed_model(server.target()) == model
    assert server.headers[0][b":path"] == b"/base/v1/models"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"data": []}', 200, "lists no model"),
        (b"nothing", 200, "lists no model"),
        (b'{"error": "no key"}', 401, r"refused \(401\): no key; give --key-file or"),
        (b"", 404, "status 404"),
    ],
)
async def test_a_target_that_tells_no_model_is_an_error(
    autojump_clock: MockClock, body: bytes, status: int, words: str
) -> None:
    async with serving(listing(body, status)) as server:
        with pytest.raises((ConfigurationError, TargetUnreachableError), match=words):
            await listed_model(server.target())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


def encrypted(server: BenchServer, authority: Authority, *, trusts: bool = True) -> Target:
    """The server's target over TLS, with a certificate for its address."""
    pair = authority.sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.wrap = partial(
        trio.SSLStream, ssl_context=context, server_side=True, https_compatible=True
    )
    trust = ClientTls(ca_file=authority.cert) if trusts else ClientTls(fingerprint="0" * 64)
    return server.target(tls=trust.context())


async def test_a_target_with_tls_is_asked_over_it(
    autojump_clock: MockClock, authority: Authority
) -> None:
    results = Results()
    async with serving() as server:
        await run_bench(PLAN, (encrypted(server, authority),), results)
    figures = figures_of(results.runs)
    assert (figures.requests, figures.errors) == (6, {})
    assert len(server.dialled) == 3


async def test_a_target_that_shows_another_certificate_gets_no_request(
    autojump_clock: MockClock, authority: Authority
) -> None:
    async with serving() as server:
        target = encrypted(server, authority, trusts=False)
        with pytest.raises(TargetSilentError, match=r"connect: its certificate has the fingerp"):
            await run_bench(BenchPlan(), (target,), Results())
        with pytest.raises(TargetUnreachableError, match="its certificate has the fingerprint"):
            await listed_model(target)
    assert server.bodies == []
