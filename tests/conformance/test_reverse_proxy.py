"""Servers behind agents answer as if nobody stood between them and their clients.

Balancer and agents run in the test's own nursery, on real sockets; servers send exactly the bytes
that a test wants.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import h11
import pytest
import trio
from native_client import Json, RunningBalancer, running_balancer
from scripted_server import Exchange, Script, ScriptedServer, scripted_server
from structlog.testing import capture_logs

from paddler_trio.agent.assembly.agent_daemon import serve_agent
from paddler_trio.system.config import split_address
from paddler_trio.system.settings.agent_config import AgentConfig, UpstreamConfig
from paddler_trio.system.systemd_notify import SystemdNotifier

ASK = b"POST /completion HTTP/1.1\r\nHost: api.example\r\nContent-Length: 2\r\n\r\n{}"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PATIENCE_S = 60.0
PORT: dict[str, Json] = {
    "reverseproxy_addr": "127.0.0.1:0",
    "allowed_hosts": ("api.example", "h"),
}
OURS = (b"x-paddler-agent", b"x-request-id", b"vary")


@attrs.frozen
class Proxy:
    """A balancer with servers behind it."""

    balancer: RunningBalancer
    servers: Sequence[ScriptedServer]
    agents: Sequence[trio.Event]
    """Set, the agent of the same place stops."""

    async def answer(self, request: bytes, *, at: str | None = None) -> bytes:
        """All bytes of the answer to one request on a connection that is then closed, without the
        field that is ours."""
        async with await self.connect(at) as stream:
            await stream.send_all(request.replace(b"Host:", b"Connection: close\r\nHost:", 1))
            with trio.fail_after(PATIENCE_S):
                data = b"".join([bytes(piece) async for piece in stream])
        return without_ours(data)

    async def connect(self, at: str | None = None, source: str | None = None) -> trio.SocketStream:
        address = self.balancer.reverse_proxy if at is None else at
        host, _, port = address.rpartition(":")
        return await trio.open_tcp_stream(host, int(port), local_address=source)


def without_ours(data: bytes) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(OURS)]
    return b"\r\n".join(lines) + end + body


async def read_until(stream: trio.SocketStream, mark: bytes) -> bytes:
    data = b""
    with trio.fail_after(PATIENCE_S):
        while mark not in data:
            piece = await stream.receive_some(65_536)
            assert piece, f"closed after {data!r}"
            data += piece
    return data


def body_in(data: bytes | bytearray) -> bytes:
    """Of a whole answer, whatever its chunks are."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    client.send(h11.EndOfMessage())
    client.receive_data(bytes(data))
    pieces = []
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Response | h11.Data), event
        if isinstance(event, h11.Data):
            pieces.append(bytes(event.data))
    return b"".join(pieces)


@asynccontextmanager
async def proxy(
    *scripts: Script,
    slots: int = 2,
    upstream: dict[str, Json] | None = None,
    agents_drain_s: float = 0.1,
    reads_bodies: bool = True,
    **config: Json,
) -> AsyncIterator[Proxy]:
    """A server for each script, with an agent of ``slots`` before it."""
    async with AsyncExitStack() as stack:
        settings = {**PORT, **config}
        balancer = await stack.enter_async_context(running_balancer(**settings))
        servers = [
            await stack.enter_async_context(scripted_server(each, reads_bodies=reads_bodies))
            for each in scripts
        ]
        nursery = await stack.enter_async_context(trio.open_nursery())
        stops = [
            await start_agent(
                nursery,
                balancer,
                server.url,
                f"up{number}",
                slots,
                upstream or {},
                drain_s=agents_drain_s,
            )
            for number, server in enumerate(servers, 1)
        ]
        await balancer.wait_agents(
            lambda agents: [each["slots_total"] for each in agents] == [slots] * len(servers)
        )
        yield Proxy(balancer, servers, stops)
        for stop in stops:
            stop.set()
        nursery.cancel_scope.cancel()


async def start_agent(
    nursery: trio.Nursery,
    balancer: RunningBalancer,
    url: str,
    name: str,
    slots: int,
    upstream: dict[str, Json],
    *,
    drain_s: float = 0.1,
) -> trio.Event:
    host, port = split_address(balancer.management)
    server = UpstreamConfig(url=url, slots=slots, interval_s=0.1, **upstream)
    config = AgentConfig(
        management_host=host,
        management_port=port,
        slots=slots,
        name=name,
        upstream=server,
        drain_timeout_s=drain_s,
    )
    stop = trio.Event()
    await nursery.start(partial(serve_agent, config, stop, notifier=SystemdNotifier()))
    return stop


