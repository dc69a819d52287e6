"""Hostile use of HTTP: slow, half-closed, pipelined, unfinished, abandoned, and from evil hosts."""

from __future__ import annotations

import random

from attack_call import (
    CROWD,
    NEWCOMER,
    AwaitAnswers,
    Call,
    HalfClose,
    Pause,
    Port,
    Step,
    dumps,
    head,
    request,
)
from attack_value import ABANDON_S, SURFACES, Attack, ask, attack_of, honest_call, prose, whole

CHAT = "/v1/chat/completions"


def slow_heads(dice: random.Random, scale: float) -> Attack:
    """Heads that come letter by letter, on many connections."""
    number = whole(dice, 20, 300, scale)
    text = head("POST", CHAT, {"X-Slow": "a" * 40})[:-4]
    pause_s = 0.1 * min(1.0, 10 * scale)

    def calls() -> list[Call]:
        steps: list[Step] = []
        for place in range(0, len(text), 8):
            steps += [text[place : place + 8], Pause(pause_s)]
        return [Call(steps=steps, may_be_cut=True, leave_after_s=1.0) for _ in range(number)]

    return attack_of(f"{number} slow heads", calls, CHAT)


def slow_bodies(dice: random.Random, scale: float) -> Attack:
    """Bodies that come piece by piece, in chunks of one byte or without an end."""
    number = whole(dice, 10, 200, scale)
    is_chunked = dice.random() < 0.5
    pause_s = 0.1 * min(1.0, 10 * scale)

    def calls() -> list[Call]:
        framing = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": "1000"}
        steps: list[Step] = [head("POST", CHAT, framing | {"Content-Type": "application/json"})]
        for _ in range(20):
            steps += [b"1\r\n \r\n" if is_chunked else b"  ", Pause(pause_s)]
        return [Call(steps=steps, may_be_cut=True, leave_after_s=0.5) for _ in range(number)]

    return attack_of(f"{number} slow bodies{', chunked' if is_chunked else ''}", calls, CHAT)


def small_chunks(dice: random.Random, scale: float) -> Attack:
    """One body in hundreds of thousands of chunks of one byte, with extensions and trailers."""
    number = whole(dice, 10_000, 300_000, scale)
    extension = b";a=" + b"b" * dice.choice([0, 20])
    path = dice.choice(list(SURFACES))

    def calls() -> list[Call]:
        text = dumps(ask(path)).rstrip(b"}") + b" " * number + b"}"
        chunks = b"".join(b"1%b\r\n%c\r\n" % (extension, byte) for byte in text) + b"0\r\n\r\n"
        framing = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
        return [Call(steps=[head("POST", path, framing) + chunks])]

    return attack_of(f"{path} {number} chunks", calls, path)


def unfinished(dice: random.Random, scale: float) -> Attack:
    """Large bodies, all but their last byte, on many connections at once, which then wait."""
    number = whole(dice, 10, 60, scale)
    size_bytes = whole(dice, 1_000_000, 20_000_000, min(scale, 1.0))
    paths = [CHAT, "/api/v2/generate", "/completion", "/v1/embeddings", "/tokenize"]
    return unfinished_of(number, size_bytes, dice.choice(paths))


def unfinished_of(number: int, size_bytes: int, path: str) -> Attack:
    def calls() -> list[Call]:
        body = bytes(size_bytes)  # the same bytes for all: the attacker needs no memory for them
        framing = {"Content-Type": "application/json", "Content-Length": str(size_bytes + 1)}
        steps: list[Step] = [head("POST", path, framing), body]
        # refused is as good as held
        return [Call(steps=steps, leave_after_s=1.0, may_be_cut=True) for _ in range(number)]

    def honest() -> list[Call]:
        return [honest_call(CHAT, 60_000)]  # more of them would be the attack

    name = f"{path} {number} x {size_bytes / 1e6:.1f} MB unfinished"
    return Attack(name=name, calls=calls, honest=honest)


