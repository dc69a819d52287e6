"""The history of a balancer: what is counted, when it is written, and what happens if it cannot."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import attrs
import pytest
import structlog
import trio
import trio.testing
from dispatch_world import WORK, World, world

from exchanges import exchange_for
from paddler_trio.balancer.activity.metrics_history import MetricsHistory
from paddler_trio.balancer.activity.metrics_observer import MetricsObserver
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.front.end_user import USER_NAMES, user_in
from paddler_trio.balancer.history.history_collector import MAX_NAMES, HistoryCollector
from paddler_trio.balancer.history.history_file import HistoryError, HistoryFile
from paddler_trio.balancer.history.history_keeper import MAX_SAMPLES, SLOW_S, HistoryKeeper
from paddler_trio.balancer.history.history_queries import series_of, usage_of
from paddler_trio.balancer.history.history_routes import HistoryRoutes
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.scheduler.limits.periods import day_of
from paddler_trio.scheduler.metering.time_samples import FIELDS, OTHER, Kind
from paddler_trio.scheduler.metering.time_steps import Plan
from paddler_trio.scheduler.metering.usage import MAX_USERS_OF_KEY
from paddler_trio.wire.trio.prompt_stages import PromptStages

LIMITS = DispatchLimits(max_buffered=5, buffered_timeout_s=10, item_timeout_s=30)
NOVEMBER_30 = 1_796_083_190.0
"""2026-11-30T23:59:50Z."""
EVERYTHING = range(60_000)


@attrs.define
class Clock:
    now_s: float = NOVEMBER_30

    def __call__(self) -> float:
        return self.now_s


class Kept:
    """A keeper over the requests of a world."""

    def __init__(self, here: World, path: Path | None = None) -> None:
        self.clock = Clock()
        self.activity = RequestActivity()
        live = MetricsHistory(lambda: here.dispatcher.statistics().slots_total)
        collector = HistoryCollector(self.activity, live, self.clock)
        self.keeper = HistoryKeeper(HistoryFile(path, 16 * 1024**2), collector, self.clock)
        recorder = MetricsObserver(live, self.activity.finished)
        here.dispatcher.observers = Observers((self.activity, recorder, collector))

    def series(self, kind: Kind) -> dict[str, dict[str, int]]:
        """What all rows of ten seconds have together, by name."""
        plan = Plan(10, 10, 0, 2**40)
        found = {}
        for each in series_of(self.keeper.file, plan, kind):
            sums: dict[str, int] = {}
            for field in ("requests", "failed", "prompt_tokens", "generated_tokens"):
                place = 1 + FIELDS.index(field)
                sums[field] = sum(int(row[place] or 0) for row in each.rows)
            found[each.name] = sums
        return found

    async def ask(self, path: str, query: str = "") -> tuple[int, dict[str, str], str]:
        """Ask one of the routes: the status, the headers and the body."""
        said: list[Message] = []

        async def send(message: Message) -> None:
            said.append(message)

        async def receive() -> Message:
            await trio.sleep_forever()
            raise AssertionError

        router = Router()
        HistoryRoutes(self.keeper, self.clock).add_to(router)
        scope = {"method": "GET", "path": f"/api/v2/{path}", "query_string": query.encode()}
        await router(exchange_for(scope, receive, send))
        headers = {name.decode(): value.decode() for name, value in said[0]["headers"]}
        body = b"".join(each.get("body", b"") for each in said[1:])
        return said[0]["status"], headers, body.decode()


def prompt(tokens: int, cached: int = 0) -> PromptStages:
    return PromptStages(tokens=tokens, cached=cached, template_ms=1, wait_ms=1, prefill_ms=1)


async def test_requests_are_counted_for_whom_and_where_they_were() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=3, name="gpu")
        for name, account in (("alice", "alice"), ("panel:op", "ops"), ("", "")):
            here.dispatcher.submit("x", WORK, client=name, account=account)
        first, second, third = (lease.wire_id for lease in peer.connection.leases())
        peer.lease(first).report_prompt(prompt(9, cached=4))
        peer.says(first, "a", "b", done=True)
        peer.says(second, "c", done=True)
        peer.says(third, "d")
        await kept.keeper.collector.look()
        await kept.keeper.write()
        assert kept.series("key").keys() == {"alice", "ops"}
        assert kept.series("client").keys() == {"alice", "panel:op", "anonymous"}
        whole = {"requests": 2, "failed": 0, "prompt_tokens": 9, "generated_tokens": 4}
        assert kept.series("agent") == {"gpu": whole}
        assert kept.series("deployment") == {"default": whole}
        assert kept.series("fleet") == {"": whole}
        peer.says(third, "e", "f", done=True)  # one of its tokens is counted already
        await kept.keeper.write()
        whole = {"requests": 3, "failed": 0, "prompt_tokens": 9, "generated_tokens": 6}
        assert kept.series("fleet") == {"": whole}
        assert kept.series("agent") == {"gpu": whole}
        used = usage_of(kept.keeper.file, EVERYTHING, "key", "day")
        assert {
            (row.key, row.requests, row.prompt_tokens, row.generated_tokens) for row in used
        } == {
            ("alice", 1, 9, 2),
            ("ops", 1, 0, 1),
            ("", 1, 0, 3),
        }


async def test_the_last_request_of_a_month_is_not_of_the_next_one() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=2)
        for _ in range(2):
            here.dispatcher.submit("x", WORK, account="alice")
        first, second = (lease.wire_id for lease in peer.connection.leases())
        kept.clock.now_s = NOVEMBER_30 + 9.999
        peer.says(first, "a", done=True)
        kept.clock.now_s = NOVEMBER_30 + 10
        peer.says(second, "b", "c", done=True)
        kept.clock.now_s = NOVEMBER_30 - 3600  # set back before it is written
        await kept.keeper.write()
        used = usage_of(kept.keeper.file, EVERYTHING, "key", "month")
        assert [(row.period, row.generated_tokens) for row in used] == [
            ("2026-12", 2),
            ("2026-11", 1),
        ]


async def test_what_is_refused_at_a_limit_is_counted_for_its_key() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        for _ in range(3):
            kept.keeper.collector.refused("alice")
        await kept.keeper.write()
        (row,) = usage_of(kept.keeper.file, EVERYTHING, "key", "all")
        assert (row.key, row.refused, row.requests, row.last_s) == ("alice", 3, 0, NOVEMBER_30)


async def test_users_are_named_only_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(USER_NAMES, "is_kept", False)
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=2)

        async def used_by(name: str) -> list[tuple[str | None, str | None, int]]:
            here.dispatcher.submit("x", WORK, account="app", user=user_in({"user": name}))
            (lease,) = peer.connection.leases()
            peer.says(lease.wire_id, "a", done=True)
            await kept.keeper.write()
            rows = usage_of(kept.keeper.file, EVERYTHING, "user", "all")
            return sorted((row.key, row.user, row.requests) for row in rows)

        assert await used_by("tom") == [("app", "", 1)]
        USER_NAMES.is_kept = True
        assert await used_by("tom") == [("app", "", 1), ("app", "tom", 1)]
        assert await used_by("\x1b[2J\ud800") == [
            ("app", "", 1),
            ("app", r"\x1b[2J\ud800", 1),
            ("app", "tom", 1),
        ]
        for number in range(MAX_USERS_OF_KEY + 5):
            await used_by(f"user {number}")
        rows = usage_of(kept.keeper.file, EVERYTHING, "user", "all")
        assert len(rows) == MAX_USERS_OF_KEY + 2
        assert sum(row.requests for row in rows) == MAX_USERS_OF_KEY + 8
        assert next(row.requests for row in rows if row.user == OTHER) == 7


async def test_many_clients_are_one_series() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=1)
        for number in range(MAX_NAMES + 10):
            here.dispatcher.submit("x", WORK, client=f"client {number}")
            (lease,) = peer.connection.leases()
            peer.says(lease.wire_id, "a", done=True)
        await kept.keeper.write()
        with kept.keeper.file.using() as database:
            count = "SELECT count(*), sum(name = 'other') FROM series WHERE kind = 'client'"
            assert database.execute(count).fetchone() == (MAX_NAMES + 1, 1)
        assert sum(each["requests"] for each in kept.series("client").values()) == MAX_NAMES + 10


async def test_a_disk_that_refuses_is_a_problem_and_nothing_used_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "history.db"
    async with world(LIMITS) as here:
        kept = Kept(here, path)
        peer = here.agent(slots=1)
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                here.dispatcher.submit("x", WORK, account="alice")
                (lease,) = peer.connection.leases()
                peer.says(lease.wire_id, "a", done=True)
                kept.clock.now_s += 10
                await kept.keeper.write()
                assert "No such file" in kept.keeper.problem
            path.parent.mkdir()
            await kept.keeper.write()
        levels = [each["log_level"] for each in logged if "history" in each["event"]]
        assert levels == ["error", "info"]
        assert kept.keeper.problem == ""
        (used,) = usage_of(kept.keeper.file, EVERYTHING, "key", "all")
        assert used.requests == 3
        assert kept.series("key")["alice"]["requests"] == 3


async def test_what_waits_for_the_disk_is_bounded(tmp_path: Path) -> None:
    async with world(LIMITS) as here:
        kept = Kept(here, tmp_path / "gone" / "history.db")
        for number in range(MAX_SAMPLES // MAX_NAMES + 20):
            kept.clock.now_s = NOVEMBER_30 + 10 * number
            for key in range(3):
                kept.keeper.collector.refused(f"k{key}")
            await kept.keeper.write()
        assert len(kept.keeper._unstored.samples) <= MAX_SAMPLES
        days = {day_of(NOVEMBER_30), day_of(kept.clock.now_s)}
        assert len(kept.keeper._unstored.usage.counts) == 3 * len(days)


async def test_a_slow_disk_holds_up_no_request_and_is_said(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The file is held for long: a read gives up, and a request goes its way."""
    path = tmp_path / "history.db"
    release, holds = threading.Event(), threading.Event()

    def hold(file: HistoryFile) -> None:
        with file.using():
            holds.set()
            assert release.wait(60)

    async with world(LIMITS) as here, trio.open_nursery() as nursery:
        kept = Kept(here, path)
        peer = here.agent(slots=1)
        await kept.keeper.write()
        nursery.start_soon(kept.keeper._in_thread, partial(hold, kept.keeper.file))
        await trio.to_thread.run_sync(holds.wait)
        try:
            nursery.start_soon(kept.keeper.write)
            await trio.testing.wait_all_tasks_blocked()
            here.dispatcher.submit("x", WORK, account="alice")
            (lease,) = peer.connection.leases()
            peer.says(lease.wire_id, "a", done=True)
            assert not here.dispatcher.requests
            mock_clock.jump(SLOW_S + 1)
            assert "has taken more than 10 s" in kept.keeper.problem
            nursery.start_soon(_is_too_slow, kept.keeper)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(SLOW_S + 1)
            await trio.testing.wait_all_tasks_blocked()
        finally:
            release.set()
    assert kept.keeper.problem == ""


