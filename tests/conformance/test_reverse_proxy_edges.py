"""The forwarding port where HTTP is read in more than one way, and where clients do odd things."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import trio
from scripted_server import Exchange
from test_reverse_proxy import (
    ASK,
    CHUNKED,
    FINE,
    PATIENCE_S,
    Proxy,
    proxy,
    read_until,
    sends,
    without_ours,
)

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.scheduler.limits.key_limits import KeyLimits

CLOSES = b"Host: h\r\nConnection: close\r\n"


async def whole(fleet: Proxy, request: bytes, *, at: str | None = None) -> bytes:
    """All that comes until the connection is closed."""
    data = b""
    with trio.fail_after(PATIENCE_S):
        async with await fleet.connect(at=at) as stream:
            await stream.send_all(request)
            async for piece in stream:
                data += piece
    return data


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["plain", "read by h11"])
@pytest.mark.parametrize("target", [b"/completion#x", b"/slots#", b"/a?b=#c"])
async def test_a_fragment_is_refused(target: bytes, more: bytes) -> None:
    """A server cuts it off: it would see another path than the one that was judged here."""
    async with proxy(sends(FINE)) as fleet:
        ask = b"POST %b HTTP/1.1\r\nHost: h\r\n%bContent-Length: 2\r\n\r\n{}" % (target, more)
        answer = await whole(fleet, ask)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"leave it out" in answer
        assert fleet.servers[0].asked == []


async def test_without_a_key_only_probes_reach_a_server(tmp_path: Path) -> None:
    """The agent may have a key for the server."""
    (tmp_path / "server key").write_text("s3cret\n")
    (tmp_path / "server key").chmod(0o600)
    key = StoredKey.of(
        new_secret(), name="a", scopes=frozenset({KeyScope.INFERENCE}), created="2026-01-01"
    )
    write_key_file(tmp_path / "keys", KeyFile().having(key))
    async with proxy(
        sends(FINE),
        api_key_file=tmp_path / "keys",
        upstream={"key_file": tmp_path / "server key"},
    ) as fleet:
        for method, target in (
            (b"POST", b"/models"),
            (b"DELETE", b"/models?model=a"),
            (b"PUT", b"/livez"),
            (b"POST", b"/readyz"),
        ):
            ask = b"%b %b HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % (method, target, CLOSES)
            assert (await whole(fleet, ask)).startswith(b"HTTP/1.1 401 ")
        upgrade = b"Upgrade: websocket\r\nConnection: upgrade\r\n"
        socket_ask = b"GET /models HTTP/1.1\r\nHost: h\r\n%b\r\n" % upgrade
        async with await fleet.connect() as stream:
            await stream.send_all(socket_ask)
            assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        assert fleet.servers[0].asked == []
        probe = await whole(fleet, b"GET /models HTTP/1.1\r\n%b\r\n" % CLOSES)
        assert b"x-paddler-agent: up1" in probe, "it came from the server"


async def test_a_client_that_closed_its_side_and_does_not_read_frees_slot_and_server() -> None:
    """What is being written to it has time; the server need not wait for that."""
    is_blocked, left = trio.Event(), trio.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.send(CHUNKED)
        patience = trio.CancelScope()
        while not patience.cancelled_caught:
            with trio.move_on_after(1) as patience:
                await exchange.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        is_blocked.set()
        await exchange.client_gone()
        left.set()

    async with proxy(endless, slots=1) as fleet, await fleet.connect() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await stream.send_all(ASK)
        await read_until(stream, b"x")
        await is_blocked.wait()  # the client's buffers are full, and all others
        await stream.send_eof()
        with trio.fail_after(3):  # five seconds is how long a stop waits to be confirmed
            await left.wait()
            await fleet.balancer.wait_agents(
                lambda agents: [each["slots_processing"] for each in agents] == [0]
            )


@pytest.mark.parametrize("port", ["forwarding", "inference"])
async def test_a_line_break_behind_a_body_harms_no_request(port: str) -> None:
    async with proxy(sends(FINE)) as fleet:
        at = fleet.balancer.reverse_proxy if port == "forwarding" else fleet.balancer.inference
        body = b'{"model":"scripted","messages":[]}\r\n'
        fields = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(body) - 2)
        path = b"POST /v1/chat/completions HTTP/"
        closing = path + b"1.1\r\n" + CLOSES + fields + body
        old = path + b"1.0\r\nHost: h\r\n" + fields + body
        kept = path + b"1.1\r\nHost: h\r\n" + fields + body
        for ask, count in ((closing, 1), (old, 1), (kept + closing, 2)):
            answer = await whole(fleet, ask, at=at)
            assert answer.count(b" 200 OK\r\n") == answer.count(b"fine") == count
            assert b" 400 " not in answer


async def test_a_line_break_in_the_middle_of_an_answer_cuts_nothing() -> None:
    goes_on = trio.Event()

    async def two(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await goes_on.wait()
        await exchange.send(b"4\r\ntwo \r\n0\r\n\r\n")

    async with proxy(two) as fleet, await fleet.connect() as stream:
        await stream.send_all(b"GET /slow HTTP/1.1\r\n%b\r\n" % CLOSES)
        await read_until(stream, b"one ")
        await stream.send_all(b"\r\n")
        goes_on.set()
        assert (await read_until(stream, b"0\r\n\r\n")).startswith(b"4\r\ntwo ")


async def test_a_forwarded_answer_has_the_fields_that_every_answer_has(tmp_path: Path) -> None:
    secret, page = new_secret(), b"https://page.example"
    terms = KeyTerms(limits=KeyLimits(requests_per_minute=9))
    key = StoredKey.of(
        secret,
        name="a",
        scopes=frozenset({KeyScope.INFERENCE}),
        created="2026-01-01",
        terms=terms,
    )
    write_key_file(tmp_path / "keys", KeyFile().having(key))
    async with proxy(
        sends(FINE),
        api_key_file=tmp_path / "keys",
        inference_cors_allowed_hosts=(page.decode(),),
    ) as fleet:
        body = b'{"model":"scripted","messages":[]}'
        fields = b"X-Request-Id: mine\r\nOrigin: %b\r\nAuthorization: Bearer %b\r\n" % (
            page,
            secret.encode(),
        )
        fields += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        ask = b"POST /v1/chat/completions HTTP/1.1\r\n" + CLOSES + fields + body
        for at in (fleet.balancer.inference, fleet.balancer.reverse_proxy):
            head, _, text = (await whole(fleet, ask, at=at)).partition(b"\r\n\r\n")
            lines = {line.lower().partition(b":")[0]: line for line in head.split(b"\r\n")[1:]}
            assert text == b"fine"
            assert lines[b"content-length"] == b"Content-Length: 4"
            assert lines[b"x-request-id"].endswith(b": mine")
            assert any(b"ratelimit" in name for name in lines)
            is_inference = at == fleet.balancer.inference
            assert (b"access-control-allow-origin" in lines) == is_inference


@pytest.mark.parametrize(
    ("target", "passed"),
    [
        (b"http://api.example/x?q=1", b"/x?q=1"),
        (b"http://api.example?q=1/x", b"/?q=1/x"),
        (b"HTTP://api.example", b"/"),
        (b"http://api.example/x?", b"/x?"),
    ],
)
async def test_a_target_in_absolute_form_keeps_its_query_and_its_host_counts(
    target: bytes, passed: bytes
) -> None:
    async with proxy(sends(FINE)) as fleet:
        for host in (b"h", b"evil.example"):
            ask = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (target, host)
            answer = await whole(fleet, ask)
            assert answer.startswith(b"HTTP/1.1 200 ")
            asked = fleet.servers[0].asked[-1]
            assert asked.target == passed
            hosts = [value for name, value in asked.request.headers if name == b"host"]
            assert hosts == [b"api.example"]


@pytest.mark.parametrize(
    ("target", "status"),
    [(b"http://evil.example/", 403), (b"http:///x", 400), (b"http://user@h/x", 400)],
)
async def test_a_target_in_absolute_form_is_no_way_past_the_allowed_hosts(
    target: bytes, status: int
) -> None:
    async with proxy(sends(FINE)) as fleet:
        answer = await whole(fleet, b"GET %b HTTP/1.1\r\n%b\r\n" % (target, CLOSES))
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert fleet.servers[0].asked == []


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["plain", "read by h11"])
async def test_a_request_line_passes_as_it_came(more: bytes) -> None:
    lines = (
        (b"OPTIONS", b"*"),
        (b"GET", b"/foo?"),
        (b"GET", b"/foo??"),
        (b"GET", b"/a%2Fb/%2e%2e/%7Eu//x/../y;p=1/%E4?q=%20+&&=%zz"),
        (b"GET", b'/a"<>\\^`{|}[]'),
        (b"get", b"/foo"),
        (b"PoSt", b"/completion"),
        (b"M-search!", b"/foo"),
    )
    async with proxy(sends(FINE)) as fleet:
        for method, target in lines:
            ask = b"%b %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (method, target, more)
            async with await fleet.connect() as stream:
                await stream.send_all(ask)
                await read_until(stream, b"\r\n\r\nfine")
            asked = fleet.servers[0].asked[-1]
            assert (asked.request.method, asked.target) == (method, target)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["plain", "read by h11"])
@pytest.mark.parametrize("rewrites_host", [False, True])
async def test_fields_of_a_request_pass_in_their_order_and_spelling(
    more: bytes, *, rewrites_host: bool
) -> None:
    fields = [
        (b"HOST", b"h"),
        (b"X-oDD", b"1"),
        (b"content-LENGTH", b"2"),
        (b"x-Odd", b"a \t b"),
        (b"X-Empty", b""),
        (b"X-Latin", b"caf\xe9"),
        (b"x-odd", b"3"),
    ]
    async with proxy(sends(FINE), rewrite_host_header=rewrites_host) as fleet:
        lines = b"".join(b"%b: %b \r\n" % pair for pair in fields)
        ask = b"POST /x HTTP/1.1\r\n%b%b\r\n{}" % (lines, more)
        async with await fleet.connect() as stream:
            await stream.send_all(ask)
            await read_until(stream, b"\r\n\r\nfine")
        written = fleet.servers[0].asked[-1].request.headers.raw_items()
    if rewrites_host:
        fields[0] = (b"host", fleet.servers[0].url.removeprefix("http://").encode())
    assert written[: len(fields)] == fields
    assert {name for name, _ in written[len(fields) :]} == {
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    }


async def test_options_of_a_host_are_those_of_the_whole_server() -> None:
    """RFC 9112, 3.2.4."""
    async with proxy(sends(FINE)) as fleet:
        await whole(fleet, b"OPTIONS http://h HTTP/1.1\r\n%b\r\n" % CLOSES)
        assert fleet.servers[0].asked[-1].target == b"*"


async def test_a_method_that_is_head_in_other_letters_is_another_one() -> None:
    """Its answer has a body, and the next request comes behind that."""
    async with proxy(sends(FINE)) as fleet, await fleet.connect() as stream:
        for _ in range(2):
            await stream.send_all(b"Head /foo HTTP/1.1\r\nHost: h\r\n\r\n")
            answer = await read_until(stream, b"\r\n\r\nfine")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n")
        assert fleet.servers[0].asked[-1].request.method == b"Head"


async def test_trace_is_refused_in_any_letters() -> None:
    async with proxy(sends(FINE)) as fleet:
        for method in (b"TRACE", b"trace", b"Trace"):
            answer = await whole(fleet, b"%b / HTTP/1.1\r\n%b\r\n" % (method, CLOSES))
            assert answer.startswith(b"HTTP/1.1 501 ")
        assert fleet.servers[0].asked == []


ODD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("method", "sent", "passed"),
    [
        (b"GET", ODD + b"Content-Length: 4, 4\r\nX: y\r\n\r\nfine", b"Content-Length: 4\r\nX: y"),
        (b"GET", ODD + b"content-LENGTH: 04 ,4\r\n\r\nfine", b"content-LENGTH: 04"),
        (
            b"GET",
            ODD + b"Content-Length: 4\r\nX: y\r\nContent-Length: 4\r\n\r\nfine",
            b"Content-Length: 4\r\nX: y",
        ),
        (b"HEAD", ODD + b"Content-Length: 9,9\r\n\r\n", b"Content-Length: 9"),
        (b"GET", b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", b"Content-Length: 9"),
        (b"GET", b"HTTP/1.1 204 No\r\nX: y\r\nContent-Length: 4\r\n\r\n", b"X: y"),
    ],
)
async def test_a_client_is_told_one_length_and_none_where_there_is_no_body(
    method: bytes, sent: bytes, passed: bytes
) -> None:
    async with proxy(sends(sent)) as fleet:
        answer = without_ours(await whole(fleet, b"%b /x HTTP/1.1\r\n%b\r\n" % (method, CLOSES)))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = sent.partition(b"\r\n")[0]
    assert head == status + b"\r\n" + passed
    assert body == sent.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("codings", "passed"),
    [(b"trailers", b"trailers"), (b"gzip;q=1, Trailers", b"trailers"), (b"gzip", None)],
)
async def test_a_server_is_told_that_the_client_takes_trailers(
    codings: bytes, passed: bytes | None
) -> None:
    async with proxy(sends(FINE)) as fleet:
        ask = b"GET /x HTTP/1.1\r\nHost: h\r\nTE: %b\r\nConnection: close, TE\r\n\r\n" % codings
        await whole(fleet, ask)
        asked = fleet.servers[0].asked[-1].headers
        assert asked.get(b"te") == passed
        assert asked.get(b"connection") == (None if passed is None else b"TE")


async def test_trailers_say_nothing_about_framing_or_who_answered() -> None:
    trailers = (
        b"X-T: 1\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nConnection: X-T\r\n"
        b"Host: evil\r\nX-Paddler-Agent: evil\r\nx-t: 2\r\n"
    )
    sent = CHUNKED + b"4\r\nfine\r\n0\r\n" + trailers + b"\r\n"
    async with proxy(sends(sent)) as fleet:
        answer = await whole(fleet, b"GET /x HTTP/1.1\r\n%b\r\n" % CLOSES)
    assert answer.endswith(b"4\r\nfine\r\n0\r\nX-T: 1\r\nx-t: 2\r\n\r\n")


@pytest.mark.parametrize("port", ["forwarding", "inference"])
async def test_a_body_that_is_announced_as_too_long_is_refused_before_it_comes(port: str) -> None:
    ask = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 67108865\r\n\r\n"
    async with proxy(sends(FINE)) as fleet:
        at = fleet.balancer.reverse_proxy if port == "forwarding" else fleet.balancer.inference
        async with await fleet.connect(at=at) as stream:
            await stream.send_all(ask)
            assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        assert fleet.servers[0].asked == []


UPLOAD_BYTES = 32_000_000
UPLOAD = ASK.replace(b"2\r\n\r\n{}", b"%d\r\n\r\n" % UPLOAD_BYTES) + b"x" * UPLOAD_BYTES


async def test_a_server_that_answers_before_it_has_read_the_body_is_heard_at_once() -> None:
    seen = trio.Event()

    async def early(exchange: Exchange) -> None:
        await exchange.send(CHUNKED + b"4\r\none \r\n")
        await seen.wait()
        await exchange.send(b"4\r\ntwo \r\n0\r\n\r\n")

    async with proxy(early, slots=1, reads_bodies=False) as fleet, await fleet.connect() as stream:
        for _ in range(2):  # connection and tunnel are kept
            await stream.send_all(UPLOAD)
            assert (await read_until(stream, b"one \r\n")).startswith(b"HTTP/1.1 200 ")
            seen.set()
            assert await read_until(stream, b"0\r\n\r\n") == b"4\r\ntwo \r\n0\r\n\r\n"
            seen = trio.Event()


async def test_an_answer_longer_than_every_buffer_comes_before_the_body_is_read() -> None:
    refusal = b"HTTP/1.1 413 Too big\r\nContent-Length: %d\r\n\r\n" % UPLOAD_BYTES

    async def refuses(exchange: Exchange) -> None:
        await exchange.send(refusal + b"y" * UPLOAD_BYTES)

    async with proxy(refuses, slots=1, reads_bodies=False) as fleet:
        answer = await whole(fleet, UPLOAD.replace(b"Host: api.example\r\n", CLOSES))
    assert without_ours(answer) == refusal + b"y" * UPLOAD_BYTES


async def test_a_part_of_an_answer_is_not_whole_to_a_client_that_reads_no_chunks() -> None:
    """Of HTTP/1.0, where the end of the body is that of the connection."""

    async def breaks(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await trio.aclose_forcefully(exchange.stream)

    async with proxy(breaks) as fleet, await fleet.connect() as stream:
        await stream.send_all(b"GET /file HTTP/1.0\r\nHost: h\r\n\r\n")
        assert (await read_until(stream, b"half")).startswith(b"HTTP/1.1 200 OK\r\n")
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            assert not await stream.receive_some()


async def test_the_slots_of_a_shown_key_have_one_server_each_wherever_it_comes_from() -> None:
    async with proxy(sends(FINE), sends(FINE), sends(FINE)) as fleet:
        host, _, port = fleet.balancer.reverse_proxy.rpartition(":")
        answered: dict[bytes, set[bytes]] = {}
        for slot in (b"0", b"1", b"2", b"3"):
            body = b'{"id_slot":%b}' % slot
            ask = b"POST /completion HTTP/1.1\r\n%bAuthorization: Bearer one\r\nContent-Length: %d"
            for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
                async with await trio.open_tcp_stream(
                    host, int(port), local_address=address
                ) as stream:
                    await stream.send_all(ask % (CLOSES, len(body)) + b"\r\n\r\n" + body)
                    answer = await read_until(stream, b"fine")
                agent = re.search(rb"x-paddler-agent: (\w+)", answer)
                assert agent is not None
                answered.setdefault(slot, set()).add(agent[1])
    assert [len(agents) for agents in answered.values()] == [1, 1, 1, 1]
