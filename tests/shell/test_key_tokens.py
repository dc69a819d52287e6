"""Tokens are charged to the key of a request when it ends, and outlive a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing
from dispatch_world import WORK, World, world

from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.keys.api_keys import KeyFile, KeyScope, StoredKey, write_key_file
from paddler_trio.balancer.keys.key_accounts import KeyAccounts, KeyUsageFile
from paddler_trio.balancer.keys.key_limiter import KeyTokens
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.dispatch_observer import Observers
from paddler_trio.nursery_tree.request import Request
from paddler_trio.wire.paddler.request_params import L2, GenerateEmbeddingBatchParams
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import encode_work

DAY_S = 86_400.0
TEXTS = encode_work(GenerateEmbeddingBatchParams((), L2()))
LIMITS = DispatchLimits(max_buffered=6, buffered_timeout_s=10, item_timeout_s=30)


class Days:
    """A clock of days, at noon."""

    def __init__(self) -> None:
        self.day = 20_000

    def __call__(self) -> float:
        return (self.day + 0.5) * DAY_S


def accounts_of(folder: Path, days: Days) -> KeyAccounts:
    path = folder / "keys.json"
    scopes = frozenset({KeyScope.INFERENCE})
    key = StoredKey.of("pt-alice", name="alice", scopes=scopes, created="")
    write_key_file(path, KeyFile().having(key))
    return KeyAccounts(KeyRing.read(path), days)


def charged(here: World, accounts: KeyAccounts) -> None:
    activity = RequestActivity()
    here.dispatcher.observers = Observers((activity, KeyTokens(accounts, activity.finished)))


def submit(here: World, name: str, account: str = "alice") -> Request:
    return here.dispatcher.submit(name, WORK, account=account)


def prompt(tokens: int) -> PromptStages:
    return PromptStages(tokens=tokens, cached=0, template_ms=1, wait_ms=1, prefill_ms=1)


async def test_a_request_is_charged_once_with_its_prompt_and_what_was_written(
    tmp_path: Path,
) -> None:
    accounts = accounts_of(tmp_path, Days())
    async with world(LIMITS) as here:
        charged(here, accounts)
        peer = here.agent(slots=4)
        requests = [submit(here, name) for name in ("whole", "stopped", "moved")]
        others = submit(here, "anonymous", account="")
        whole, stopped, moved, free = (lease.wire_id for lease in peer.connection.leases())
        peer.lease(whole).report_prompt(prompt(9))
        peer.says(whole, "a", "b", done=True)
        assert accounts.tokens_today() == {"alice": 11}
        peer.lease(stopped).report_prompt(prompt(5))
        peer.says(stopped, "a")
        requests[1].stop()
        peer.lease(stopped).deliver("GeneratedToken", [], ends=True)
        assert accounts.tokens_today() == {"alice": 17}
        peer.says(free, "a", "b", "c", done=True)
        assert others.is_over
        peer.lease(moved).report_prompt(prompt(7))
        peer.says(moved, "a")
        other = here.agent(slots=1)
        here.dispatcher.leave(peer.connection)
        (again,) = other.connection.leases()
        other.lease(again.wire_id).report_prompt(prompt(8))  # it is computed a second time
        other.says(again.wire_id, "b", done=True)
        assert accounts.tokens_today() == {"alice": 17 + 7 + 2}


async def test_texts_that_are_embedded_are_charged_as_they_were_reported(tmp_path: Path) -> None:
    accounts = accounts_of(tmp_path, Days())
    async with world(LIMITS) as here:
        charged(here, accounts)
        peer = here.agent(slots=1)
        here.dispatcher.submit("texts", TEXTS, account="alice")
        (lease,) = peer.connection.leases()
        lease.deliver("Embedding", [{"Embedding": {}}, {"Embedding": {}}], ends=False)
        lease.deliver("Embedding", [{"Usage": {"prompt_tokens": 12}}, "Done"], ends=True)
        assert accounts.tokens_today() == {"alice": 12}


async def test_what_was_used_today_outlives_a_restart(tmp_path: Path) -> None:
    days = Days()
    path = tmp_path / "state.json.key-usage"
    accounts = accounts_of(tmp_path, days)
    file = KeyUsageFile(path, accounts)
    file.load()
    await file.write()
    assert not path.exists()  # nothing has changed
    accounts.charge("alice", 5)
    await file.write()
    assert json.loads(path.read_text())["tokens"] == {"alice": 5}
    assert path.stat().st_mode & 0o777 == 0o600
    async with trio.open_nursery() as tree:
        tree.start_soon(file.run)
        await trio.testing.wait_all_tasks_blocked()
        accounts.charge("alice", 2)
        tree.cancel_scope.cancel()
    after = accounts_of(tmp_path, days)
    KeyUsageFile(path, after).load()
    assert after.tokens_today() == {"alice": 7}
    days.day += 1
    tomorrow = accounts_of(tmp_path, days)
    KeyUsageFile(path, tomorrow).load()
    assert tomorrow.tokens_today() == {}
    assert tomorrow.tokens_this_month() == {"alice": 7}
    days.day += 31
    next_month = accounts_of(tmp_path, days)
    KeyUsageFile(path, next_month).load()
    assert next_month.tokens_this_month() == {}


def test_a_file_of_an_older_version_has_no_month(tmp_path: Path) -> None:
    path = tmp_path / "usage"
    path.write_text('{"version": 1, "day": 20000, "tokens": {"alice": 3, "gone": 4}}')
    accounts = accounts_of(tmp_path, Days())
    KeyUsageFile(path, accounts).load()
    assert (accounts.tokens_today(), accounts.tokens_this_month()) == ({"alice": 3}, {})


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 2, "day": 20000, "tokens": {}}',
        '{"version": 1, "day": "x", "tokens": {}}',
        '{"version": 1, "day": 20000, "tokens": {"alice": -1}}',
        '{"version": 1, "day": 20000, "tokens": {}, "month": 657, "month_tokens": {"alice": 0.5}}',
        "[" * 100_000,
        "x" * 300_000,
    ],
)
async def test_a_damaged_file_is_a_warning_and_counting_begins_anew(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "usage"
    path.write_text(text)
    accounts = accounts_of(tmp_path, Days())
    with structlog.testing.capture_logs() as logged:
        KeyUsageFile(path, accounts).load()
    assert [each["log_level"] for each in logged] == ["warning"]
    assert accounts.tokens_today() == {}


async def test_a_disk_that_refuses_is_an_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = accounts_of(tmp_path, Days())
    file = KeyUsageFile(tmp_path / "usage", accounts)

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            accounts.charge("alice", 1)
            await file.write()
    reason = f"cannot write {tmp_path}/usage: No space left on device"
    assert [each["reason"] for each in logged] == [reason]
