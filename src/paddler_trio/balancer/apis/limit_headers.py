"""The names under which the official clients' users look for the limits of their key.

OpenAI      x-ratelimit-{limit,remaining,reset}-{requests,tokens}, resets such as 1m30s
Anthropic   anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}, resets in RFC 3339
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from paddler_trio.net.server.asgi import Header
from paddler_trio.scheduler.limits.key_usage import Left
from paddler_trio.wire.scalars import rfc3339

ANTHROPIC: Final = "/v1/messages"
_NAMES: Final = {"requests_per_minute": "requests", "tokens_per_day": "tokens"}
LIMIT_HEADERS: Final = (
    b"ratelimit",
    b"ratelimit-policy",
    *(
        f"x-ratelimit-{part}-{name}".encode()
        for part in ("limit", "remaining", "reset")
        for name in _NAMES.values()
    ),
    *(
        f"anthropic-ratelimit-{name}-{part}".encode()
        for part in ("limit", "remaining", "reset")
        for name in _NAMES.values()
    ),
)
"""All that pages of other origins may read."""


def api_limit_headers(path: str, left: Sequence[Left], unix_s: float) -> list[Header]:
    """Return those of the API that ``path`` belongs to."""
    is_anthropic = path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")
    pairs = _anthropic(left, unix_s) if is_anthropic else _openai(left)
    return [(name.encode(), value.encode()) for name, value in pairs]


def _openai(left: Sequence[Left]) -> Iterator[tuple[str, str]]:
    for each in left:
        name = _NAMES.get(each.limit)
        if name is not None and each.reset_s is not None:
            yield f"x-ratelimit-limit-{name}", str(each.allowed)
            yield f"x-ratelimit-remaining-{name}", str(each.left)
            yield f"x-ratelimit-reset-{name}", _duration(each.reset_s)


def _anthropic(left: Sequence[Left], unix_s: float) -> Iterator[tuple[str, str]]:
    now = datetime.fromtimestamp(unix_s, UTC)
    for each in left:
        name = _NAMES.get(each.limit)
        if name is not None and each.reset_s is not None:
            reset = rfc3339(now + timedelta(seconds=each.reset_s))
            yield f"anthropic-ratelimit-{name}-limit", str(each.allowed)
            yield f"anthropic-ratelimit-{name}-remaining", str(each.left)
            yield f"anthropic-ratelimit-{name}-reset", reset


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
