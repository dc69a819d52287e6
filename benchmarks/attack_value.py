"""What an attack is, and how honest requests of any size look on every surface."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from attack_call import Call, Port, dumps, request

Body: TypeAlias = dict[str, Any]
TOKENS = 8
"""Of an answer, where there is one: what an attack costs is not what its answer costs."""
ABANDON_S = 0.3


@attrs.frozen(kw_only=True)
class Attack:
    """Connections that are opened at once, and honest ones of the same size to compare with.

    Both are made when they are needed, because some are large. ``deadline_s``: every call has to
    be over by then. ``changes_state``: the desired state may have to be put back afterwards.
    ``neighbour``: the port on which neighbours stream beside it.
    """

    name: str
    calls: Callable[[], Sequence[Call]]
    honest: Callable[[], Sequence[Call]]
    deadline_s: float = 30.0
    changes_state: bool = False
    neighbour: Port = "inference"


Generator: TypeAlias = Callable[[random.Random, float], Attack]
"""Makes an attack of a kind by chance; sizes are multiplied by the number, 1 for the full size."""

_WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "seven",
    "ships",
    "sail",
    "slowly",
    "towards",
    "distant",
    "harbour",
    "where",
    "old",
    "friends",
    "wait",
    "with",
    "bread",
    "tea",
    "and",
    "many",
    "long",
    "stories",
)


def prose(size_bytes: int, seed: int = 1) -> str:
    """Ordinary words, so many bytes of them."""
    dice = random.Random(seed)
    few = " ".join(dice.choices(_WORDS, k=min(size_bytes // 3 + 1, 4000)))
    return (few * (size_bytes // len(few) + 1))[:size_bytes]


def _chat(content: object) -> list[Body]:
    return [{"role": "user", "content": content}]


SURFACES: Mapping[str, Callable[[str], Body]] = {
    "/completion": lambda text: {"prompt": text, "n_predict": TOKENS},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": TOKENS},
    "/v1/chat/completions": lambda text: {"messages": _chat(text), "max_tokens": TOKENS},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": TOKENS, "store": False},
    "/v1/messages": lambda text: {"messages": _chat(text), "max_tokens": TOKENS, "model": "any"},
    "/api/v2/generate": lambda text: {"prompt": {"Text": {"text": text}}, "max_tokens": TOKENS},
    "/api/v1/continue_from_raw_prompt": lambda text: {"raw_prompt": text, "max_tokens": TOKENS},
    "/api/v1/continue_from_conversation_history": lambda text: {
        "conversation_history": _chat(text),
        "add_generation_prompt": True,
        "enable_thinking": False,
        "max_tokens": TOKENS,
    },
    "/tokenize": lambda text: {"content": text},
    "/apply-template": lambda text: {"messages": _chat(text)},
    "/api/v2/tokenize": lambda text: {"text": text},
}
"""An honest body of each surface around a text."""

CONSTRAINED = ("/v1/chat/completions", "/completion", "/v1/completions", "/api/v2/generate")
SAMPLED = (*CONSTRAINED, "/v1/responses")


def ask(path: str, text: str = "Once upon a time", /, **more: object) -> Body:
    """The honest body of a surface, with more fields."""
    return {**SURFACES[path](text), **more}


def honest_call(path: str, size_bytes: int) -> Call:
    """An honest request of about this size: its body is text, to be tokenized where the surface
    takes no text."""
    path = path if path in SURFACES else "/tokenize"
    empty = len(request(path, ask(path, "")))
    return Call(steps=[request(path, ask(path, prose(max(size_bytes - empty, 16))))])


def attack(
    name: str, path: str, body: object, *, is_packed: bool = False, leaves: bool = False
) -> Attack:
    """One request, and as its yardstick one of text that is as long on the wire."""
    raw = body if isinstance(body, bytes) else dumps(body)
    call = Call(
        steps=[request(path, raw, is_packed=is_packed)],
        leave_after_s=ABANDON_S if leaves else None,
    )
    form = " gzip" if is_packed else ""
    left = ", left" if leaves else ""
    return Attack(
        name=f"{path} {name}, {_size(call.size_bytes)}{form}{left}",
        calls=lambda: [call],
        honest=lambda: [honest_call(path, call.size_bytes)],
    )


def attack_of(name: str, calls: Callable[[], Sequence[Call]], path: str, **more: Any) -> Attack:
    """Several calls, and as their yardstick as many honest requests of the same sizes."""

    def honest() -> list[Call]:
        return [honest_call(path, call.size_bytes) for call in calls()]

    return Attack(name=name, calls=calls, honest=honest, **more)


def whole(dice: random.Random, low: int, high: int, scale: float) -> int:
    """A number between them, small ones as likely as large ones, times ``scale``, at least 1."""
    chosen: float = low * (high / low) ** dice.random()
    return max(1, round(chosen * scale))


def _size(size_bytes: int) -> str:
    if size_bytes < 10_000:
        return f"{size_bytes} B"
    return f"{size_bytes / 1000:.0f} KB" if size_bytes < 10_000_000 else f"{size_bytes >> 20} MiB"


def as_text(value: object) -> str:
    """A JSON text inside a JSON text, as native grammars carry their schema."""
    return json.dumps(value, separators=(",", ":"))
