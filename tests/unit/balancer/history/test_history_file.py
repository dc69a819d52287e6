"""The history file: what is written is added up, whoever writes it, and damage is survived."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.balancer.history.history_file import HistoryError, HistoryFile, SeriesKey
from paddler_trio.balancer.history.history_queries import (
    MAX_SERIES,
    days_of_month,
    series_of,
    usage_of,
)
from paddler_trio.scheduler.limits.periods import DAY_S, day_of, month_from
from paddler_trio.scheduler.metering.time_samples import FIELDS, OTHER, Sample
from paddler_trio.scheduler.metering.time_steps import STEPS, Plan, plan_for
from paddler_trio.scheduler.metering.usage import UsageCount, UsageKey

MIB = 1024**2
NOVEMBER_30 = 1_796_083_190
"""2026-11-30T23:59:50Z."""
KEYS = ("a", "b")
FIELD = {name: 1 + place for place, name in enumerate(FIELDS)}


def key_rows(file: HistoryFile, plan: Plan) -> dict[str, list[tuple[int | float | None, ...]]]:
    return {each.name: [*each.rows] for each in series_of(file, plan, "key")}


class Writers(RuleBasedStateMachine):
    """Two processes write to one file, are killed and started again, and clocks go anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "history.db"
        self.files = [HistoryFile(self.path, 64 * MIB) for _ in range(2)]
        self.now = NOVEMBER_30
        self.samples: Counter[tuple[int, str]] = Counter()
        self.levels: dict[str, int] = {}
        self.usage: Counter[tuple[int, str]] = Counter()
        self.last_s: dict[str, int] = {}

    def teardown(self) -> None:
        for file in self.files:
            file.close()
        self.folder.cleanup()

    @rule(seconds=st.integers(-3 * 3600, 3 * 3600) | st.sampled_from([1, 9, 10, 60]))
    def time_goes(self, seconds: int) -> None:
        self.now = min(max(self.now + seconds, NOVEMBER_30 - 3600), NOVEMBER_30 + 4 * 3600)

    @rule(
        who=st.integers(0, 1),
        of=st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(0, 5), st.integers(0, 9)), max_size=4
        ),
    )
    def write(self, who: int, of: list[tuple[str, int, int]]) -> None:
        samples: dict[SeriesKey, Sample] = {}
        usage: dict[UsageKey, UsageCount] = {}
        start = self.now // 10 * 10
        for key, tokens, busy in of:
            more = Sample(requests=1, generated_tokens=tokens, busy_max=busy)
            more.ttft.add(0.5)
            samples.setdefault(SeriesKey(start, "key", key), Sample()).include(more)
            used = UsageCount(requests=1, generated_tokens=tokens, last_s=self.now)
            at = UsageKey(day_of(start), key, "", "m")
            usage.setdefault(at, UsageCount()).include(used)
            self.samples[start, key] += tokens
            self.levels[key] = max(self.levels.get(key, 0), busy)
            self.usage[day_of(start), key] += tokens
            self.last_s[key] = max(self.last_s.get(key, 0), self.now)
        self.files[who].write(samples, usage, self.now)

    @rule(who=st.integers(0, 1), in_order=st.booleans())
    def restart(self, who: int, in_order: bool) -> None:
        """One that is killed closes nothing: what it wrote is there all the same."""
        if in_order:
            self.files[who].close()
        self.files[who] = HistoryFile(self.path, 64 * MIB)

    @invariant()
    def every_step_adds_up_to_what_was_counted(self) -> None:
        for step in STEPS:
            plan = Plan(step.step_s, step.step_s, NOVEMBER_30 - 2 * DAY_S, NOVEMBER_30 + 2 * DAY_S)
            found = key_rows(self.files[0], plan)
            assert found.keys() == self.levels.keys()
            for key, rows in found.items():
                total = sum(number for (_, of), number in self.samples.items() if of == key)
                assert sum(row[FIELD["generated_tokens"]] or 0 for row in rows) == total
                assert max(row[FIELD["busy_max"]] or 0 for row in rows) == self.levels[key]
                middle = [row[FIELD["ttft_p50_ms"]] for row in rows]
                assert middle == [pytest.approx(500, rel=0.05)] * len(rows)
                starts = [row[0] for row in rows]
                assert starts == sorted(set(starts))
                assert all(isinstance(at, int) and at % step.step_s == 0 for at in starts)

    @invariant()
    def usage_is_that_of_each_day_and_month(self) -> None:
        everything = range(day_of(NOVEMBER_30) + 10)
        by_day = usage_of(self.files[1], everything, "key", "day")
        found = {(row.period, row.key): row.generated_tokens for row in by_day}
        dates = {day_of(NOVEMBER_30): "2026-11-30", day_of(NOVEMBER_30) + 1: "2026-12-01"}
        assert found == {(dates[day], key): number for (day, key), number in self.usage.items()}
        december = month_from("2026-12")
        assert december is not None
        for row in usage_of(self.files[1], days_of_month(december), "key", "month"):
            assert row.period == "2026-12"
            assert row.generated_tokens == self.usage[day_of(NOVEMBER_30) + 1, row.key or ""]
        in_all = usage_of(self.files[1], everything, "key", "all")
        assert {row.key: row.last_s for row in in_all} == self.last_s