def half_closed(dice: random.Random, scale: float) -> Attack:
    """Requests whose sender closes its half at once, in the head, in the body, or after it."""
    path = dice.choice(list(SURFACES))
    text = request(path, ask(path, prose(whole(dice, 16, 50_000, scale))))
    cut = dice.choice([len(text), len(text) - 1, len(text) // 2, 20, 0])
    number = whole(dice, 10, 100, scale)

    def calls() -> list[Call]:
        steps: list[Step] = [text[:cut], HalfClose()]
        return [Call(steps=steps, may_be_cut=True) for _ in range(number)]

    return attack_of(f"{path} {number} half-closed after {cut} B", calls, path)


def pipelined(dice: random.Random, scale: float) -> Attack:
    """Very many requests in one write; all have to be answered, or the connection ends."""
    number = whole(dice, 100, 3000, scale)
    path = dice.choice(["/health", "/nothing", "/v1/models", "/tokenize"])
    body = {"content": "a"} if path == "/tokenize" else None

    def calls() -> list[Call]:
        one = request(path, body, method="GET" if body is None else "POST")
        return [Call(steps=[one * number], answers=number, may_be_cut=True)]

    def honest() -> list[Call]:
        one = request(path, body, method="GET" if body is None else "POST")
        return [Call(steps=[one]) for _ in range(number)]

    return Attack(name=f"{number} x {path} in one write", calls=calls, honest=honest)


def kept(dice: random.Random, scale: float) -> Attack:
    """An honest pooled client: each request in one write, after the answer before it or ahead.

    Nothing here may be cut: what is sent ahead has to wait, however long it is.
    """
    number = whole(dice, 3, 20, scale)
    size_bytes = whole(dice, 1000, 1_500_000, scale)
    path = dice.choice(["/tokenize", CHAT, "/completion"])
    is_ahead = dice.random() < 0.3

    def calls() -> list[Call]:
        one = request(path, ask(path, prose(size_bytes)))
        steps: list[Step] = []
        for place in range(number):
            steps += [one] if is_ahead else [AwaitAnswers(place), one]
        return [Call(steps=steps, answers=number)]

    def honest() -> list[Call]:
        one = request(path, ask(path, prose(size_bytes)))
        return [Call(steps=[one]) for _ in range(number)]

    return Attack(
        name=f"{path} {number} kept requests of {size_bytes} B{', ahead' if is_ahead else ''}",
        calls=calls,
        honest=honest,
    )


def abandoned(dice: random.Random, scale: float) -> Attack:
    """Ordinary long answers on every surface, streamed or not, whose clients leave early."""
    number = whole(dice, 10, 60, scale)
    leave_after_s = dice.choice([0.0, 0.05, ABANDON_S])
    paths = [dice.choice(list(SURFACES)) for _ in range(number)]
    streams = [dice.random() < 0.5 for _ in range(number)]

    def calls() -> list[Call]:
        return [
            Call(steps=[request(path, _long(path, is_stream))], leave_after_s=leave_after_s)
            for path, is_stream in zip(paths, streams, strict=True)
        ]

    def honest() -> list[Call]:
        return [Call(steps=[request(path, ask(path))]) for path in paths]

    return Attack(
        name=f"{number} long answers, left after {leave_after_s:g} s", calls=calls, honest=honest
    )


def _long(path: str, is_stream: bool) -> dict[str, object]:
    body = ask(path)
    for name in ("max_tokens", "n_predict", "max_output_tokens"):
        if name in body:
            body[name] = 3000
    if is_stream and path.startswith(("/v1/", "/completion")):
        body["stream"] = True
    return body


def heavy_streams(dice: random.Random, scale: float) -> Attack:
    """Long answers with twenty alternatives for each token, left after two seconds."""
    number = whole(dice, 4, 20, scale)

    def calls() -> list[Call]:
        body = _long(CHAT, is_stream=True) | {"logprobs": True, "top_logprobs": 20}
        return [Call(steps=[request(CHAT, body)], leave_after_s=2.0) for _ in range(number)]

    def honest() -> list[Call]:
        body = _long(CHAT, is_stream=True)
        return [Call(steps=[request(CHAT, body)], leave_after_s=2.0) for _ in range(number)]

    return Attack(name=f"{number} streams with alternatives, left", calls=calls, honest=honest)


def connections(dice: random.Random, scale: float) -> Attack:
    """Connections that say nothing, or rubbish, on every port."""
    number = whole(dice, 100, 1500, scale)
    text = dice.choice([b"", b"\r\n", b"\x16\x03\x01\x02\x00\x01", dice.randbytes(200), b"GET "])
    port: Port = dice.choice(["inference", "management"])

    def calls() -> list[Call]:
        return [
            Call(port=port, steps=[text], leave_after_s=0.5, may_be_cut=True) for _ in range(number)
        ]

    def honest() -> list[Call]:
        one = request("/health", method="GET")
        return [Call(port="inference", steps=[one]) for _ in range(number)]

    return Attack(
        name=f"{number} connections of {text[:8]!r} to {port}", calls=calls, honest=honest
    )


def crowds(dice: random.Random, scale: float) -> Attack:
    """More connections of one address than a port takes, while somebody comes from elsewhere."""
    number = whole(dice, 4000, 4800, scale)
    port: Port = dice.choice(["inference", "management"])
    health = request("/health", method="GET")

    def calls() -> list[Call]:
        held = Call(
            port=port, source=CROWD, steps=[], answers=0, leave_after_s=4.0, may_be_cut=True
        )
        newcomer = Call(port=port, source=NEWCOMER, steps=[Pause(2.0), health])
        return [*([held] * number), newcomer]

    def honest() -> list[Call]:
        return [Call(port=port, steps=[health]) for _ in range(number)]

    return Attack(name=f"{number} connections of one address to {port}", calls=calls, honest=honest)


def before_keys(dice: random.Random, scale: float) -> Attack:
    """What is looked at before it is known who asks: long targets, very many keys."""
    number = whole(dice, 10, 60, scale)
    kind = dice.choice(["slashes", "keys", "long key", "percent", "query"])
    if kind == "slashes":
        text = head("GET", "/" * 15_000)
    elif kind == "keys":
        lines = "".join(f"Authorization: Bearer wrong{n}\r\n" for n in range(95))
        text = head("GET", "/v1/models")[:-2] + lines.encode() + b"\r\n"
    elif kind == "long key":
        text = head("GET", "/v1/models", {"Authorization": "Bearer " + "k" * 15_000})
    elif kind == "percent":
        text = head("GET", "/" + "%2f" * 5000)
    else:
        text = head("GET", "/v1/models?" + "a=b&" * 3700)
    port: Port = dice.choice(["guarded", "guarded", "management", "inference"])

    def calls() -> list[Call]:
        return [Call(port=port, steps=[text], may_be_cut=True) for _ in range(number)]

    def honest() -> list[Call]:
        plain = head("GET", "/v1/models", {"X-Long": "a" * (len(text) // 2)})
        return [Call(port=port, steps=[plain]) for _ in range(number)]

    return Attack(name=f"{number} x {kind} on {port}", calls=calls, honest=honest)
