"""The file of tokens and credentials: read back as it was written, refused where it is not one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.joining.stored_agents import (
    MAX_TOKENS,
    UNUSED_LIFE,
    StoredAgents,
    StoredCredential,
    StoredToken,
)
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import digest_of

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DIGESTS = st.binary(min_size=32, max_size=32)
IDS = st.text("0123456789abcdef", min_size=12, max_size=12)
TIMES = st.integers(10**9, 4 * 10**9).map(lambda time_s: datetime.fromtimestamp(time_s, UTC))
LABELS = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.just("yes"), max_size=3)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)

TOKENS = st.builds(
    StoredToken,
    id=IDS,
    digest=DIGESTS,
    created=TIMES,
    expires=TIMES,
    uses=st.just(5),
    uses_left=st.integers(0, 5),
    labels=LABELS,
    name=st.none() | NAMES,
    by=st.text(max_size=200),
)
CREDENTIALS = st.builds(
    StoredCredential,
    id=IDS,
    name=NAMES,
    token=IDS,
    digest=DIGESTS,
    pending=st.none() | DIGESTS,
    earlier=st.lists(DIGESTS, max_size=4).map(tuple),
    created=TIMES,
    rotated=TIMES,
    last_seen=st.none() | TIMES,
    address=st.text(max_size=200),
    labels=LABELS,
    suspicious=st.none() | st.text(max_size=200),
)


def token(token_id: str = "0" * 12, **changes: object) -> StoredToken:
    fields: dict[str, object] = {
        "id": token_id,
        "digest": digest_of("secret"),
        "created": NOW,
        "expires": NOW + timedelta(hours=1),
        "uses": 1,
        "uses_left": 1,
        "labels": {},
        "name": None,
        "by": "ops",
    }
    return StoredToken(**{**fields, **changes})  # type: ignore[arg-type]


def credential(name: str, number: int, **changes: object) -> StoredCredential:
    fields: dict[str, object] = {
        "id": f"{number:012x}",
        "name": name,
        "token": "0" * 12,
        "digest": digest_of(name),
        "created": NOW,
        "rotated": NOW,
        "address": "10.0.0.1",
        "labels": {"gpu": "yes"},
    }
    return StoredCredential(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.lists(TOKENS, max_size=4), st.lists(CREDENTIALS, max_size=4), st.booleans())
def test_what_is_rendered_is_read_back(
    tokens: list[StoredToken], credentials: list[StoredCredential], guarded: bool
) -> None:
    by_name = {each.name: each for each in credentials}
    stored = StoredAgents(
        {each.id: each for each in tokens},
        {each.id: each for each in by_name.values()},
        guarded or bool(tokens or credentials),
    )
    assert StoredAgents.parse(stored.render()) == stored


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_file_or_a_clear_error(text: bytes) -> None:
    with pytest.raises(ConfigurationError):
        StoredAgents.parse(text)


@given(st.data())
def test_no_field_may_be_something_else(data: st.DataObject) -> None:
    stored = StoredAgents().with_token(token()).with_credential(credential("gpu", 1))
    content = json.loads(stored.render())
    record = content[data.draw(st.sampled_from(["tokens", "credentials"]))][0]
    field = data.draw(st.sampled_from(sorted(record)))
    record[field] = data.draw(st.sampled_from([17.5, [5], {"a": 1}, "\0" * 201, True]))
    with pytest.raises(ConfigurationError, match=r"tokens\[0\]|credentials\[0\]"):
        StoredAgents.parse(json.dumps(content).encode())


def test_names_are_unique() -> None:
    twice = StoredAgents(
        {}, {each.id: each for each in (credential("gpu", 1), credential("gpu", 2))}, True
    )
    with pytest.raises(ConfigurationError, match="same name"):
        StoredAgents.parse(twice.render())


def test_once_guarded_it_stays_guarded() -> None:
    stored = StoredAgents().with_token(token())
    assert stored.without_token("0" * 12).guarded
    assert StoredAgents.parse(stored.without_token("0" * 12).render()).guarded


def test_what_has_expired_is_pruned() -> None:
    seen = credential("seen", 1, created=NOW - 2 * UNUSED_LIFE, last_seen=NOW)
    gone = credential("gone", 2, created=NOW - 2 * UNUSED_LIFE, last_seen=NOW - UNUSED_LIFE)
    new = credential("new", 3)
    stored = StoredAgents().with_token(token("1" * 12)).with_token(token("2" * 12, expires=NOW))
    for each in (seen, gone, new):
        stored = stored.with_credential(each)
    left = stored.pruned(NOW)
    assert [each.name for each in left.credentials.values()] == ["seen", "new"]
    assert list(left.tokens) == ["1" * 12]


def test_a_spent_token_makes_room() -> None:
    stored = StoredAgents()
    tokens = {f"{n:012x}": token(f"{n:012x}", uses_left=int(n > 1)) for n in range(MAX_TOKENS)}
    stored = StoredAgents(tokens, {}, True)
    left = stored.room_for_token(NOW)
    assert len(left.tokens) == MAX_TOKENS - 1
    assert f"{0:012x}" not in left.tokens
    assert f"{1:012x}" in left.tokens
