"""The limits of keys around applications that end in every way there is."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import pytest
import structlog
import trio
import trio.testing

from exchanges import exchange_for
from paddler_trio.balancer.apis.limit_headers import api_limit_headers
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_accounts import Admission, KeyAccounts, Refusal
from paddler_trio.balancer.keys.key_limiter import KeyLimiter, admit
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.net.server.asgi import Message, Upgrade, send_text
from paddler_trio.net.server.exchange import App, Exchange, Identity
from paddler_trio.scheduler.limits.key_limits import KeyLimits

MIDNIGHT_S = 20_000.0 * 86_400


@attrs.define
class World:
    """One key ``k`` with limits, and what its requests were answered."""

    folder: Path
    limits: KeyLimits
    unix_s: float = MIDNIGHT_S
    ring: KeyRing = attrs.field(init=False)
    accounts: KeyAccounts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.write(self.limits)
        self.ring = KeyRing.read(self.folder / "keys.json")
        self.accounts = KeyAccounts(self.ring, lambda: self.unix_s)

    def write(self, limits: KeyLimits | None) -> None:
        content = KeyFile(guarded=frozenset({KeyScope.INFERENCE}))
        if limits is not None:
            scopes = frozenset({KeyScope.INFERENCE})
            terms = KeyTerms(limits=limits)
            content = content.having(
                StoredKey.of("pt-k", name="k", scopes=scopes, created="", terms=terms)
            )
        write_key_file(self.folder / "keys.json", content)

    async def ask(
        self,
        app: App,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        key: str = "k",
        upgrade: Upgrade | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        said: list[Message] = []

        async def send(message: Message) -> None:
            said.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        scope = {"method": method, "path": path}
        exchange = exchange_for(
            scope, receive, send, identity=Identity(account=key), upgrade=upgrade
        )
        await KeyLimiter(self.accounts)(app, fields=api_limit_headers)(exchange)
        headers = {name.decode(): value.decode() for name, value in said[0]["headers"]}
        return said[0]["status"], headers, said[1]["body"]


async def ok(exchange: Exchange) -> None:
    await send_text(exchange.send, 200, "ok")


async def broken(exchange: Exchange) -> None:
    raise RuntimeError("broken")


async def test_a_request_is_under_way_until_its_task_ends_however_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path, KeyLimits(max_concurrent=1))
    assert (await world.ask(ok))[0] == 200
    assert world.accounts.used("k")["concurrent"] == 0
    with pytest.raises(RuntimeError, match="broken"):
        await world.ask(broken)
    assert world.accounts.used("k")["concurrent"] == 0

    async def waits(exchange: Exchange) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.ask, waits)
        await trio.testing.wait_all_tasks_blocked()
        assert world.accounts.used("k")["concurrent"] == 1
        status, headers, text = await world.ask(ok)
        assert status == 429
        assert headers["retry-after"] == "1"
        assert b"'k' is at its limit of 1 request at once (max_concurrent)" in text
        nursery.cancel_scope.cancel()
    assert world.accounts.used("k")["concurrent"] == 0
    assert world.ring.limited == {("k", "max_concurrent"): 1}


async def test_only_what_asks_a_model_counts(tmp_path: Path) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=1))
    for method in ("GET", "DELETE", "OPTIONS"):
        for _ in range(3):
            assert (await world.ask(ok, method=method))[0] == 200
    assert (await world.ask(ok, key="unknown"))[0] == 401
    assert (await world.ask(ok))[0] == 200
    assert (await world.ask(ok))[0] == 429


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_whatever_a_server_may_take_for_work_counts(tmp_path: Path, method: str) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=1))
    assert (await world.ask(ok, method=method))[0] == 200
    assert (await world.ask(ok, method=method))[0] == 429


async def test_each_answer_of_a_request_counts(tmp_path: Path) -> None:
    problems: list[str | None] = []

    async def asks_for(number: int, exchange: Exchange) -> None:
        assert exchange.admit_more is not None
        problem = exchange.admit_more(number - 1)
        problems.append(problem and problem.text)
        await ok(exchange)

    world = World(tmp_path, KeyLimits(requests_per_minute=10))
    for number in (4, 2048, 6, 4):
        await world.ask(partial(asks_for, number))
    # 4, 1 of 2048, 1 of 6, as 6 + 5 would be 11; then there is room for 4
    assert [problem is None for problem in problems] == [True, False, False, True]
    assert "each of the 2048 answers that are asked for is a request" in str(problems[1])
    assert "at its limit of 10 requests in a minute" in str(problems[1])
    assert world.accounts.used("k")["requests_last_minute"] == 10


async def test_a_websocket_that_is_passed_on_is_a_request(tmp_path: Path) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=1))
    upgrade = Upgrade()
    assert (await world.ask(ok, method="GET", upgrade=upgrade))[0] == 200
    assert (await world.ask(ok, method="GET", upgrade=upgrade))[0] == 429


async def test_each_api_has_its_headers(tmp_path: Path, autojump_clock: object) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=2, max_concurrent=3, tokens_per_day=100))
    world.accounts.charge("k", 40)
    _, headers, _ = await world.ask(ok)
    policy = (
        '"requests_per_minute";q=2;w=60, "max_concurrent";q=3;qu="concurrent-requests", '
        '"tokens_per_day";q=100;qu="tokens";w=86400'
    )
    assert headers["ratelimit-policy"] == policy
    assert headers["ratelimit"] == (
        '"requests_per_minute";r=1;t=60, "max_concurrent";r=2, "tokens_per_day";r=60;t=86400'
    )
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "1"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    assert headers["x-ratelimit-remaining-tokens"] == "60"
    assert headers["x-ratelimit-reset-tokens"] == "24h0m0s"
    assert not any(name.startswith("anthropic") for name in headers)
    _, headers, _ = await world.ask(ok, "/v1/messages")
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert headers["anthropic-ratelimit-tokens-limit"] == "100"
    assert headers["anthropic-ratelimit-tokens-reset"] == "2024-10-05T00:00:00Z"
    assert not any(name.startswith("x-ratelimit") for name in headers)
    status, headers, _ = await world.ask(ok)
    assert (status, headers["retry-after"]) == (429, "60")
    assert "x-should-retry" not in headers
    world.accounts.charge("k", 60)
    status, headers, _ = await world.ask(ok)
    assert (status, headers["retry-after"], headers["x-should-retry"]) == (429, "86400", "false")


async def test_a_key_without_limits_has_no_headers_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, KeyLimits())
    _, headers, _ = await world.ask(ok)
    assert set(headers) == {"content-type", "content-length"}
    assert world.accounts.used("k")["requests_last_minute"] == 1


async def test_a_reload_keeps_what_was_used_and_takes_the_new_limits(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=2))
    held = world.accounts.begin("k")
    assert isinstance(held, Admission)
    world.accounts.charge("k", 7)
    world.write(KeyLimits(requests_per_minute=1, max_concurrent=5))
    await world.ring.reload()
    assert world.accounts.used("k") == {
        "requests_last_minute": 1,
        "concurrent": 1,
        "tokens_today": 7,
        "tokens_this_month": 7,
    }
    assert (await world.ask(ok))[0] == 429
    held.end()
    held.end()
    assert world.accounts.used("k")["concurrent"] == 0
    await trio.sleep(60)
    assert (await world.ask(ok))[0] == 200

    other = world.accounts.begin("k")
    assert isinstance(other, Refusal)
    await trio.sleep(60)
    other = world.accounts.begin("k")
    assert isinstance(other, Admission)
    world.write(None)
    await world.ring.reload()
    refused = world.accounts.begin("k")
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.text) == (401, "the API key 'k' is revoked")
    other.end()  # of a key that is gone
    assert world.accounts.used("k")["concurrent"] == 0
    assert world.accounts.tokens_today() == {}


async def test_a_key_at_its_limit_is_in_the_log_once_until_it_is_below(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=1))
    with structlog.testing.capture_logs() as logged:
        for _ in range(5):
            await world.ask(ok)
        await trio.sleep(60)
        for _ in range(5):
            await world.ask(ok)
    assert [each["limit"] for each in logged] == ["requests_per_minute"] * 2
    assert world.ring.limited == {("k", "requests_per_minute"): 8}


async def test_messages_of_a_socket_are_admitted_one_by_one(tmp_path: Path) -> None:
    world = World(tmp_path, KeyLimits(requests_per_minute=2))
    seen: list[object] = []

    async def socket(exchange: Exchange) -> None:
        seen.extend(admit(exchange) for _ in range(3))

    scope = {"type": "websocket", "path": "/api/v1/inference_socket"}
    app = KeyLimiter(world.accounts)(socket)
    await app(exchange_for(scope, identity=Identity(account="k")))
    assert [type(each) for each in seen] == [Admission, Admission, Refusal]
    assert admit(exchange_for({"type": "websocket"})) is None


async def test_the_budget_of_a_month_is_refused_with_when_it_opens_again(tmp_path: Path) -> None:
    """All APIs name of the budgets of tokens the one of which less is left."""
    world = World(tmp_path, KeyLimits(tokens_per_day=50, tokens_per_month=60))
    world.unix_s = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
    world.accounts.charge("k", 40)
    _, headers, _ = await world.ask(ok)
    assert headers["x-ratelimit-limit-tokens"] == "50"
    assert headers["x-ratelimit-remaining-tokens"] == "10"
    world.unix_s += 86_400
    world.accounts.charge("k", 20)
    status, headers, body = await world.ask(ok)
    assert (status, headers["retry-after"]) == (429, "43200")
    assert b"60 tokens in a month (UTC) (tokens_per_month)" in body
    assert b"try again in 43200 s: it opens again at 2026-12-01T00:00:00Z" in body
    assert headers["x-should-retry"] == "false"
    assert headers["x-ratelimit-limit-tokens"] == "60"
    assert headers["x-ratelimit-reset-tokens"] == "12h0m0s"
    assert '"tokens_per_month";q=60;qu="tokens";w=2592000' in headers["ratelimit-policy"]
    _, headers, _ = await world.ask(ok, path="/v1/messages")
    assert headers["anthropic-ratelimit-tokens-reset"] == "2026-12-01T00:00:00Z"
    world.unix_s += 43_200
    assert (await world.ask(ok))[0] == 200
