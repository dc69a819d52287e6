"""How long a session lasts, what ends with it, and how often somebody may fail to begin one."""

from __future__ import annotations

import hashlib

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.front import sessions as sessions_module
from paddler_trio.balancer.front.authentication import Authentication
from paddler_trio.balancer.front.login_limit import (
    ALL_BURST,
    BURST,
    MAX_ADDRESSES,
    PER_S,
    LoginLimit,
)
from paddler_trio.balancer.front.sessions import (
    MAX_AGE_S,
    MAX_IDLE_S,
    MAX_SESSIONS,
    SESSION_COOKIE,
    Sessions,
    csrf_token,
)
from paddler_trio.balancer.keys.api_keys import KeyScope, StoredKey, new_secret
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.panel.panel_access import PanelAccess
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import Exchange


def key(name: str = "ops") -> StoredKey:
    return StoredKey.of(
        new_secret(), name=name, scopes=frozenset({KeyScope.MANAGEMENT}), created=""
    )


async def test_a_session_lasts_an_hour_after_its_last_use_and_twelve_in_all(
    mock_clock: MockClock,
) -> None:
    sessions = Sessions()
    token = sessions.open(key()).encode()
    for _ in range(12):
        mock_clock.jump(MAX_IDLE_S - 1)
        assert sessions.find(token) is not None
    mock_clock.jump(MAX_AGE_S - 12 * (MAX_IDLE_S - 1))
    assert sessions.find(token) is None
    assert len(sessions) == 0
    token = sessions.open(key()).encode()
    mock_clock.jump(MAX_IDLE_S)
    assert sessions.find(token) is None


async def test_a_session_ends_with_its_key_and_so_do_its_requests(
    autojump_clock: MockClock,
) -> None:
    sessions = Sessions()
    token = sessions.open(key(), valid_s=600).encode()
    session = sessions.find(token)
    assert session is not None
    began_s = trio.current_time()
    with session.in_use() as use:
        await trio.sleep_forever()
    assert use.cancelled_caught
    assert trio.current_time() == began_s + 600
    assert sessions.find(token) is None


async def test_memory_holds_no_token(mock_clock: MockClock) -> None:
    sessions = Sessions()
    token = sessions.open(key())
    session = sessions.find(token.encode())
    assert session is not None
    assert token not in repr(sessions)
    assert token not in repr(session)
    (digest,) = sessions._by_digest
    assert digest == hashlib.sha256(token.encode()).digest()
    assert csrf_token(token.encode()) != csrf_token(b"another")


@pytest.mark.parametrize("token", [b"", b"wrong", b"x" * 100_000, b"\xff"])
async def test_what_is_no_token_is_nobody(token: bytes, mock_clock: MockClock) -> None:
    sessions = Sessions()
    sessions.open(key())
    assert sessions.find(token) is None


async def test_a_long_token_is_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashed(token: bytes) -> bytes:
        raise AssertionError("hashed")

    monkeypatch.setattr(sessions_module, "_digest", hashed)
    assert Sessions().find(b"x" * 129) is None


async def test_the_least_recently_used_session_makes_room(mock_clock: MockClock) -> None:
    sessions = Sessions()
    tokens = [sessions.open(key()).encode() for _ in range(MAX_SESSIONS)]
    assert sessions.find(tokens[0]) is not None
    sessions.open(key())
    assert len(sessions) == MAX_SESSIONS
    assert sessions.find(tokens[0]) is not None
    assert sessions.find(tokens[1]) is None


async def test_who_signs_in_all_the_time_signs_out_nobody_else(mock_clock: MockClock) -> None:
    sessions = Sessions()
    mine = [sessions.open(key("mine")).encode() for _ in range(2)]
    for _ in range(MAX_SESSIONS + 5):
        sessions.open(key("theirs"))
    assert len(sessions) == MAX_SESSIONS
    assert all(sessions.find(token) is not None for token in mine)
    more = sessions.open(key("mine")).encode()
    assert all(sessions.find(token) is not None for token in (*mine, more))
    assert len(sessions) == MAX_SESSIONS


