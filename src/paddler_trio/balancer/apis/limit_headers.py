"""The names under which the official clients' users look for the limits of their key.

OpenAI      x-ratelimit-{limit,remaining,reset}-{requests,tokens}, resets such as 1m30s
Anthropic   anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}, resets in RFC 3339

Of the budgets of tokens, of the day and of the month, they name the one of which less is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from paddler_trio.net.server.asgi import Header
from paddler_trio.scheduler.limits.key_usage import Left
from paddler_trio.wire.scalars import rfc3339

ANTHROPIC: Final = "/v1/messages"
_NAMES: Final = {
    "requests_per_minute": "requests",
    "tokens_per_day": "tokens",
    "tokens_per_month": "tokens",
}
LIMIT_HEADERS: Final = (
    b"ratelimit",
    b"ratelimit-policy",
    *(
        f"x-ratelimit-{part}-{name}".encode()
        for part in ("limit", "remaining", "reset")
        for name in dict.fromkeys(_NAMES.values())
    ),
    *(
        f"anthropic-ratelimit-{name}-{part}".encode()
        for part in ("limit", "remaining", "reset")
        for name in dict.fromkeys(_NAMES.values())
    ),
)
"""All that pages of other origins may read."""


def api_limit_headers(path: str, left: Sequence[Left], unix_s: float) -> list[Header]:
    """Return those of the API that ``path`` belongs to."""
    is_anthropic = path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")
    pairs = _anthropic(left, unix_s) if is_anthropic else _openai(left)
    return [(name.encode(), value.encode()) for name, value in pairs]


def _openai(left: Sequence[Left]) -> Iterator[tuple[str, str]]:
    for name, each, reset_s in _named(left):
        yield f"x-ratelimit-limit-{name}", str(each.allowed)
        yield f"x-ratelimit-remaining-{name}", str(each.left)
        yield f"x-ratelimit-reset-{name}", _duration(reset_s)


def _anthropic(left: Sequence[Left], unix_s: float) -> Iterator[tuple[str, str]]:
    now = datetime.fromtimestamp(unix_s, UTC)
    for name, each, reset_s in _named(left):
        reset = rfc3339(now + timedelta(seconds=reset_s))
        yield f"anthropic-ratelimit-{name}-limit", str(each.allowed)
        yield f"anthropic-ratelimit-{name}-remaining", str(each.left)
        yield f"anthropic-ratelimit-{name}-reset", reset


def _named(left: Sequence[Left]) -> Iterator[tuple[str, Left, int]]:
    """Yield one limit for each name: of several the one of which least is left."""
    for name in dict.fromkeys(_NAMES.values()):
        of_name = [each for each in left if _NAMES.get(each.limit) == name]
        if of_name:
            least = min(of_name, key=lambda each: each.left)
            if least.reset_s is not None:
                yield name, least, least.reset_s


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
