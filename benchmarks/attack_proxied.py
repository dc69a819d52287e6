"""Hostile clients of the port for servers behind agents: what they send, or do not read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

import attrs
from attack_call import (
    CROWD,
    NEWCOMER,
    Await,
    Call,
    HalfClose,
    Pause,
    Port,
    Step,
    frame,
    head,
    request,
    websocket,
)
from attack_generation import structure_of
from attack_server import SLOTS, SMUGGLED
from attack_value import Attack, ask, prose, whole

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
STAY_S = 1.0
MOST_IN_SLOTS = SLOTS + SLOTS // 2
"""Of an attack that holds slots: whoever takes all of them makes everybody wait, as is right."""
UNDERSTOOD = frozenset({200, 400, 404, 405, 411, 413, 414, 417, 431, 501, 503, 505})
"""Not 418: the server was asked for what nobody may ask for."""


def forwarded(size_bytes: int, *, port: Port = "proxied") -> Call:
    """An honest request for a server of about this size, answered at once."""
    empty = len(request(TEXT, ask(TEXT, "")))
    return Call(port=port, steps=[request(TEXT, ask(TEXT, prose(max(size_bytes - empty, 16))))])


def proxied(
    name: str,
    calls: Callable[[], Sequence[Call]],
    honest: Callable[[], Sequence[Call]] | None = None,
    **more: Any,
) -> Attack:
    """Beside neighbours that stream from a server; as a yardstick, unless there is another one, as
    many honest requests of the same sizes."""

    def of_the_same_sizes() -> list[Call]:
        return [forwarded(call.size_bytes) for call in calls()]

    return Attack(
        name=name, calls=calls, honest=honest or of_the_same_sizes, neighbour="proxied", **more
    )


def asking(path: str, act: str, size: int = 0, more: str = "") -> str:
    """The target that makes the server do this."""
    return f"{path}?{urlencode({'act': act, 'size': size})}{more}"


def looks(number: int, target: str = "/props") -> list[Call]:
    """So many honest requests that take no slot."""
    return [Call(port="proxied", steps=[request(target, method="GET")]) for _ in range(number)]


def stay_s(scale: float) -> float:
    return STAY_S * min(1.0, 10 * scale)


# --- heads --------------------------------------------------------------------------------------


def full_heads(dice: random.Random, scale: float) -> Attack:
    """Heads at their limits and just beyond."""
    number = whole(dice, 10, 200, scale)
    beyond = dice.choice([-600, 0, 1, 5000])
    kind = dice.choice(["target", "fields", "one field", "named", "proxies", "query", "method"])
    target, method, lines = "/props", "GET", ""
    if kind == "target":
        target = "/" + "a" * (8191 + beyond)
    elif kind == "query":
        target = "/props?" + "model=b&" * ((8192 + beyond) // 8)
    elif kind == "method":
        method = "A" * 15_000
    elif kind == "fields":
        lines = "".join(f"X-{n}: a\r\n" for n in range(98 + dice.choice([0, 1, 2, 400])))
    elif kind == "one field":
        lines = "X-Long: " + "a" * (16_384 - 30 + beyond) + "\r\n"
    elif kind == "named":
        lines = "Connection: " + "a, " * ((16_384 - 50 + beyond) // 3) + "b\r\n"
    else:
        one = "X-Forwarded-For: " + ", ".join(["10.0.0.1"] * 15) + "\r\n"
        lines = one * min(90, (16_384 + beyond) // len(one))
    text = head(method, target)[:-2] + lines.encode() + b"\r\n"

    def calls() -> list[Call]:
        return [Call(port="proxied", steps=[text], may_be_cut=True) for _ in range(number)]

    return proxied(f"{number} heads, {kind}, {len(text)} B", calls, lambda: looks(number))


def _post(fields: str, body: bytes, *, version: str = "1.1", target: str = TEXT) -> bytes:
    lines = f"POST {target} HTTP/{version}\r\nHost: 127.0.0.1\r\n{fields}\r\n"
    return lines.encode("latin-1") + body


def _smuggling() -> dict[str, bytes]:
    """By what is told in two ways: for every reader that keeps to HTTP, `SMUGGLED` is a part of a
    body, or behind what ends the connection."""
    second = f"GET {SMUGGLED} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    chunked = b"0\r\n\r\n" + second
    size = len(chunked)
    length = f"Content-Length: {size}\r\n"
    te = "Transfer-Encoding: chunked\r\n"
    bare = _post(f"Content-Length: {len(second)}\r\n", b"").replace(b"\r\n", b"\n")
    return {
        "a length and chunks": _post(length + te, chunked),
        "chunks and a length": _post(te + length, chunked),
        "folded chunks": _post(f"{length}Transfer-Encoding:\r\n chunked\r\n", chunked),
        "folded into chunks": _post(f"{length}X: a\r\n {te}", chunked),
        "a blank before the colon": _post(f"{length}Transfer-Encoding : chunked\r\n", chunked),
        "a tab in chunks": _post(f"{length}Transfer-Encoding:\tchunked\r\n", chunked),
        "a page break in chunks": _post(f"{length}Transfer-Encoding: \x0cchunked\r\n", chunked),
        "chunks in capitals": _post(f"{length}TRANSFER-ENCODING: CHUNKED\r\n", chunked),
        "chunks in two fields": _post(f"{length}{te}Transfer-Encoding: identity\r\n", chunked),
        "other than chunks": _post(f"{length}Transfer-Encoding: xchunked\r\n", chunked),
        "chunks with a line end": _post(f"{length}X: a\rTransfer-Encoding: chunked\r\n", chunked),
        "chunks with LF alone": _post(f"{length}X: a\nTransfer-Encoding: chunked\r\n", chunked),
        "a NUL": _post(f"{length}X: a\0b\r\n{te}", chunked),
        "1.0 with chunks": _post(length + te, chunked, version="1.0"),
        "two lengths": _post(f"Content-Length: 5\r\n{length}", chunked),
        "two lengths in one": _post(f"Content-Length: 5, {size}\r\n", chunked),
        "the same length twice": _post(length * 2, chunked),
        "a length with a sign": _post("Content-Length: +5\r\n", chunked),
        "a hexadecimal length": _post("Content-Length: 0x5\r\n", chunked),
        "a length of no digits": _post("Content-Length: 5 5\r\n", chunked),
        "a negative length": _post("Content-Length: -1\r\n", chunked),
        "a length beyond 2^64": _post(f"Content-Length: {2**64 + 5}\r\n", chunked),
        "an underscore": _post(
            f"{length}Content_Length: 5\r\nTransfer_Encoding: chunked\r\n", chunked
        ),
        "only line feeds": bare + second,
        "a named length": _post(f"Connection: content-length\r\n{length}", chunked),
        "a named host": _post(f"Connection: close, host, content-length\r\n{length}", chunked),
        "a chunk that is longer": _post(te, b"1\r\nab" + chunked),
        "a chunk of LF": _post(te, b"1;a\nb\r\na\r\n" + chunked),
        "a chunk beyond 2^64": _post(te, b"1" + b"0" * 16 + b"5\r\n" + chunked),
        "a chunk with a blank": _post(te, b" 0\r\n\r\n" + second),
        "trailers with a length": _post(
            te, b"1\r\na\r\n0\r\nContent-Length: 5\r\nTransfer-Encoding : x\r\n\r\n" + second
        ),
    }


def smuggled(dice: random.Random, scale: float) -> Attack:
    """A request in another one, found only by who reads lengths and lines in his own way."""
    ways = _smuggling()
    chosen = dice.sample(sorted(ways), whole(dice, 8, 16, max(scale, 1.0)))
    is_cut = dice.random() < 0.5

    def calls() -> list[Call]:
        found = []
        for name in chosen:
            text = ways[name]
            cut = len(text) // 2 if is_cut else len(text)
            steps: list[Step] = [text[:cut], Pause(0.01), text[cut:]]
            found.append(
                Call(
                    port="proxied",
                    steps=steps,
                    answers=2,
                    may_be_cut=True,
                    leave_after_s=0.5,
                    expects=UNDERSTOOD,
                )
            )
        # whatever was smuggled, all later answers show it
        return [*found, Call(port="proxied", steps=[Pause(0.8), request("/props", method="GET")])]

    return proxied(f"smuggling: {', '.join(chosen)}"[:150], calls)


def hop_by_hop(dice: random.Random, scale: float) -> Attack:
    """Methods and fields that are about one connection."""
    number = whole(dice, 10, 100, scale)
    body = {"Content-Length": "2", "Content-Type": "application/json"}
    texts = {
        "TRACE": request("/props", method="TRACE", headers={"Max-Forwards": "0"}),
        "CONNECT": head("CONNECT", "127.0.0.1:1"),
        "CONNECT of a path": head("CONNECT", "/props"),
        "OPTIONS *": head("OPTIONS", "*"),
        "an unknown method": head("BREW", "/props"),
        "Expect": head("POST", TEXT, body | {"Expect": "100-continue"}) + b"{}",
        "another Expect": head("POST", TEXT, body | {"Expect": "200-maybe"}) + b"{}",
        "named fields": head(
            "POST",
            TEXT,
            body | {"Connection": "content-length, host, x-forwarded-for, authorization, te"},
        )
        + b"{}",
        "Upgrade to h2c": head("GET", "/props", {"Connection": "Upgrade, HTTP2-Settings"})[:-2]
        + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Proxy fields": head("GET", "/props", {"Proxy-Authorization": "Basic YTpi", "TE": "gzip"}),
        "agents of nobody": head("GET", "/props", {"X-Paddler-Agent": "é" * 2000}),
        "trailers": head("POST", TEXT, {"Transfer-Encoding": "chunked", "Trailer": "Host"})
        + b"2\r\n{}\r\n0\r\nHost: evil\r\nContent-Length: 9\r\n\r\n",
    }
    name = dice.choice(sorted(texts))

    def calls() -> list[Call]:
        one = Call(
            port="proxied",
            steps=[texts[name]],
            may_be_cut=True,
            leave_after_s=STAY_S if name == "CONNECT" else None,
        )
        return [one] * number

    return proxied(f"{number} x {name}", calls, lambda: looks(number))


def odd_paths(dice: random.Random, scale: float) -> Attack:
    """Targets that a server may understand otherwise than the balancer."""
    number = whole(dice, 10, 200, scale)
    targets = [
        f"/{TEXT}",
        f"/.{TEXT}",
        f"/x/..{TEXT}",
        f"/x/%2e%2e{TEXT}",
        "/v1/%63ompletions",
        "/v1%2fcompletions",
        f"{TEXT}/",
        f"{TEXT};a=b",
        f"{TEXT}%00",
        f"{TEXT}#a",
        f"http://127.0.0.1{TEXT}",
        f"http://evil.example/{TEXT}",
        "http:///../..",
        "http://",
        "/..%c0%af../etc/passwd",
        "/%ff%fe?%00",
        "/%",
        "/" + "../" * 2000,
        "/" + "/" * 7000,
        "/" + "%2f." * 1900,
        "/slots/999999999?action=erase",
        "/slots/999?action=save",
        "/slots/-1?action=erase",
        "\\..\\..",
        "*",
        "//evil.example/a",
        TEXT + "?" + "id_slot=1&" * 700,
    ]
    target = dice.choice(targets)
    body = b'{"prompt":"a","id_slot":%d}' % dice.choice([0, 10**8, 10**30])

    def calls() -> list[Call]:
        one = Call(port="proxied", steps=[request(target, body)], may_be_cut=True)
        return [one] * number

    return proxied(f"{number} x {target[:60]}", calls)


# --- bodies -------------------------------------------------------------------------------------


def large_bodies(dice: random.Random, scale: float) -> Attack:
    """Bodies of all that is allowed, in one piece, in chunks of one byte, or compressed."""
    size_bytes = whole(dice, 100_000, 66_000_000, scale)
    kind = dice.choice(["sized", "chunks of one byte", "large chunks", "gzip", "expected"])
    act = dice.choice(["", "", "early"])
    number = dice.choice([1, 2, 4])
    target = asking(TEXT, act) if act else TEXT
    if kind == "chunks of one byte":
        size_bytes = min(size_bytes, 400_000)

    def calls() -> list[Call]:
        steps: list[Step]
        if kind == "sized":
            steps = [head("POST", target, {"Content-Length": str(size_bytes)}), bytes(size_bytes)]
        elif kind == "gzip":
            steps = [request(target, prose(size_bytes).encode(), is_packed=True)]
        elif kind == "expected":
            fields = {"Content-Length": str(size_bytes), "Expect": "100-continue"}
            steps = [head("POST", target, fields), Await(b"100 "), bytes(size_bytes)]
        else:
            size = 1 if kind == "chunks of one byte" else 1 << 16
            one = b"%x\r\n%b\r\n" % (size, b"a" * size)
            chunks = one * (size_bytes // size) + b"0\r\n\r\n"
            steps = [head("POST", target, {"Transfer-Encoding": "chunked"}), chunks]
        return [Call(port="proxied", steps=steps, may_be_cut=True)] * number

    def honest() -> list[Call]:
        return [forwarded(size_bytes)] * number

    return proxied(f"{number} bodies, {kind}, {size_bytes} B {act}", calls, honest)


def chunks_of_one_byte(number: int, size_bytes: int) -> Attack:
    """On so many connections at once."""
    head_bytes = head("POST", TEXT, {"Transfer-Encoding": "chunked"})

    def calls() -> list[Call]:
        text = head_bytes + b"1\r\na\r\n" * size_bytes + b"0\r\n\r\n"
        return [Call(port="proxied", steps=[text])] * number

    return proxied(f"{number} x {size_bytes} chunks of one byte", calls)


def structures(dice: random.Random, scale: float) -> Attack:
    """JSON that is all structure, where the model and the user are looked for."""
    size_bytes = whole(dice, 200_000, 48_000_000, scale)
    port: Port = dice.choice(["proxied", "deployments"])
    field = dice.choice(["user", "model"])
    is_packed = dice.random() < 0.3
    is_last = dice.random() < 0.5
    name, made = structure_of(dice, size_bytes)

    def calls() -> list[Call]:
        parts = [b'"prompt":' + made, b'"%b":"a","model":"attacked"' % field.encode()]
        body = b"{" + b",".join(parts if is_last else parts[::-1]) + b"}"
        steps: list[Step] = [request(TEXT, body, is_packed=is_packed)]
        return [Call(port=port, steps=steps, may_be_cut=True)]

    def honest() -> list[Call]:
        return [forwarded(calls()[0].size_bytes, port=port)]

    form = " gzip" if is_packed else ""
    return proxied(f"{name} and a {field}, {size_bytes >> 10} KiB{form}, {port}", calls, honest)


def unfinished_bodies(dice: random.Random, scale: float) -> Attack:
    """Bodies and heads that never end, on many connections."""
    number = whole(dice, 10, 150, scale)
    size_bytes = whole(dice, 1000, 20_000_000, scale)
    port: Port = dice.choice(["proxied", "proxied", "deployments"])
    kind = dice.choice(["body", "chunks", "head", "drip"])

    def calls() -> list[Call]:
        body = bytes(size_bytes)  # the same for all: the attacker needs no memory for them
        steps: list[Step]
        if kind == "head":
            steps = [head("POST", TEXT, {"X-Long": "a" * 8000})[:-2]]
        elif kind == "chunks":
            steps = [head("POST", TEXT, {"Transfer-Encoding": "chunked"})]
            steps += [b"%x\r\n" % (size_bytes + 1), body]
        else:
            steps = [head("POST", TEXT, {"Content-Length": str(size_bytes + 40)})]
            steps += [body] if kind == "body" else [b"  ", Pause(0.05)] * 18
        leave = Call(port=port, steps=steps, leave_after_s=stay_s(scale), may_be_cut=True)
        return [leave] * number

    name = f"{number} x {size_bytes} B unfinished, {kind}, {port}"
    return proxied(name, calls, lambda: [forwarded(60_000, port=port)])


# --- connections --------------------------------------------------------------------------------


def slow_readers(dice: random.Random, scale: float) -> Attack:
    """Large answers that are not read, or in small pieces."""
    number = whole(dice, 4, 80, scale)
    is_in_slots = dice.random() < 0.3
    number = min(number, MOST_IN_SLOTS) if is_in_slots else number
    act = dice.choice(["sized", "events", "endless", "small"])
    size = 1_000_000 if act in ("events", "small") else 300_000_000
    pause_s = dice.choice([float("inf"), 0.05])
    target = asking(TEXT if is_in_slots else "/page", act, 1000 if act == "endless" else size)

    def calls() -> list[Call]:
        slow = Call(
            port="proxied",
            steps=[request(target, {} if is_in_slots else None)],
            leave_after_s=2 * stay_s(scale),
            read_pause_s=pause_s,
        )
        return [slow] * number

    def honest() -> list[Call]:
        return looks(number, asking("/page", "sized", 1_000_000))

    name = f"{number} slow readers of {act}{', in slots' if is_in_slots else ''}, {pause_s} s"
    return proxied(name, calls, honest)


def half_closing(dice: random.Random, scale: float) -> Attack:
    """Clients that close their half at once, in the head, in the body, or behind it."""
    text = request(TEXT, ask(TEXT, prose(whole(dice, 16, 100_000, scale))))
    cut = dice.choice([len(text), len(text) - 1, len(text) // 2, 20, 0])
    number = whole(dice, 10, 100, scale)

    def calls() -> list[Call]:
        steps: list[Step] = [text[:cut], HalfClose()]
        return [Call(port="proxied", steps=steps, may_be_cut=True)] * number

    return proxied(f"{number} half-closed after {cut} B", calls)


def in_one_write(dice: random.Random, scale: float) -> Attack:
    """Very many requests in one write, of one kind or in turns."""
    number = whole(dice, 100, 2000, scale)
    some = [
        request("/health", method="GET"),
        request("/props", method="GET"),
        request("/nothing", method="GET"),
        request(TEXT, ask(TEXT)),
        head("POST", TEXT, {"Transfer-Encoding": "chunked"}) + b"2\r\n{}\r\n0\r\n\r\n",
    ]
    chosen = dice.sample(some, dice.choice([1, 1, 3]))

    def calls() -> list[Call]:
        texts = (chosen * number)[:number]
        return [Call(port="proxied", steps=[b"".join(texts)], answers=number, may_be_cut=True)]

    def honest() -> list[Call]:
        return [Call(port="proxied", steps=[text]) for text in (chosen * number)[:number]]

    return proxied(f"{number} in one write, {len(chosen)} kinds", calls, honest)


def held_beside(dice: random.Random, scale: float) -> Attack:
    """Requests that take no slot and are held open: with the server, before it, abandoned."""
    number = whole(dice, 30, 300, scale)
    path = dice.choice(["/props", "/slots/1", "/nothing", "/v1/models", "/health", "/%2e"])
    target = asking(path, "silence", more=dice.choice(["", "&model=attacked"]))
    method = dice.choice(["GET", "POST", "PUT"])

    def calls() -> list[Call]:
        held = Call(
            port="proxied",
            steps=[request(target, method=method)],
            leave_after_s=stay_s(scale),
            may_be_cut=True,
        )
        return [held] * number

    return proxied(f"{number} x {method} {target}, held", calls, lambda: looks(number))


def abandoned_requests(dice: random.Random, scale: float) -> Attack:
    """Many requests for slots, streamed or not, whose clients leave at once or soon."""
    number = whole(dice, 20, 400, scale)
    leave_after_s = dice.choice([0.0, 0.02, 0.2])
    body = ask(CHAT) | {"stream": True, "max_tokens": 1000}
    act = dice.choice(["", "silence", "endless"])
    text = request(asking(CHAT, act, 100) if act else CHAT, body)

    def calls() -> list[Call]:
        left = Call(port="proxied", steps=[text], leave_after_s=leave_after_s, may_be_cut=True)
        return [left] * number

    def honest() -> list[Call]:
        short = request(CHAT, body | {"max_tokens": 20})
        return [Call(port="proxied", steps=[short])] * number

    name = f"{number} {act or 'streams'}, left after {leave_after_s:g} s"
    return proxied(name, calls, honest)


def left_at_once(number: int) -> Attack:
    """Requests for slots whose clients leave before a tunnel was dialled for them."""
    text = request(CHAT, ask(CHAT) | {"stream": True})

    def calls() -> list[Call]:
        return [Call(port="proxied", steps=[text], leave_after_s=0.0, may_be_cut=True)] * number

    return proxied(f"{number} requests for slots, left at once", calls)


def sleepers(dice: random.Random, scale: float) -> Attack:
    """WebSockets of one address in more slots than there are, which say nothing but pings, while
    somebody from elsewhere has something to ask."""
    number = SLOTS * 2 + whole(dice, 1, 10, scale)
    steps: list[Step] = [websocket(asking("/v1/realtime", "echo"), [])[0]]
    steps += [Pause(1.0), frame(b"", opcode=9)] * 5

    def calls() -> list[Call]:
        held = Call(
            port="proxied",
            source=CROWD,
            steps=steps,
            answers=0,
            leave_after_s=1.0,
            may_be_cut=True,
            may_fail=True,
        )
        short = request(CHAT, ask(CHAT))
        newcomer = Call(port="proxied", source=NEWCOMER, steps=[Pause(1.0), short])
        return [*([held] * number), attrs.evolve(newcomer, expects=frozenset({200}))]

    def honest() -> list[Call]:
        return [forwarded(call.size_bytes) for call in calls()[:8]]

    return proxied(f"{number} sleeping WebSockets in slots", calls, honest)


def held_websockets(dice: random.Random, scale: float) -> Attack:
    """WebSockets that are held, refused, abandoned, flooded, or never switched."""
    number = whole(dice, 4, 60, scale)
    act = dice.choice(["echo", "deaf", "talk", "refuse", "silence", "early", "garbage"])
    path = dice.choice(["/ws", "/ws", "/v1/realtime"])
    number = min(number, MOST_IN_SLOTS) if path != "/ws" else number
    frames = [frame(b"a" * 5) * whole(dice, 10, 2000, scale), bytes(whole(dice, 10, 10**7, scale))]
    first, _, *rest = websocket(asking(path, act), frames[: dice.choice([0, 1, 2])])
    waits: list[Step] = [Await(b"\r\n\r\n")] if act in ("echo", "deaf", "talk") else []

    def calls() -> list[Call]:
        held = Call(
            port="proxied",
            steps=[first, *waits, *rest],
            answers=0,
            leave_after_s=stay_s(scale),
            may_be_cut=True,
            may_fail=True,
        )
        return [held] * number

    def honest() -> list[Call]:
        return [forwarded(call.size_bytes) for call in calls()[:8]]

    return proxied(f"{number} WebSockets {path}, {act}, {len(rest)} writes", calls, honest)