async def test_streams_of_a_session_end_with_it_and_keep_it_awake(mock_clock: MockClock) -> None:
    sessions = Sessions()
    token = sessions.open(key()).encode()
    session = sessions.find(token)
    assert session is not None
    cut: list[bool] = []

    async def stream() -> None:
        with session.in_use() as scope:
            await trio.sleep_forever()
        cut.append(scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        await wait_all_tasks_blocked()
        mock_clock.jump(MAX_IDLE_S + 1)
        assert sessions.find(token) is session
        with session.in_use() as own:
            assert sessions.end_all(lambda key: key.name == "other") == 0
            assert sessions.end_all(lambda key: key.name == "ops") == 1
            await trio.lowlevel.checkpoint()
        assert not own.cancelled_caught  # who signs out gets the answer
    assert cut == [True]
    assert sessions.find(token) is None


async def test_a_stream_is_cut_when_the_session_is_twelve_hours_old(
    autojump_clock: MockClock,
) -> None:
    sessions = Sessions()
    session = sessions.find(sessions.open(key()).encode())
    assert session is not None
    began_s = trio.current_time()
    with session.in_use() as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == MAX_AGE_S


def test_an_address_may_fail_ten_times_then_once_in_six_seconds() -> None:
    limit = LoginLimit()
    for _ in range(BURST):
        assert limit.wait_s("10.0.0.1", 0) == 0
        limit.failed("10.0.0.1", 0)
    assert limit.wait_s("10.0.0.1", 0) == pytest.approx(1 / PER_S)
    assert limit.wait_s("10.0.0.2", 0) == 0
    assert limit.wait_s("10.0.0.1", 1 / PER_S) == pytest.approx(0)


def test_addresses_of_one_household_count_as_one() -> None:
    limit = LoginLimit()
    for number in range(BURST):
        limit.failed(f"2001:db8::{number:x}", 0)
    assert limit.wait_s("2001:db8::ffff:1", 0) > 0
    assert limit.wait_s("2001:db8:0:1::1", 0) == 0
    for _ in range(BURST):
        limit.failed("::ffff:10.0.0.1", 0)
    assert limit.wait_s("10.0.0.1", 0) > 0
    assert limit.wait_s("::ffff:10.0.0.2", 0) == 0


def test_many_addresses_are_limited_together_and_forgotten_in_turn() -> None:
    limit = LoginLimit()
    for number in range(ALL_BURST):
        limit.failed(f"10.0.{number // 250}.{number % 250}", 0)
    assert limit.wait_s("192.168.0.1", 0) > 0
    for number in range(2 * MAX_ADDRESSES):
        limit.failed(f"10.1.{number // 250}.{number % 250}", 0)
    assert len(limit._by_address) == MAX_ADDRESSES


async def test_who_asks_as_a_session_ends_is_refused_past_the_guards_behind_it() -> None:
    access = PanelAccess(KeyRing())
    token = access.sessions.open(key())
    said: list[Message] = []
    waits = trio.Event()

    async def send(message: Message) -> None:
        said.append(message)

    async def behind(exchange: Exchange) -> None:
        exchange.send = _no_send
        waits.set()
        await trio.sleep_forever()

    app = access(behind, otherwise=Authentication(access.keys, KeyScope.MANAGEMENT))
    headers = [(b"cookie", f"{SESSION_COOKIE}={token}".encode())]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(app, exchange_for({"headers": headers}, send=send))
        await waits.wait()
        access.sessions.end_all(lambda _: True)
    assert said[0]["status"] == 401
    assert said[1]["body"] == b"the session has ended: sign in again"


async def _no_send(message: Message) -> None:
    raise AssertionError("it answers for those in front of it")
