"""The header fields ``RateLimit-Policy`` and ``RateLimit``: what a key may use, and what is left.

Source: draft-ietf-httpapi-ratelimit-headers-11, two lists of structured fields (RFC 9651). The unit
of tokens is none of its registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from paddler_trio.net.server.asgi import Header
from paddler_trio.scheduler.limits.key_usage import Left

_UNIT_OF: Final = {
    "requests_per_minute": "",
    "max_concurrent": ';qu="concurrent-requests"',
    "tokens_per_day": ';qu="tokens"',
    "tokens_per_month": ';qu="tokens"',
}


def rate_limit_fields(left: Iterable[Left]) -> list[Header]:
    """Both fields; none without a limit."""
    policies, states = [], []
    for each in left:
        window = "" if each.window_s is None else f";w={each.window_s}"
        policies.append(f'"{each.limit}";q={each.allowed}{_UNIT_OF[each.limit]}{window}')
        reset = "" if each.reset_s is None else f";t={each.reset_s}"
        states.append(f'"{each.limit}";r={each.left}{reset}')
    if not policies:
        return []
    return [
        (b"ratelimit-policy", ", ".join(policies).encode()),
        (b"ratelimit", ", ".join(states).encode()),
    ]
