"""Whatever is sent to ``/api/v2/join``: nobody joins without a secret, and nothing is learned."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st
from joining_world import JSON, JoiningWorld, Said, join_body
from structlog.testing import capture_logs

from paddler_trio.balancer.front.login_limit import BURST, LoginLimit
from paddler_trio.net.joining.join_token import new_secret

HEX64 = st.text("0123456789abcdef", min_size=64, max_size=64)
FIELDS = st.fixed_dictionaries(
    {
        "id": st.text("0123456789abcdef", min_size=12, max_size=12) | JSON,
        "secret": st.text("abc-_", min_size=1, max_size=50) | JSON,
        "credential_sha256": HEX64 | JSON,
        "name": st.just("gpu") | JSON,
        "host": st.none() | JSON,
    },
    optional={"more": JSON},
)


class NoLimit(LoginLimit):
    """Every failure is told."""

    def wait_s(self, address: str, now_s: float) -> float:
        return 0.0


def unlimited(folder: Path) -> JoiningWorld:
    world = JoiningWorld(folder)
    object.__setattr__(world.exchange, "_limit", NoLimit())
    return world


def answer_to(raw: bytes, *, with_id: bool = False) -> tuple[Said, JoiningWorld]:
    async def play() -> tuple[Said, JoiningWorld]:
        world = unlimited(Path(folder))
        _, token_id, *_ = await world.token(uses=5)
        sent = raw.replace(b'"ID"', json.dumps(token_id).encode()) if with_id else raw
        return await world.ask("POST", "/api/v2/join", raw=sent), world

    with tempfile.TemporaryDirectory() as folder:
        return trio.run(play)


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_at_all_is_refused(raw: bytes) -> None:
    answer, world = answer_to(raw)
    assert answer.status in (400, 401, 413)
    assert world.registry.credentials() == []


@given(FIELDS)
def test_almost_an_order_is_refused(fields: dict[str, object]) -> None:
    answer, world = answer_to(json.dumps({**fields, "id": "ID"}).encode(), with_id=True)
    assert answer.status in (400, 401)
    assert world.registry.credentials() == []
    assert world.registry.tokens()[0].uses_left == 5


def test_a_body_that_is_too_long_is_refused_at_once() -> None:
    answer, _ = answer_to(b'{"id": "' + b"0" * 10_000)
    assert answer.status == 413


async def test_every_failing_token_gets_the_same_answer(tmp_path: Path) -> None:
    world = unlimited(tmp_path)
    _, good, secret, *_ = await world.token()
    _, spent, spent_secret, *_ = await world.token()
    _, revoked, revoked_secret, *_ = await world.token()
    joined = join_body(spent, spent_secret, new_secret())
    assert (await world.ask("POST", "/api/v2/join", body=joined)).status == 201
    await world.registry.revoke_token(revoked)
    answers = [
        await world.ask("POST", "/api/v2/join", body=join_body(*tried, new_secret(), "other"))
        for tried in (
            (good, new_secret()),
            ("0" * 12, secret),
            (spent, spent_secret),
            (revoked, revoked_secret),
        )
    ]
    assert answers == [answers[0]] * 4
    assert answers[0].status == 401
    right = join_body(good, secret, new_secret(), "other")
    assert (await world.ask("POST", "/api/v2/join", body=right)).status == 201


async def test_a_right_token_joins_after_any_number_of_wrong_ones(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    _, token_id, secret, *_ = await world.token()
    wrong = join_body(token_id, new_secret(), new_secret())
    for _ in range(BURST):
        assert (await world.ask("POST", "/api/v2/join", body=wrong)).status == 401
    with capture_logs() as records:
        assert (await world.ask("POST", "/api/v2/join", body=wrong)).status == 429
    assert records == []
    right = join_body(token_id, secret, new_secret())
    assert (await world.ask("POST", "/api/v2/join", body=right)).status == 201


async def test_an_answer_has_no_secret(tmp_path: Path) -> None:
    world = unlimited(tmp_path)
    _, token_id, secret, *_ = await world.token(labels={"gpu": "yes"})
    own = new_secret()
    answer = await world.ask("POST", "/api/v2/join", body=join_body(token_id, secret, own))
    assert set(answer.json()) == {"id", "name", "labels"}
    assert (answer.json()["name"], answer.json()["labels"]) == ("gpu", {"gpu": "yes"})
    again = await world.ask("POST", "/api/v2/join", body=join_body(token_id, secret, own))
    assert again == answer