async def test_what_is_asked_for_during_a_write_is_answered(tmp_path: Path) -> None:
    """The write is where it is told of, and has the thread after the read."""
    async with world(LIMITS) as here:
        kept = Kept(here, tmp_path / "history.db")
        await kept.keeper.write()
        kept.keeper._writing_since_s = trio.current_time()
        for path, query in (("usage", "by=key&per=all"), ("metrics/range", "range=1h")):
            status, _, body = await kept.ask(path, query)
            assert (status, json.loads(body)["problem"]) == (200, "")


async def test_a_write_that_is_broken_off_loses_nothing(tmp_path: Path) -> None:
    """It waits for a read that takes long when the balancer is told to end."""
    release, holds = threading.Event(), threading.Event()

    def hold(file: HistoryFile) -> None:
        holds.set()
        assert release.wait(60)

    async with world(LIMITS) as here, trio.open_nursery() as nursery:
        kept = Kept(here, tmp_path / "history.db")
        peer = here.agent(slots=1)
        here.dispatcher.submit("x", WORK, account="alice")
        (lease,) = peer.connection.leases()
        peer.says(lease.wire_id, "a", done=True)
        nursery.start_soon(kept.keeper._in_thread, partial(hold, kept.keeper.file))
        await trio.to_thread.run_sync(holds.wait)
        async with trio.open_nursery() as writing:
            writing.start_soon(kept.keeper.write)
            await trio.testing.wait_all_tasks_blocked()
            writing.cancel_scope.cancel()
        release.set()
        await kept.keeper.write()
        (used,) = usage_of(kept.keeper.file, EVERYTHING, "key", "all")
        assert used.requests == 1


