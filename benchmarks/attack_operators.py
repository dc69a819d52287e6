"""Hostile operators: states that cannot be, and web pages that play the operator."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

from attack_call import Call, Pause, head, request
from attack_fleet import CREDENTIAL
from attack_value import Attack, ask, whole

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

STATE = "/api/v1/balancer_desired_state"
EXTENDED = "/api/v2/balancer_desired_state"
APPLIED_S = 2.0
REFUSED = frozenset({400, 403, 404, 405, 413, 415, 421, 422})

EMPTY_STATE: dict[str, Any] = {
    "chat_template_override": None,
    "inference_parameters": {
        "n_batch": 2048,
        "context_size": 4096,
        "embedding_batch_size": 256,
        "enable_embeddings": False,
        "image_resize_to_fit": 1024,
        "k_cache_dtype": "Q8_0",
        "v_cache_dtype": "Q8_0",
        "min_p": 0.05,
        "n_gpu_layers": 0,
        "penalty_frequency": 0.0,
        "penalty_last_n": -1,
        "penalty_presence": 0.8,
        "penalty_repeat": 1.1,
        "pooling_type": "Last",
        "temperature": 0.8,
        "top_k": 80,
        "top_p": 0.8,
    },
    "model": "None",
    "multimodal_projection": "None",
    "use_chat_template_override": False,
}
"""An honest state with no model."""


def paths(dice: random.Random, scale: float) -> Attack:
    """Model and projection paths that no file system has: refused, and never stored."""
    path = dice.choice(["/m\x00.gguf", "\x00", "/" + "a/" * 9000, "/" + "n" * 5000, "/\udcff.gguf"])
    field = dice.choice(["model", "multimodal_projection"])
    body = EMPTY_STATE | {field: {"LocalToAgent": path}}
    return put(f"{field} path {path[:8]!r} of {len(path)}", body)


def states(dice: random.Random, scale: float) -> Attack:
    """Numbers that no machine has room for, and templates that do not end."""
    kind = dice.choice(["numbers", "template", "url", "repository", "extras"])
    if kind == "numbers":
        name = dice.choice(
            ["context_size", "n_batch", "embedding_batch_size", "penalty_last_n", "top_k"]
        )
        value = dice.choice([2**31 - 1, 2**31, 2**32 - 1, 10**30, -1])
        return put(f"{name} {value}", serving(**{name: value}), then_asks=True)
    if kind == "template":
        content = dice.choice(
            [
                "{% for a in range(10**9) %}x{% endfor %}",
                "{{ 'a' * 10**10 }}",
                "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                "{{ messages.__class__.__mro__ }}",
                "{" * whole(dice, 1000, 1_000_000, scale),
            ]
        )
        override = {"chat_template_override": {"content": content}}
        return put(
            f"template {content[:30]!r}",
            EMPTY_STATE | override | {"use_chat_template_override": True},
        )
    if kind == "url":
        url = dice.choice(
            ["http://127.0.0.1:1/a.gguf", "file:///etc/passwd", "http://" + "a" * 9000]
        )
        return put(f"url {url[:20]}", EMPTY_STATE | {"model": {"Url": {"url": url}}})
    if kind == "repository":
        place = {"filename": "../" * 99, "repo_id": "a" * 9000, "revision": "\x00"}
        return put("repository", EMPTY_STATE | {"model": {"HuggingFace": place}})
    extras = {"engine": {"lora": ["/\x00"] * whole(dice, 10, 9000, scale)}}
    body = {"state": EMPTY_STATE, "extras": extras}
    return put("extras with a NUL", body, path=EXTENDED)


def hosts(dice: random.Random, scale: float) -> Attack:
    """What a web page can do to a service on loopback whose name it rebinds: nothing."""
    evil = dice.choice(
        ["evil.example", "evil.example:8060", "127.0.0.1.evil.example", "localhost.x"]
    )
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Origin": f"http://{evil}",
    }
    texts = [
        request(STATE, method="GET", host=evil),
        request(STATE, EMPTY_STATE | {"model": "None"}, method="PUT", host=evil),
        head("GET", "/api/v1/agent_socket/page", upgrade, host=evil),
        request("/api/v1/agents", method="GET", host=evil),
    ]
    text = dice.choice(texts)
    return refused(f"Host: {evil}, {text.split(b' HTTP')[0].decode()}", [text])


def origins(dice: random.Random, scale: float) -> Attack:
    """Simple requests of a foreign page, which a browser sends without asking first."""
    headers = dice.choice(
        [
            {"Origin": "http://evil.example", "Content-Type": "text/plain"},
            {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
            {"Origin": "null", "Content-Type": "application/x-www-form-urlencoded"},
        ]
    )
    texts = [
        head("POST", "/api/v2/agents/a1/drain", headers | {"Content-Length": "0"}),
        head("DELETE", "/api/v2/agents/a1/drain", headers | {"Content-Length": "0"}),
    ]
    return refused(f"a drain with {', '.join(headers)}", [dice.choice(texts)])


def reach(dice: random.Random, scale: float) -> Attack:
    """An agent's credential asks the model store for what nobody desires: addresses of the machine,
    of its network and of its cloud, repositories, the list of all."""
    port = dice.choice([1, 22, 80, 6379, 8060, 34463, 99999])
    host = dice.choice(
        ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "[64:ff9b::a9fe:a9fe]", "2852039166"]
    )
    url = base64.urlsafe_b64encode(f"http://{host}:{port}/m.gguf".encode()).decode().rstrip("=")
    path = dice.choice(
        [
            *(f"url/{url}",) * 6,
            "hf/org/repo/resolve/main/m.gguf",
            "hf/api/models/org/repo/revision/main",
            "blobs/sha256/" + "0" * 64,
            "manifests/sha256/" + "0" * 64,
            "",
        ]
    )
    headers = {"Authorization": f"Bearer {CREDENTIAL.render()}"}
    text = head("GET", f"/api/v2/store/{path}", headers)

    def calls() -> list[Call]:
        expects = frozenset({403})
        return [Call(port="guarded_management", steps=[text], expects=expects)]

    def honest() -> list[Call]:
        return [Call(port="management", steps=[request("/api/v1/agents", method="GET")])]

    return Attack(name=f"store: {host}:{port} {path[:16]}", calls=calls, honest=honest)


def put(name: str, body: object, *, path: str = STATE, then_asks: bool = False) -> Attack:
    """A PUT that may be refused or stored; whoever is told of it has to survive it.

    ``then_asks``: somebody asks for an answer when agents had some time to apply it.
    """
    question = Call(steps=[Pause(APPLIED_S), request("/completion", ask("/completion"))])
    questions = [question] if then_asks else []

    def calls_of(state: object) -> list[Call]:
        return [Call(port="management", steps=[_put_of(path, state)]), *questions]

    return Attack(
        name=f"PUT {name}",
        calls=lambda: calls_of(body),
        honest=lambda: calls_of(serving() if path == STATE else body),
        changes_state=True,
    )


def serving(**parameters: object) -> dict[str, Any]:
    """A state with the bundled model, and these inference parameters."""
    return EMPTY_STATE | {
        "model": {"LocalToAgent": str(BUNDLED_MODEL)},
        "inference_parameters": EMPTY_STATE["inference_parameters"] | parameters,
    }


def _put_of(path: str, body: object) -> bytes:
    return request(path, json.dumps(body).encode(), method="PUT")  # lone surrogates stay escapes


def refused(name: str, texts: list[bytes]) -> Attack:
    calls = [Call(port="management", steps=[text], expects=REFUSED) for text in texts]

    def honest() -> list[Call]:
        return [Call(port="management", steps=[request("/api/v1/agents", method="GET")])]

    return Attack(name=name, calls=lambda: calls, honest=honest, changes_state=True)
