"""Ends and limits of keys: in the file, on the command line, in the API, and at the door."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchanges import exchange_for
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_terms import KeyTerms, check_expires, duration_s
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import Message, send_text
from paddler_trio.net.server.exchange import App, Exchange
from paddler_trio.scheduler.limits.key_limits import MOST, KeyLimits

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
LIMITS = st.builds(
    KeyLimits,
    **{name: st.none() | st.integers(1, most) for name, most in MOST.items()},
)
MOMENTS = st.integers(-(10**9), 2 * 10**9).map(lambda seconds: NOON + timedelta(seconds=seconds))


def stored(secret: str, name: str, terms: KeyTerms) -> StoredKey:
    scopes = frozenset({KeyScope.INFERENCE})
    return StoredKey.of(secret, name=name, scopes=scopes, created="2026-01-01", terms=terms)


@given(st.builds(KeyTerms, st.none() | MOMENTS, LIMITS))
def test_terms_read_as_they_were_written(terms: KeyTerms) -> None:
    content = KeyFile().having(stored("pt-a", "a", terms))
    assert KeyFile.parse(content.render()) == content


def test_a_file_without_terms_is_one_that_older_programs_read() -> None:
    plain = KeyFile().having(stored("pt-a", "a", KeyTerms()))
    assert json.loads(plain.render())["version"] == 1
    limited = plain.having(stored("pt-b", "b", KeyTerms(limits=KeyLimits(max_concurrent=1))))
    assert json.loads(limited.render())["version"] == 2
    assert json.loads(limited.without("b").render())["version"] == 1


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("expires", "2026-06-01", "must be a moment such as"),
        ("expires", "2026-06-01T12:00:00", "must be a moment such as"),
        ("expires", "2026-13-01T12:00:00Z", "must be a moment such as"),
        ("expires", 1780315200, "must be a moment such as"),
        ("requests_per_minute", 0, "from 1 to 1000000"),
        ("requests_per_minute", True, "from 1 to 1000000"),
        ("max_concurrent", 1.5, "from 1 to 100000"),
        ("tokens_per_day", 10**13, "from 1 to 1000000000000"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(field: str, value: object, why: str) -> None:
    text = json.loads(KeyFile().having(stored("pt-a", "a", KeyTerms())).render())
    text["keys"][0][field] = value
    with pytest.raises(ConfigurationError, match=rf"keys\[0\]\.{field} is .*{why}"):
        KeyFile.parse(json.dumps(text))


def test_moments_and_durations() -> None:
    assert check_expires("2026-06-01T14:00:00.5+02:00", "x") == NOON
    assert check_expires("2026-06-01t12:00:00z", "x") == NOON
    assert [duration_s(text, "x") for text in ("90s", "30m", "12h", "7d", "4w")] == [
        90,
        1800,
        43_200,
        604_800,
        2_419_200,
    ]
    for text in ("", "0s", "1", "1.5h", "1y", "9999999w", "-1h"):
        with pytest.raises(ConfigurationError, match="must be a number with its unit"):
            duration_s(text, "--ttl")


@attrs.define
class Clock:
    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


async def asked(app: App, *headers: tuple[bytes, bytes]) -> tuple[int, str]:
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    scope = {"method": "POST", "path": "/x", "headers": list(headers)}
    await app(exchange_for(scope, send=send))
    return said[0]["status"], said[1]["body"].decode()


async def test_a_key_opens_until_it_expires_and_then_says_since_when(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    end = NOON + timedelta(hours=1)
    content = KeyFile().having(stored("pt-short", "short", KeyTerms(expires=end)))
    write_key_file(path, content.having(stored("pt-long", "long", KeyTerms())))
    clock = Clock()
    ring = KeyRing.read(path)
    ring.now = clock

    async def inner(exchange: Exchange) -> None:
        await send_text(exchange.send, 200, "in")

    app = Authentication(ring, KeyScope.INFERENCE)(inner)
    short = (b"authorization", b"Bearer pt-short")
    assert await asked(app, short) == (200, "in")
    clock.now = end - timedelta(seconds=1)
    assert (await asked(app, short))[0] == 200
    clock.now = end
    status, text = await asked(app, short)
    assert status == 401
    assert "'short' expired at 2026-06-01T13:00:00Z" in text
    assert (await asked(app, short, (b"x-api-key", b"pt-long")))[0] == 200