async def _is_too_slow(keeper: HistoryKeeper) -> None:
    with pytest.raises(HistoryError, match="too slow"):
        await keeper.read(lambda file: usage_of(file, EVERYTHING, "key", "all"))


async def test_the_routes_answer_and_refuse() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=1)
        here.dispatcher.submit("x", WORK, client="=cmd", account="alice")
        (lease,) = peer.connection.leases()
        peer.says(lease.wire_id, "a", done=True)
        await kept.keeper.write()
        _, _, text = await kept.ask("metrics/range", "by=key&range=1h")
        answer = json.loads(text)
        assert answer["fields"][0] == "start_s"
        (series,) = answer["series"]
        assert (series["name"], len(series["rows"])) == ("alice", 1)
        _, _, text = await kept.ask("metrics/range", "from=2026-11-30T22:00:00Z&to=1796083191")
        assert json.loads(text)["step_s"] == 60
        _, headers, table = await kept.ask("usage", "format=csv&month=2026-11&per=day")
        assert headers["content-type"].startswith("text/csv")
        lines = table.split("\r\n")
        assert lines[0].startswith("period,key,user,model,requests,")
        assert lines[1] == "2026-11-30,alice,,,1,0,0,0,0,1,2026-11-30T23:59:50Z"
        _, _, text = await kept.ask("usage")
        assert json.loads(text)["begin"].startswith("2025-")
        assert json.loads(text)["time_zone"] == "UTC"
        for path, query, words in (
            ("metrics/range", "range=5s", "from 60 to"),
            ("metrics/range", "range=200w", "must be from 60"),
            ("metrics/range", "range=x", "a number with its unit"),
            ("metrics/range", "from=1&range=1h", "not both"),
            ("metrics/range", "to=2026-11-30T22:00:00Z", "from is missing"),
            ("metrics/range", "from=yesterday", "must be a moment"),
            ("metrics/range", "from=99999999999", "must be from 60"),
            ("metrics/range", "by=x", "must be one of fleet, deployment"),
            ("metrics/range", "x=1", "'x' is no parameter"),
            ("usage", "month=2026-13", "such as 2026-11"),
            ("usage", "month=2026-11&from=2026-11-01", "not both"),
            ("usage", "from=2026-11-02&to=2026-11-01", "which is after"),
            ("usage", "from=2026-11-1", "must be a day"),
            ("usage", "per=hour", "must be one of day, month, all"),
            ("usage", "&".join(f"a{n}=1" for n in range(9)), "more than 8"),
        ):
            status, _, text = await kept.ask(path, query)
            assert status == 400
            assert words in text


async def test_a_table_makes_no_program_compute() -> None:
    async with world(LIMITS) as here:
        kept = Kept(here)
        peer = here.agent(slots=1)
        here.dispatcher.submit("x", WORK, deployment="default", account="=1+1")
        (lease,) = peer.connection.leases()
        peer.says(lease.wire_id, "a", done=True)
        await kept.keeper.write()
        _, _, table = await kept.ask("usage", "format=csv")
        assert ",'=1+1," in table


async def test_the_end_writes_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with world(LIMITS) as here, trio.open_nursery() as nursery:
        kept = Kept(here, path)
        peer = here.agent(slots=1)
        nursery.start_soon(kept.keeper.run)
        await trio.testing.wait_all_tasks_blocked()
        here.dispatcher.submit("x", WORK, account="alice")
        (lease,) = peer.connection.leases()
        peer.says(lease.wire_id, "a", done=True)
        nursery.cancel_scope.cancel()
    assert not path.with_name("history.db-wal").exists()  # it was closed in order
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT key, requests FROM usage").fetchall() == [("alice", 1)]
