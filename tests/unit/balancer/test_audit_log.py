"""The audit log: what a record has, what it never has, and a disk that fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Event

import pytest
import structlog
import trio
import trio.testing

from exchanges import exchange_for
from paddler_trio.balancer.keys import audit_log
from paddler_trio.balancer.keys.audit_log import (
    MAX_ENTRIES,
    MAX_REFUSALS,
    REFUSALS_BURST,
    REFUSALS_PER_S,
    AuditFile,
    AuditLog,
    AuditRoutes,
    append_lines,
)
from paddler_trio.balancer.keys.audit_trail import audited
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.server.asgi import HttpProblem, Message, send_text
from paddler_trio.net.server.exchange import Exchange, Identity, Params
from paddler_trio.net.server.router import Router

SCOPE = {"client": ("10.0.0.7", 4711)}
OPS = Identity("ops")
ASKED = exchange_for(SCOPE, identity=OPS)


def entries(log: AuditLog) -> list[dict[str, object]]:
    return [json.loads(text) for text in log.after(0)]


async def test_a_record_says_who_did_what_from_where() -> None:
    log = AuditLog()
    with structlog.testing.capture_logs() as logged:
        log.record(ASKED, "fleet applied", "coder", before="aa", after="bb", revision=7, note="x")
    (entry,) = entries(log)
    time = entry.pop("time")
    assert entry == {
        "seq": 1,
        "who": "ops",
        "source": "10.0.0.7",
        "action": "fleet applied",
        "target": "coder",
        "before": "aa",
        "after": "bb",
        "revision": 7,
        "outcome": "done",
        "details": {"note": "x"},
    }
    assert str(time).endswith("Z")
    assert (logged[0]["who"], logged[0]["action"]) == ("ops", "fleet applied")
    log.record(exchange_for({"client": None}), "sign-in", who="eve")
    assert [entry["source"] for entry in entries(log)] == ["10.0.0.7", "unknown"]
    assert entries(log)[1]["who"] == "eve"


async def test_a_record_is_bounded_plain_and_without_secrets() -> None:
    log = AuditLog()
    secret = "pt-" + "s" * 43
    fields = {f"field{number}": "v" * 10_000 for number in range(20)}
    log.record(ASKED, "a" * 10_000, f"key {secret}\n\x1b[31m", outcome=secret, **fields)
    (text,) = log.after(0)
    assert len(text) < 4000
    assert b"ssss" not in text
    assert b"\\u001b" not in text
    assert "\\x1b[31m" in str(entries(log)[0]["target"])


async def test_refusals_push_out_nothing_that_was_done() -> None:
    log = AuditLog()
    log.record(ASKED, "key made", "shop")
    for number in range(MAX_REFUSALS + 50):
        log.record(ASKED, "sign-in", str(number), outcome="refused: 401")
    kept = entries(log)
    assert (kept[0]["action"], len(kept)) == ("key made", MAX_REFUSALS + 1)
    for number in range(MAX_ENTRIES + 5):
        log.record(ASKED, "agent drained", str(number))
    kept = entries(log)
    assert len(kept) == MAX_ENTRIES + MAX_REFUSALS
    assert [entry["seq"] for entry in kept] == sorted(int(str(entry["seq"])) for entry in kept)


async def test_a_handler_that_records_nothing_is_recorded_by_its_method_and_path() -> None:
    log = AuditLog()

    async def handler(exchange: Exchange, params: Params) -> None:
        if exchange.method == "PUT" and params.get("name") == "known":
            exchange.audit.record(exchange, "thing changed", "known")
        if params.get("name") == "bad":
            raise HttpProblem(409, "not now")
        await send_text(exchange.send, 200, "ok")

    routes = Router()
    for method in ("GET", "PUT"):
        routes.http(method, "/things/{name}", handler)
    app = audited(routes, log, changes=lambda exchange: not exchange.path.endswith("dry"))

    async def send(message: Message) -> None:
        pass

    for method, path in (
        ("PUT", "/things/known"),
        ("PUT", "/things/other"),
        ("PUT", "/things/bad"),
        ("PUT", "/things/dry"),
        ("GET", "/things/known"),
        ("PUT", "/elsewhere"),
    ):
        scope = {**SCOPE, "method": method, "path": path}
        await app(exchange_for(scope, send=send, identity=OPS))
    assert [(entry["action"], entry["outcome"]) for entry in entries(log)] == [
        ("thing changed", "done"),
        ("PUT /things/other", "done"),
        ("PUT /things/bad", "refused: 409"),
    ]


async def test_the_route_shows_what_came_after() -> None:
    log = AuditLog()
    for number in range(3):
        log.record(ASKED, "agent drained", str(number))
    routes = Router()
    AuditRoutes(log).add_to(routes)
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    scope = {**SCOPE, "path": "/api/v2/audit", "query_string": b"after=1"}
    await routes(exchange_for(scope, send=send, identity=OPS))
    answer = json.loads(said[1]["body"])
    assert [entry["seq"] for entry in answer["entries"]] == [2, 3]
    assert answer["file"] is None


# ---------------------------------------------------------------------------------- the file


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_records_are_on_the_disk_also_those_of_the_last_moment(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog.of(path)
    assert log.file is not None
    assert path.stat().st_mode & 0o777 == 0o600
    log.record(ASKED, "key made", "one")
    await log.file.write_pending()
    assert [line["target"] for line in lines_of(path)] == ["one"]
    async with trio.open_nursery() as tree:
        tree.start_soon(log.file.run)
        await trio.testing.wait_all_tasks_blocked()
        log.record(ASKED, "key made", "two")
        tree.cancel_scope.cancel()
    assert [line["target"] for line in lines_of(path)] == ["one", "two"]


async def test_a_full_disk_stops_nothing_and_what_was_dropped_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    monkeypatch.setattr(audit_log, "MAX_PENDING", 100)
    log = AuditLog.of(path)
    file = log.file
    assert file is not None
    is_full = True
    write = os.write

    def write_or_fail(descriptor: int, data: memoryview) -> int:
        if is_full:
            write(descriptor, bytes(data[:10]))
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(audit_log.os, "write", write_or_fail)
    with structlog.testing.capture_logs() as logged:
        for number in range(105):
            log.record(ASKED, "agent drained", str(number))
        for _ in range(3):
            await file.write_pending()
            assert (file.problem, file.dropped) == ("No space left on device", 5)
            assert path.read_bytes() == b""  # no half of a line
        is_full = False
        await file.write_pending()
        await file.write_pending()
    assert file.problem is None
    assert [line["action"] for line in lines_of(path)[-2:]] == [
        "agent drained",
        "audit records dropped",
    ]
    assert lines_of(path)[-1]["details"] == {"count": 5}
    assert len(lines_of(path)) == 101
    errors = [each for each in logged if each["log_level"] == "error"]
    assert len(errors) == 1  # once, not at every retry
    assert any(each["event"] == "the audit log is written again" for each in logged)


async def test_refusals_fill_no_file(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog.of(path)
    assert log.file is not None
    with structlog.testing.capture_logs() as logged:
        for _ in range(REFUSALS_BURST + 500):
            log.record(ASKED, "sign-in", outcome="refused: 401")
    assert [each["log_level"] for each in logged].count("info") == REFUSALS_BURST
    log.record(ASKED, "key made", "shop")
    await trio.sleep(1 / REFUSALS_PER_S)
    log.record(ASKED, "sign-in", "later", outcome="refused: 401")
    append_lines(path, log.file._pending)
    lines = lines_of(path)
    assert len(lines) == REFUSALS_BURST + 2
    assert [line["action"] for line in lines[-2:]] == ["key made", "sign-in"]


async def test_a_slow_disk_does_not_hold_up_the_event_loop(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = Event()
    monkeypatch.setattr(audit_log.os, "fsync", lambda descriptor: may_go_on.wait(10))
    log = AuditLog.of(tmp_path / "audit.log")
    assert log.file is not None
    nursery.start_soon(log.file.run)
    try:
        log.record(ASKED, "key made", "slow")
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.fail_after(1):
            await trio.sleep(0.01)
    finally:
        may_go_on.set()
    nursery.cancel_scope.cancel()


def test_a_long_file_moves_up_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 20)
    path = tmp_path / "audit.log"
    for number in range(8):
        append_lines(path, [b"line %d, long" % number])
    files = {file.name: file.read_text().strip() for file in tmp_path.iterdir()}
    assert files == {
        "audit.log": "line 7, long",
        "audit.log.1": "line 6, long",
        "audit.log.2": "line 5, long",
        "audit.log.3": "line 4, long",
        "audit.log.4": "line 3, long",
    }


def test_a_file_that_cannot_move_up_costs_no_descriptor_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second close of the same number may be that of a client's socket by then."""
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 20)
    path = tmp_path / "audit.log"
    append_lines(path, [b"line 0, long"])
    (tmp_path / "audit.log.3").touch()
    (tmp_path / "audit.log.4").mkdir()  # no file can take its place, not even for root
    closed: list[int] = []
    close = os.close

    def noted_close(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    monkeypatch.setattr(audit_log.os, "close", noted_close)
    with pytest.raises(OSError, match="Is a directory"):
        append_lines(path, [b"line 1, long"])
    assert len(set(closed)) == len(closed)
    assert path.read_bytes() == b"line 0, long\n"


def test_a_line_does_not_go_behind_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"seq": 1}\n{"seq"')
    append_lines(path, [b'{"seq": 3}', b'{"seq": 4}'])
    assert path.read_bytes() == b'{"seq": 1}\n{"seq"\n{"seq": 3}\n{"seq": 4}\n'


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file or directory; give --audit-log"):
        AuditLog.of(tmp_path / "none" / "audit.log")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="cannot write the audit log"):
        AuditLog.of(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="cannot write the audit log"):
        AuditFile(tmp_path / "pipe", lambda count: b"").check()