def sends(data: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.send(data)

    return script


async def streams_for_ever(exchange: Exchange) -> None:
    await exchange.send(CHUNKED + b"4\r\none \r\n")
    await exchange.client_gone()


# ------------------------------------------------------------------------ what passes


ANSWERS = (
    b"HTTP/1.1 200 By Me\r\nServer: x\r\nX-Odd: 1\r\nX-Odd: 2\r\nContent-Length: 4\r\n\r\nfine",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nno",
    CHUNKED + b"3\r\none\r\n5\r\nthree\r\n0\r\nX-Trailer: t\r\n\r\n",
    CHUNKED.replace(b"OK", b"OK\r\nTrailer: X-T") + b"3\r\none\r\n0\r\nX-T: t\r\n\r\n",
)


async def test_answers_pass_byte_for_byte() -> None:
    sent = b""

    async def script(exchange: Exchange) -> None:
        await exchange.send(sent)

    async with proxy(script) as fleet:
        for path in (b"/completion", b"/what/nobody/knows?a=%20b"):
            for sent in ANSWERS:
                assert await fleet.answer(ASK.replace(b"/completion", path)) == sent
                asked = fleet.servers[0].asked[-1]
                assert asked.target == path
                assert asked.headers[b"host"] == b"api.example"
                assert asked.headers[b"x-forwarded-host"] == b"api.example"
                assert asked.headers[b"x-forwarded-for"] == b"127.0.0.1"


async def test_requests_pass_with_their_method_and_body_and_a_connection_is_kept() -> None:
    big = bytes(range(256)) * 4096 * 3
    async with proxy(sends(FINE)) as fleet, await fleet.connect() as stream:
        for method, body in ((b"PUT", big), (b"DELETE", b""), (b"OPTIONS", b"x"), (b"BREW", b"y")):
            head = b"%b /odd HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
            await stream.send_all(head % (method, len(body)) + body)
            await read_until(stream, b"\r\n\r\nfine")
            asked = fleet.servers[0].asked[-1]
            assert (asked.request.method, asked.body) == (method, body)
        await stream.send_all(
            b"POST /odd HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        await read_until(stream, b"\r\n\r\nfine")
        assert fleet.servers[0].asked[-1].body == b"abcde"


async def test_a_head_request_has_the_fields_of_a_body_and_none() -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
    async with proxy(sends(sent)) as fleet, await fleet.connect() as stream:
        for _ in range(2):
            await stream.send_all(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"Content-Length: 900" in await read_until(stream, b"\r\n\r\n")


async def test_pieces_of_a_stream_pass_as_they_come() -> None:
    go_on = trio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await go_on.wait()
        await exchange.send(b"4\r\ntwo \r\n0\r\n\r\n")

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK)
        await read_until(stream, b"4\r\none \r\n")
        go_on.set()
        await read_until(stream, b"4\r\ntwo \r\n0\r\n\r\n")


async def test_an_answer_that_ends_with_its_connection_ends_for_clients_of_both_versions() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.0 200 OK\r\nX-A: b\r\n\r\nold")
        await exchange.stream.aclose()

    async with proxy(script) as fleet:
        answer = await fleet.answer(ASK)
        assert answer == (
            b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n"
        )
        answer = await fleet.answer(ASK.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert answer == b"HTTP/1.1 200 OK\r\nX-A: b\r\nConnection: close\r\n\r\nold"


async def test_the_key_of_a_server_is_the_agents_and_its_own_host_on_wish(tmp_path: object) -> None:
    key = tmp_path / "key"  # type: ignore[operator]
    key.write_text("s3cret\n")
    key.chmod(0o600)
    upstream = {"key_file": key}
    async with proxy(sends(FINE), upstream=upstream, rewrite_host_header=True) as fleet:
        await fleet.answer(ASK)
        (asked,) = fleet.servers[0].asked
        assert asked.headers[b"authorization"] == b"Bearer s3cret"
        assert asked.headers[b"host"] == fleet.servers[0].url.removeprefix("http://").encode()


# ------------------------------------------------------------------- slots and queue


async def test_the_key_of_a_server_is_read_anew_when_its_file_is_replaced(tmp_path: Path) -> None:
    key, new = tmp_path / "key", tmp_path / "new"
    key.write_text("one\n")
    async with proxy(sends(FINE), upstream={"key_file": key}) as fleet:

        async def shown() -> bytes:
            await fleet.answer(ASK)
            return fleet.servers[0].asked[-1].headers[b"authorization"]

        assert await shown() == b"Bearer one"
        new.write_text("two\n")
        new.rename(key)
        with trio.fail_after(PATIENCE_S):
            while await shown() != b"Bearer two":
                pass
        with capture_logs() as records:
            key.write_text("no key\n")
            with trio.fail_after(PATIENCE_S):
                while not any("must hold one key" in str(each) for each in records):
                    assert await shown() == b"Bearer two", "what is no key is not used"


async def test_a_client_cannot_have_the_key_shown_or_the_host_left_out() -> None:
    hosts = []

    async def script(exchange: Exchange) -> None:
        hosts.append(exchange.headers[b"host"])
        await exchange.send(FINE)

    async with proxy(script) as fleet:
        refused = await fleet.answer(b"TRACE /x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 501")
        named = b"GET /x HTTP/1.1\r\nConnection: host\r\nHost: h\r\n\r\n"
        assert await fleet.answer(named) == FINE
    assert hosts == [b"h"]


async def test_no_server_gets_more_than_its_slots_and_the_others_wait_their_turn() -> None:
    are_waiting = trio.Event()

    async def script(exchange: Exchange) -> None:
        await are_waiting.wait()
        await exchange.send(FINE)

    async with proxy(script, script, slots=2) as fleet:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await fleet.answer(ASK))

        async with trio.open_nursery() as nursery:
            for _ in range(24):
                nursery.start_soon(ask)
            await fleet.balancer.wait_buffered(20)
            are_waiting.set()
        assert answers == [FINE] * 24
        assert [each.most_busy for each in fleet.servers] == [2, 2]


async def test_a_request_waits_for_the_first_server() -> None:
    async with running_balancer(**PORT) as balancer:
        fleet = Proxy(balancer, (), ())
        async with scripted_server(sends(FINE)) as server, trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(await fleet.answer(ASK))
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await balancer.wait_buffered(1)
            await start_agent(nursery, balancer, server.url, "late", 1, {})
        assert answers == [FINE]


async def test_a_client_that_leaves_ends_the_servers_work() -> None:
    gone = trio.Event()

    async def script(exchange: Exchange) -> None:
        await streams_for_ever(exchange)
        gone.set()

    async with proxy(script, slots=1) as fleet:
        async with await fleet.connect() as stream:
            await stream.send_all(ASK)
            await read_until(stream, b"one ")
        with trio.fail_after(PATIENCE_S):
            await gone.wait()
        await fleet.balancer.wait_slots(0)


async def test_a_client_that_leaves_before_its_answer_leaves_the_queue_or_the_slot() -> None:
    came, gone = trio.Event(), trio.Event()

    async def script(exchange: Exchange) -> None:
        came.set()
        await exchange.client_gone()
        gone.set()

    async with proxy(script, slots=1) as fleet:
        async with await fleet.connect() as leased, await fleet.connect() as waiting:
            await leased.send_all(ASK)
            with trio.fail_after(PATIENCE_S):
                await came.wait()
            await waiting.send_all(ASK)
            await fleet.balancer.wait_buffered(1)
            await waiting.aclose()
            await fleet.balancer.wait_buffered(0)
            assert not gone.is_set()
            await leased.aclose()
            with trio.fail_after(PATIENCE_S):
                await gone.wait()
        await fleet.balancer.wait_slots(0)


async def test_a_request_that_names_an_agent_or_a_slot_goes_to_the_same_server() -> None:
    async with proxy(sends(FINE), sends(FINE)) as fleet:
        for _ in range(4):
            await fleet.answer(ASK.replace(b"Host:", b"X-Paddler-Agent: up2\r\nHost:"))
        assert [len(each.asked) for each in fleet.servers] == [0, 4]
        slot = ASK.replace(b"2\r\n\r\n{}", b'13\r\n\r\n{"id_slot":3}')
        for _ in range(4):
            await fleet.answer(slot)
        before = [len(each.asked) for each in fleet.servers]
        assert sorted(before) in ([0, 8], [4, 4])
        refused = await fleet.answer(ASK.replace(b"Host:", b"X-Paddler-Agent: up7\r\nHost:"))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"there is: up1, up2" in refused


# ------------------------------------------------------------------------- failures


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH\r\n\r\n"])
async def test_a_server_that_fails_before_its_answer_is_not_noticed(sent: bytes) -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.send(sent)
        await exchange.stream.aclose()

    async with proxy(fails, sends(FINE), slots=4) as fleet:
        for _ in range(4):
            assert await fleet.answer(ASK) == FINE


@pytest.mark.parametrize("request_", [ASK, b"GET /page HTTP/1.1\r\nHost: api.example\r\n\r\n"])
async def test_a_request_that_servers_break_on_is_tried_on_two_and_nobody_else_notices(
    request_: bytes,
) -> None:
    async def breaks(exchange: Exchange) -> None:
        if b"poison" in exchange.headers:
            await exchange.stream.aclose()
        else:
            await exchange.send(FINE)

    async with proxy(breaks, breaks, breaks) as fleet:
        for _ in range(3):
            await fleet.balancer.wait_all_accepting()  # the last ones were looked at meanwhile
            refused = await fleet.answer(request_.replace(b"Host", b"Poison: 1\r\nHost"))
            assert refused.startswith(b"HTTP/1.1 502"), refused
            broke = [any(b"poison" in e.headers for e in s.asked) for s in fleet.servers]
            assert sum(broke) == 2
            assert await fleet.answer(ASK) == FINE
            for server in fleet.servers:
                server.asked.clear()


@pytest.mark.parametrize(
    ("line", "tries"),
    [
        (b"POST /v1/files", 1),
        (b"PATCH /x", 1),
        (b"post /tokenize", 1),
        (b"PUT /x", 2),
        (b"DELETE /v1/files/1", 2),
        (b"POST /tokenize?x=y", 2),
    ],
)
async def test_what_may_do_something_twice_is_sent_to_one_server_once(
    line: bytes, tries: int
) -> None:
    num_sent = 0

    async def breaks(exchange: Exchange) -> None:
        nonlocal num_sent
        num_sent += 1
        await exchange.stream.aclose()

    async with proxy(breaks, breaks) as fleet:
        ask = b"%b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}" % line
        assert (await fleet.answer(ask)).startswith(b"HTTP/1.1 502 ")
        asked = [len(server.asked) for server in fleet.servers]
        assert (num_sent if tries == 1 else sum(map(bool, asked))) == tries


async def test_requests_beside_the_slots_leave_the_slots_their_tunnels() -> None:
    """However many clients hold one: by reading slowly, or because a server takes long."""
    all_came, end = trio.Event(), trio.Event()

    async def holds(exchange: Exchange) -> None:
        if exchange.target == b"/page":
            if fleet.servers[0].busy == 32:
                all_came.set()
            await end.wait()
        await exchange.send(FINE)

    page = b"GET /page HTTP/1.1\r\nHost: api.example\r\n\r\n"
    async with proxy(holds, slots=1) as fleet, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(await fleet.connect()) for _ in range(34)]
        for stream in streams[:32]:
            await stream.send_all(page)
        with trio.fail_after(PATIENCE_S):
            await all_came.wait()
        for stream in streams[32:]:
            await stream.send_all(page)
            refused = await read_until(stream, b"are under way already")
            assert refused.startswith(b"HTTP/1.1 503")
        assert await fleet.answer(ASK) == FINE
        end.set()
        for stream in streams[:32]:
            assert (await read_until(stream, b"fine")).startswith(b"HTTP/1.1 200")


async def test_a_server_that_fails_in_its_answer_ends_it_with_the_reason() -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await exchange.stream.aclose()

    async with proxy(fails, slots=4) as fleet:
        answer = await fleet.answer(ASK)
        _, _, rest = answer.partition(b"4\r\none \r\n")
        assert b"\n\ndata: " in rest, "an event of its own, whatever the server had begun"
        event = rest.partition(b"data: ")[2].partition(b"\n\n")[0]
        error = json.loads(event)["error"]
        assert error["code"] == 502
        assert "closed the connection" in error["message"]
        assert not rest.endswith(b"0\r\n\r\n")  # nobody takes it for whole


async def test_a_server_that_breaks_the_rules_at_once_and_stays_ends_its_answer() -> None:
    async def breaks_rules(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\nzz\r\n")
        await exchange.client_gone()

    async with proxy(breaks_rules) as fleet:
        answer = await fleet.answer(ASK)
        assert b"4\r\none \r\n" in answer
        assert b"malformed chunk size" in answer
        assert not answer.endswith(b"0\r\n\r\n")


async def test_a_server_that_breaks_the_rules_in_a_stream_and_stays_ends_its_answer() -> None:
    was_read = trio.Event()

    async def breaks_rules(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await was_read.wait()
        await exchange.send(b"4\r\ntwo \r\nzz\r\n")
        await exchange.client_gone()

    async with proxy(breaks_rules) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK)
        await read_until(stream, b"4\r\none \r\n")
        was_read.set()
        rest = await read_until(stream, b"malformed chunk size")
        assert rest.startswith(b"4\r\ntwo \r\n")


async def test_an_answer_of_known_length_that_breaks_off_is_cut() -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await exchange.stream.aclose()

    async with proxy(fails, slots=4) as fleet:
        answer = await fleet.answer(ASK)
        assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"


async def test_an_agent_that_is_lost_ends_what_has_begun_and_no_more() -> None:
    async with proxy(streams_for_ever, sends(FINE), slots=1) as fleet:
        stream = await fleet.connect()
        async with stream:
            await stream.send_all(ASK.replace(b"Host:", b"X-Paddler-Agent: up1\r\nHost:"))
            await read_until(stream, b"one ")
            (lost,) = (agent for agent in await fleet.balancer.agents() if agent["name"] == "up1")
            assert lost["slots_processing"] == 1
            fleet.agents[0].set()
            rest = b""
            with trio.fail_after(PATIENCE_S):
                while piece := await stream.receive_some(65_536):
                    rest += piece
            assert b'"code": 502' in rest or rest == b""
        assert await fleet.answer(ASK) == FINE


@pytest.mark.parametrize("path", [b"/completion", b"/tokenize"])
@pytest.mark.parametrize("has_begun", [False, True])
async def test_an_agent_that_stops_finishes_what_it_has_asked_its_server(
    path: bytes, has_begun: bool
) -> None:
    asked, go_on = trio.Event(), trio.Event()

    async def slow(exchange: Exchange) -> None:
        if has_begun:
            await exchange.send(CHUNKED + b"4\r\none \r\n")
        asked.set()
        await go_on.wait()
        await exchange.send((b"" if has_begun else CHUNKED) + b"4\r\ntwo \r\n0\r\n\r\n")

    async with proxy(slow, agents_drain_s=PATIENCE_S) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK.replace(b"/completion", path))
        with trio.fail_after(PATIENCE_S):
            await asked.wait()
        if has_begun:
            await read_until(stream, b"one ")
        fleet.agents[0].set()
        await fleet.balancer.wait_none_accepting()
        go_on.set()
        await read_until(stream, b"two \r\n0\r\n\r\n")


async def test_a_silent_server_is_given_up_after_its_time() -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.client_gone()

    async with proxy(silent, reverseproxy_response_timeout_s=0.2) as fleet:
        answer = await fleet.answer(ASK)
        assert answer.startswith(b"HTTP/1.1 504")
        assert b"sent nothing for 0.2 s" in answer


async def test_a_server_that_falls_silent_in_a_stream_is_given_up_and_its_slot_is_free() -> None:
    async def falls_silent(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await exchange.send(b"4\r\ntwo \r\n")
        await exchange.client_gone()

    async with proxy(falls_silent, reverseproxy_response_timeout_s=0.3) as fleet:
        answer = await fleet.answer(ASK)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"4\r\ntwo \r\n" in answer
        assert b'"code": 504' in answer
        assert not answer.endswith(b"0\r\n\r\n")
        await fleet.balancer.wait_agents(lambda agents: agents[0]["slots_processing"] == 0)


async def test_a_client_that_reads_late_gets_all_of_a_stream_and_others_go_on() -> None:
    piece, count = b"data: %b\n\n" % (b"x" * 65_000), 160
    passed = 0

    async def script(exchange: Exchange) -> None:
        nonlocal passed
        if exchange.target != b"/completion":
            await exchange.send(FINE)
            return
        await exchange.send(CHUNKED)
        for _ in range(count):
            await exchange.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            passed += 1
        await exchange.send(b"0\r\n\r\n")

    async with proxy(script) as fleet, await fleet.connect() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        await stream.send_all(ASK)
        data = bytearray(await read_until(stream, b"data: "))
        for _ in range(3):  # the same agent, the same tasks that read for all
            assert (await fleet.answer(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")).endswith(b"fine")
        assert passed < count, "the system holds all of it: nothing was shown"
        with trio.fail_after(PATIENCE_S):
            while not data.endswith(b"\r\n0\r\n\r\n"):
                more = await stream.receive_some(1 << 20)
                assert more, f"closed after {len(data)} bytes"
                data += more
        assert body_in(data) == piece * count


async def test_a_huge_answer_passes_in_pieces() -> None:
    piece, count = b"x" * 65_536, 512

    async def script(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (65_536 * count))
        for _ in range(count):
            await exchange.send(piece)

    async with proxy(script) as fleet, await fleet.connect() as stream:
        await stream.send_all(ASK)
        head = await read_until(stream, b"\r\n\r\n")
        size = len(head.partition(b"\r\n\r\n")[2])
        with trio.fail_after(PATIENCE_S):
            while size < 65_536 * count:
                more = await stream.receive_some(65_536)
                assert more, f"closed after {size} bytes"
                size += len(more)
        assert size == 65_536 * count


# ------------------------------------------------------------------------- one fleet


async def test_a_request_for_a_servers_model_on_the_inference_port_goes_to_the_server() -> None:
    async with proxy(sends(FINE), upstream={"deployment": "attic"}) as fleet:
        body = b'{"model":"attic","messages":[{"role":"user","content":"x"}]}'
        ask = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        inference = fleet.balancer.inference
        assert await fleet.answer(ask, at=inference) == FINE
        assert fleet.servers[0].asked[0].body == body
        longer = b"%d" % (len(body) + 3)
        named = ask.replace(b"attic", b"scripted").replace(b"%d" % len(body), longer)
        assert await fleet.answer(named, at=inference) == FINE  # as the server calls its model
        models = await fleet.balancer.http.get(fleet.balancer.inference_url("/v1/models"))
        assert "attic" in [each["id"] for each in models.json()["data"]]


@pytest.mark.parametrize("model", ["default", "upstream", "anything"])
async def test_without_a_model_and_a_server_requests_on_the_inference_port_wait(model: str) -> None:
    async with proxy(buffered_request_timeout_s=0.1) as fleet:
        balancer = fleet.balancer
        listed = await balancer.http.get(balancer.inference_url("/v1/models"))
        assert listed.json()["data"] == []
        answer = await balancer.http.post(
            balancer.inference_url("/v1/chat/completions"),
            json={"model": model, "messages": [{"role": "user", "content": "x"}]},
        )
        assert answer.status_code == 504, answer.text
        assert "Waiting for available slot timed out" in answer.text


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
async def test_whether_there_is_a_server_is_answered_to_head_as_to_get(method: bytes) -> None:
    ask = b"%b /health HTTP/1.1\r\nHost: h\r\n\r\n" % method
    async with proxy() as fleet, await fleet.connect() as stream:
        for _ in range(2):  # the end of the first one is seen
            await stream.send_all(ask)
            answer = await read_until(stream, b"\r\n\r\n" if method == b"HEAD" else b"}")
            assert answer.startswith(b"HTTP/1.1 503 ")
    async with proxy(sends(FINE)) as fleet:
        answer = await fleet.answer(ask)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"slots_idle" in answer or b"content-length: 51\r\n" in answer, "not the server's"
        assert (answer.partition(b"\r\n\r\n")[2] == b"") == (method == b"HEAD")


@pytest.mark.parametrize("method", [b"GET", b"get", b"HEAD", b"Head"])
async def test_no_server_is_asked_for_slots_in_any_letters(method: bytes) -> None:
    async with proxy(sends(FINE)) as fleet:
        for target in (b"/slots", b"/slots?", b"//slots/", b"/%73lots", b"/Slots"):
            ask = b"%b %b HTTP/1.1\r\nHost: h\r\n\r\n" % (method, target)
            assert (await fleet.answer(ask)).startswith(b"HTTP/1.1 501 ")
        assert fleet.servers[0].asked == []


async def test_health_and_slots_of_all_servers_are_answered_here() -> None:
    async with (
        proxy(streams_for_ever, sends(FINE), slots=2, slots_endpoint=True) as fleet,
        await fleet.connect() as stream,
    ):
        await stream.send_all(ASK.replace(b"Host:", b"X-Paddler-Agent: up1\r\nHost:"))
        await read_until(stream, b"one ")
        health = await fleet.answer(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b'"slots_idle":3,"slots_processing":1' in health
        slots = await fleet.answer(b"GET /slots HTTP/1.1\r\nHost: h\r\n\r\n")
        shown = json.loads(slots.partition(b"\r\n\r\n")[2])
        assert [each["is_processing"] for each in shown].count(True) == 1
        assert len(shown) == 4
        for spelled in (b"//slots", b"/slots/", b"/./slots"):
            again = await fleet.answer(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % spelled)
            assert json.loads(again.partition(b"\r\n\r\n")[2]) == shown
