"""Ends and limits of keys that are made through the API."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_key_routes import INFERENCE, MANAGEMENT, ask, ring_of

from paddler_trio.balancer.keys.api_keys import StoredKey, read_key_file, write_key_file
from paddler_trio.balancer.keys.key_terms import KeyTerms

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


async def test_a_key_is_made_with_terms_and_shown_with_them(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    now = NOON
    ring.now = lambda: now
    order = {"name": "shop", "ttl_s": 3600, "requests_per_minute": 60, "tokens_per_day": None}
    status, text = await ask(ring, "POST", body=order)
    assert status == 201
    made = json.loads(text)
    assert (made["expires"], made["requests_per_minute"]) == ("2026-06-01T13:00:00Z", 60)
    assert made["tokens_per_day"] is None
    order = {"name": "app", "expires": "2026-06-02T00:00:00+02:00", "max_concurrent": 3}
    assert (await ask(ring, "POST", body=order))[0] == 201
    now += timedelta(hours=2)
    shown = {key["name"]: key for key in json.loads((await ask(ring, "GET"))[1])["keys"]}
    assert shown["shop"]["expired"] is True
    assert (shown["app"]["expired"], shown["app"]["expires"]) == (False, "2026-06-01T22:00:00Z")
    assert shown["app"]["max_concurrent"] == 3


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ttl_s": 0}, "ttl_s is 0, must be a whole number from 1 to"),
        ({"ttl_s": "1h"}, "ttl_s is '1h', must be a whole number"),
        ({"ttl_s": 60, "expires": "2026-06-02T00:00:00Z"}, "give expires or ttl_s, not both"),
        ({"expires": "2026-06-01T12:00:00Z"}, "expires is 2026-06-01T12:00:00Z, which is over"),
        ({"expires": "2026-06-02"}, "expires is '2026-06-02', must be a moment such as"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0, must be a whole number from 1"),
        (
            {"max_concurrent": 1, "scopes": ["management"]},
            "max_concurrent limits requests: it needs the scope inference",
        ),
        ({"limits": {}}, "the body must be"),
    ],
)
async def test_what_is_wrong_with_terms_is_named(
    tmp_path: Path, fields: dict[str, object], why: str
) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    ring.now = lambda: NOON
    status, text = await ask(ring, "POST", body={"name": "shop", **fields})
    assert (status, text[: len(why)]) == (400, why)
    assert " @ $" in text
    assert [key.name for key in ring.keys] == ["ops"]


async def test_an_expired_management_key_is_not_the_one_that_is_left(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT, app=INFERENCE)
    assert ring.path is not None
    terms = KeyTerms(expires=NOON)
    over = StoredKey.of(
        "pt-x", name="over", scopes=frozenset({MANAGEMENT}), created="", terms=terms
    )
    write_key_file(ring.path, read_key_file(ring.path).having(over))
    await ring.reload()
    status, text = await ask(ring, "DELETE", "/api/v2/keys/ops")
    assert (status, "last key of the scope management" in text) == (409, True)
    assert (await ask(ring, "DELETE", "/api/v2/keys/over"))[0] == 204
