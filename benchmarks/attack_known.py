"""Attacks that did harm once, each as it was found; a run begins with them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping, Sequence

from attack_call import AwaitAnswers, Call, Step, frame, head, request, websocket
from attack_connections import CHAT, unfinished_of
from attack_generation import MAX_INT32
from attack_grammars import bound, counted_of, literal_of, negated_of, rules_of, sets_of
from attack_links import lying, on_inference_socket
from attack_operators import EMPTY_STATE, STATE, put, refused, serving
from attack_pictures import PATHS, data_uri, honest_picture, showing, webp_of
from attack_proxied import chunks_of_one_byte, left_at_once
from attack_value import ABANDON_S, Attack, Body, Generator, ask, attack, attack_of, prose


def _at(path: str, name: str, body: object, **how: bool) -> Generator:
    return lambda dice, scale: attack(name, path, body, **how)


def _left(name: str, path: str, copies: int, body: Body) -> Generator:
    """Copies of a request at once, all abandoned."""

    def calls() -> list[Call]:
        return [Call(steps=[request(path, body)], leave_after_s=ABANDON_S) for _ in range(copies)]

    return lambda dice, scale: attack_of(f"{path} {copies} x {name}, left", calls, path)


def _image(name: str, content: bytes, mime: str, copies: int = 1) -> Generator:
    def make(dice: random.Random, scale: float) -> Attack:
        path = PATHS[0]

        def calls() -> list[Call]:
            return [Call(steps=[request(path, showing(path, [data_uri(content, mime)] * copies))])]

        def honest() -> list[Call]:
            uri = data_uri(honest_picture(len(content)), "image/png")
            return [Call(steps=[request(path, showing(path, [uri] * copies))])]

        return Attack(
            name=f"{path} {name} x {copies}, {len(content)} B", calls=calls, honest=honest
        )

    return make


def _svg(inner: str) -> bytes:
    text = f'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64">{inner}</svg>'
    return text.encode()


_BOX = '<rect width="64" height="64"/>'


def _groups(style: str, depth: int) -> bytes:
    return _svg(f"<g{style}>" * depth + _BOX + "</g>" * depth)


def _filtered(primitive: str) -> bytes:
    return _svg(f'<filter id="f">{primitive}</filter><g filter="url(#f)">{_BOX}</g>')


def _png(side: int) -> bytes:
    """Three channels, all black, 200 KB for 8192 x 8192."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    squeeze = zlib.compressobj(1)
    rows = bytes((1 + 3 * side) * 64)
    data = b"".join(squeeze.compress(rows) for _ in range(side // 64)) + squeeze.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _filled(before: bytes, unit: bytes, size_bytes: int, after: bytes) -> bytes:
    return before + b"[" + unit * (size_bytes // len(unit)) + unit.rstrip(b",") + b"]" + after


_MERGED = {
    "allOf": [
        {"anyOf": [{"properties": {f"p{a}_{b}": {"const": b}}} for b in range(12)]}
        for a in range(8)
    ]
}
_MESSAGE = {"role": "user", "content": "a"}
_MANY = 32_000_000
_ALTERNATIVES = " | ".join(f'"alternative {n}"' for n in range(10_000))
_GBNF = {"type": "gbnf", "grammar": f"root ::= {_ALTERNATIVES}", "root": "root"}
_BIASES = [[f"text {n}", 0.5] for n in range(60_000)]
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": _MERGED}}


def _lies(dice: random.Random, scale: float) -> Attack:
    return lying("2^31 slots", {"slots_total": MAX_INT32, "desired_slots_total": MAX_INT32})


def _agent_frame(dice: random.Random, scale: float) -> Attack:
    body = _filled(b'{"Trio":{"Step":', b"{},", 48_000_000, b"}}")
    return lying("a frame of 48 MB", {}, [frame(body)])


def _agent_name(dice: random.Random, scale: float) -> Attack:
    return lying("a name of 20 MB", {}, name="n" * 20_000_000)


def _client_frame(dice: random.Random, scale: float) -> Attack:
    def frames() -> list[bytes]:
        return [frame(_filled(b'{"x":', b"[],", 48_000_000, b"}"))]

    return on_inference_socket("48 MB of []", frames, 48_000_000, leaves_s=1.0)


def _nul_path(dice: random.Random, scale: float) -> Attack:
    return put("a model path with a NUL", EMPTY_STATE | {"model": {"LocalToAgent": "/m\0.gguf"}})


def _nul_projection(dice: random.Random, scale: float) -> Attack:
    changes = {"multimodal_projection": {"LocalToAgent": "/m\0.gguf"}}
    return put("a projection path with a NUL", EMPTY_STATE | changes)


def _parameter(name: str, value: int) -> Generator:
    body = serving(**{name: value})
    return lambda dice, scale: put(f"{name} {value}", body, then_asks=True)


def _before_keys(name: str, text: bytes) -> Generator:
    """Fifty at once, to be seen at all."""

    def make(dice: random.Random, scale: float) -> Attack:
        plain = head("GET", "/v1/models", {"X-Long": "a" * (len(text) // 2)})
        return Attack(
            name=f"50 x {name}",
            calls=lambda: [Call(port="guarded", steps=[text], may_be_cut=True)] * 50,
            honest=lambda: [Call(port="guarded", steps=[plain])] * 50,
        )

    return make


def _rebound(dice: random.Random, scale: float) -> Attack:
    text = request(STATE, EMPTY_STATE, method="PUT", host="evil.example")
    return refused("a desired state from evil.example", [text])


def _rebound_socket(dice: random.Random, scale: float) -> Attack:
    upgrade = websocket("/api/v1/agent_socket/page", ())[0]
    assert isinstance(upgrade, bytes)
    evil = upgrade.replace(b"Host: 127.0.0.1", b"Host: evil.example\r\nOrigin: http://evil.example")
    return refused("the agent socket from evil.example", [evil])


def _drain(dice: random.Random, scale: float) -> Attack:
    headers = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    text = head("POST", "/api/v2/agents/a1/drain", headers | {"Content-Length": "0"})
    return refused("a drain from a foreign page", [text])


def _kept(path: str, size_bytes: int) -> Generator:
    """Requests on one connection, each in one write as soon as the answer before it is there."""

    def make(dice: random.Random, scale: float) -> Attack:
        one = request(path, ask(path, prose(size_bytes)))
        steps: list[Step] = []
        for place in range(40):
            steps += [AwaitAnswers(place), one]
        return Attack(
            name=f"{path} 40 kept requests of {size_bytes} B",
            calls=lambda: [Call(steps=steps, answers=40)],
            honest=lambda: [Call(steps=[one])] * 40,
        )

    return make


_OPERATED = ask("/api/v1/continue_from_conversation_history")

KNOWN: Mapping[str, Sequence[Generator]] = {
    "sampling": (
        _at(
            "/completion",
            "a window of 2^31 - 1",
            ask("/completion", "a", repeat_last_n=MAX_INT32, repeat_penalty=1.1),
        ),
        _at(
            CHAT,
            "a DRY window of 2^31 - 1",
            ask(CHAT, "a", dry_penalty_last_n=MAX_INT32, dry_multiplier=1.0),
        ),
    ),
    "drawings": (
        _image("svg of 300 groups", _groups("", 300), "image/svg+xml"),
        _image("svg of 300 clear groups", _groups(' opacity=".9"', 300), "image/svg+xml"),
        _image("svg of 30,000 groups", _groups("", 30_000), "image/svg+xml"),
        _image(
            "svg with 1e8 octaves",
            _filtered('<feTurbulence baseFrequency=".1" numOctaves="100000000"/>'),
            "image/svg+xml",
        ),
        _image(
            "svg with 20,000 rules",
            _svg(
                "<style>"
                + "".join(f".c{n} g rect:first-child{{fill:red}}" for n in range(20_000))
                + f"</style>{_BOX * 200}"
            ),
            "image/svg+xml",
        ),
        _image(
            "svg with rasters",
            _svg(f'<image width="9" height="9" href="{data_uri(_png(4096), "image/png")}"/>' * 20),
            "image/svg+xml",
        ),
        _image(
            "svg with blur",
            _filtered('<feGaussianBlur stdDeviation="1000"/>' * 500),
            "image/svg+xml",
        ),
    ),
    "inflated": (
        _at(
            "/completion",
            "16 M token ids",
            _filled(b'{"n_predict":4,"prompt":', b"1,", _MANY, b"}"),
            is_packed=True,
        ),
        _at(CHAT, "11 M objects", _filled(b'{"messages":', b"{},", _MANY, b"}"), is_packed=True),
        _at(
            CHAT,
            "an unknown field of 11 M []",
            _filled(b'{"messages":[{"role":"user","content":"a"}],"x":', b"[],", _MANY, b"}"),
            is_packed=True,
        ),
    ),
    "sockets": (_client_frame,),
    "constraints": (
        _at(CHAT, "allOf 8 x anyOf 12", ask(CHAT, response_format=_SCHEMA), leaves=True),
        _at(
            "/completion",
            "10,000 alternatives",
            ask("/completion", grammar=f"root ::= {_ALTERNATIVES}"),
            leaves=True,
        ),
    ),
    "grammars": tuple(
        _at("/completion", name, bound("/completion", "gbnf", grammar))
        for name, grammar in (
            ("200,000 characters", literal_of(200_000)),
            ("500 negated sets of 400 characters", negated_of(500, 400)),
            ("2000 sets of 100 ranges", sets_of(2000, 100)),
            ("100 x {0,2000}", counted_of(100, 2000)),
            ("10,000 rules", rules_of(10_000)),
        )
    ),
    "growing": (
        _at(
            CHAT,
            "1e15 x 5 M",
            _filled(
                b'{"messages":[{"role":"user","content":"a"}],"documents":[{"a":',
                b"1e15,",
                28_000_000,
                b"}]}",
            ),
            is_packed=True,
        ),
    ),
    "preparation": (
        _left(
            "60,000 texts of logit_bias",
            "/completion",
            4,
            ask("/completion", logit_bias=_BIASES),
        ),
        _left(
            "60,000 texts of logit_bias",
            "/api/v2/generate",
            4,
            ask(
                "/api/v2/generate",
                sampling={"logit_bias": [{"text": text, "bias": bias} for text, bias in _BIASES]},
            ),
        ),
        _left("8 MB of text", CHAT, 4, ask(CHAT, prose(8_000_000))),
        _left(
            "a grammar of 10,000 alternatives",
            "/completion",
            4,
            ask("/completion", grammar=f"root ::= {_ALTERNATIVES}"),
        ),
        _left(
            "a grammar of 10,000 alternatives",
            "/api/v2/generate",
            4,
            ask("/api/v2/generate", constraint=_GBNF),
        ),
        _left(
            "60,000 messages",
            "/api/v1/continue_from_conversation_history",
            4,
            _OPERATED | {"conversation_history": [_MESSAGE] * 60_000},
        ),
        _left(
            "100,000 messages",
            "/api/v2/generate",
            4,
            {"prompt": {"Conversation": {"messages": [_MESSAGE] * 100_000}}, "max_tokens": 8},
        ),
    ),
    "paths": (_nul_path, _nul_projection),
    "unfinished": (lambda dice, scale: unfinished_of(60, 20_000_000, CHAT),),
    "hosts": (_rebound, _rebound_socket),
    "origins": (_drain,),
    "pictures": (
        _image("png 8192 x 8192", _png(8192), "image/png"),
        _image("webp 8192 x 8192", webp_of(8192)[1], "image/webp", 32),
        _image("png 4096 x 4096", _png(4096), "image/png", 32),
    ),
    "tokens": (
        _left(
            "200,000 tokens with pieces",
            "/tokenize",
            1,
            {"content": "a b" * 200_000, "with_pieces": True},
        ),
    ),
    "agents": (_lies, _agent_frame, _agent_name),
    "states": (_parameter("penalty_last_n", MAX_INT32), _parameter("context_size", 2**31)),
    "before-keys": (
        _before_keys("15,000 slashes", head("GET", "/" * 15_000)),
        _before_keys(
            "95 keys",
            head("GET", "/v1/models")[:-2]
            + b"".join(b"Authorization: Bearer k%d\r\n" % n for n in range(95))
            + b"\r\n",
        ),
    ),
    "kept": (_kept("/tokenize", 100_000), _kept(CHAT, 500_000)),
    "proxied": (
        lambda dice, scale: left_at_once(100),
        lambda dice, scale: chunks_of_one_byte(20, 100_000),
    ),
}
"""By kind, in the order in which a run tries them."""