TestWriters = Writers.TestCase


def one_write(file: HistoryFile, now: int = NOVEMBER_30, names: int = 1) -> None:
    samples = {}
    for number in range(names):
        sample = Sample(requests=1 + number, prompt_tokens=number)
        sample.queue.add(0.01 * (1 + number))
        samples[SeriesKey(now // 10 * 10, "key", f"k{number}")] = sample
    usage = {UsageKey(day_of(now), "k0", "", "m"): UsageCount(requests=1, last_s=now)}
    file.write(samples, usage, now)


@pytest.mark.parametrize("damage", ["text", "middle", "half"])
def test_a_damaged_file_is_set_aside_and_said_and_a_new_one_begun(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "history.db"
    file = HistoryFile(path, 64 * MIB)
    for number in range(200):
        one_write(file, NOVEMBER_30 + 10 * number, names=20)
    file.close()
    whole = path.read_bytes()
    if damage == "text":
        path.write_text("these are no figures\n" * 1000)
    elif damage == "half":
        path.write_bytes(whole[: len(whole) // 2 + 17])
    else:
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    again = HistoryFile(path, 64 * MIB)
    one_write(again)
    assert again.set_aside == tmp_path / "history.db.corrupt"
    assert again.set_aside.exists()
    assert usage_of(again, range(30_000), "key", "all")[0].requests == 1
    again.set_aside.unlink()
    one_write(again)
    assert again.set_aside is None


def test_damage_while_it_runs_loses_the_file_and_not_the_balancer(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    file = HistoryFile(path, 64 * MIB)
    for number in range(100):
        one_write(file, NOVEMBER_30 + 10 * number, names=20)
    with file.using() as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as raw:
        raw.write(b"\xff" * path.stat().st_size)
    with file.using() as database:
        database.execute("PRAGMA shrink_memory")  # what it remembers is not damaged
    with pytest.raises(HistoryError, match="set aside"):
        one_write(file, NOVEMBER_30 + 2000, names=20)
    assert (tmp_path / "history.db.corrupt").exists()
    one_write(file, NOVEMBER_30 + 2000, names=20)
    file.close()


def test_a_file_that_is_moved_away_or_replaced_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    file = HistoryFile(path, 64 * MIB)
    one_write(file)
    path.rename(tmp_path / "kept.db")
    one_write(file)
    assert path.exists()
    assert usage_of(file, range(30_000), "key", "all")[0].requests == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
        newer.execute("CREATE TABLE other (a)")
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="newer version"):
        one_write(HistoryFile(path, MIB))
    assert path.read_bytes() == before


def test_links_and_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder.db").mkdir()
    os.mkfifo(tmp_path / "fifo.db")
    for name in ("link.db", "folder.db", "fifo.db", "missing/x.db"):
        with pytest.raises(HistoryError):
            one_write(HistoryFile(tmp_path / name, MIB))
    assert not (tmp_path / "elsewhere").exists()


def test_its_size_is_bounded_and_usage_is_what_goes_last(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    file = HistoryFile(path, MIB)
    for number in range(250):
        one_write(file, NOVEMBER_30 + 10 * number, names=64)
    log_bytes = path.with_name("history.db-wal").stat().st_size
    assert path.stat().st_size <= MIB
    assert log_bytes <= 8 * MIB
    (used,) = usage_of(file, range(30_000), "key", "all")
    assert used.requests == 250
    plan = Plan(600, 600, NOVEMBER_30 - 600, NOVEMBER_30 + 3000)
    assert key_rows(file, plan)  # the finest go first
    file.close()


def test_what_is_old_goes(tmp_path: Path) -> None:
    file = HistoryFile(None, 64 * MIB)
    one_write(file, NOVEMBER_30)
    kept = []
    for days in (0.1, 0.3, 3, 31, 399, 402):
        later = NOVEMBER_30 + int(days * DAY_S)
        one_write(file, later)
        plans = [Plan(s.step_s, s.step_s, 0, NOVEMBER_30 // DAY_S * DAY_S + DAY_S) for s in STEPS]
        old = [
            sum(row[0] <= NOVEMBER_30 for row in key_rows(file, plan).get("k0", []) if row[0])
            for plan in plans
        ]
        kept.append([bool(number) for number in old])
    assert kept == [
        [True, True, True, True, True],
        [False, True, True, True, True],
        [False, False, True, True, True],
        [False, False, False, True, True],
        [False, False, False, True, True],
        [False, False, False, False, False],
    ]
    assert {row.period for row in usage_of(file, range(60_000), "key", "month")} == {
        "2026-12",
        "2028-01",
    }


def test_of_many_series_the_busiest_are_named_and_the_rest_is_one() -> None:
    file = HistoryFile(None, 64 * MIB)
    one_write(file, names=12)
    plan = plan_for(NOVEMBER_30 - 600, NOVEMBER_30 + 10, NOVEMBER_30 + 10)
    found = series_of(file, plan, "key")
    names = [each.name for each in found]
    assert names == [f"k{number}" for number in range(11, 11 - MAX_SERIES, -1)] + [OTHER]
    assert [each.is_other for each in found] == [False] * MAX_SERIES + [True]
    assert found[-1].rows[0][FIELD["requests"]] == 1 + 2 + 3 + 4
    assert found[-1].rows[0][FIELD["queue_p95_ms"]] is None
    assert [each.name for each in series_of(file, plan, "key", "k0")] == ["k0"]
    assert series_of(file, plan, "key", "nobody") == []
    assert series_of(file, plan, "agent") == []


def test_a_full_disk_fails_a_write_whole_and_the_next_one_is_whole(tmp_path: Path) -> None:
    """No file may grow beyond its size of now: the system says so, as of a disk without room."""
    path = tmp_path / "history.db"
    file = HistoryFile(path, 64 * MIB)
    one_write(file, names=20)
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        for number in range(3):
            with pytest.raises(HistoryError):
                one_write(file, NOVEMBER_30 + 10 * number, names=64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert file.set_aside is None
    (used,) = usage_of(file, range(30_000), "key", "all")
    assert used.requests == 1
    one_write(file, names=20)
    (used,) = usage_of(file, range(30_000), "key", "all")
    assert used.requests == 2
    file.close()
    (used,) = usage_of(HistoryFile(path, 64 * MIB), range(30_000), "key", "all")
    assert used.requests == 2
