"""An agent's secret is replaced once a day, and only after the balancer has its hash."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.agent.link.credential_rotation import (
    AGAIN_S,
    ANSWER_S,
    LIFE_S,
    CredentialRotation,
)
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import digest_of, new_id, new_secret
from paddler_trio.wire.trio.upstream_messages import Rotate


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credential"
    path.write_text(AgentCredential(new_id(), new_secret()).render() + "\n")
    return path


def stored(file: Path) -> AgentCredential:
    found = AgentCredential.parse(file.read_text().strip())
    assert found is not None
    return found


def empty(file: Path) -> None:
    file.write_text("")


def make_old(file: Path) -> None:
    old_s = time.time() - 2 * LIFE_S
    os.utime(file, (old_s, old_s))


@asynccontextmanager
async def running(rotation: CredentialRotation) -> AsyncIterator[list[Rotate]]:
    sent: list[Rotate] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rotation.run, sent.append)
        yield sent
        nursery.cancel_scope.cancel()


async def until(is_so: object) -> None:
    with trio.fail_after(10):
        while not is_so():  # type: ignore[operator]
            await trio.lowlevel.checkpoint()


async def test_a_young_secret_stays(file: Path) -> None:
    async with running(CredentialRotation(file)) as sent:
        await wait_all_tasks_blocked(0.05)
        assert sent == []


async def test_an_old_one_is_replaced_once_the_balancer_has_the_new_one(file: Path) -> None:
    make_old(file)
    before = stored(file)
    rotation = CredentialRotation(file)
    async with running(rotation) as sent:
        await until(lambda: sent)
        assert sent[0].replaces == digest_of(before.secret).hex()
        rotation.confirmed("0" * 64)  # of some other secret
        await wait_all_tasks_blocked(0.05)
        assert stored(file) == before
        rotation.confirmed(sent[0].sha256)
        await until(lambda: stored(file) != before)
        assert stored(file).id == before.id
        assert digest_of(stored(file).secret).hex() == sent[0].sha256
        await wait_all_tasks_blocked(0.05)
        assert len(sent) == 1


async def test_without_an_answer_the_old_one_stays_and_it_is_tried_again(
    file: Path, mock_clock: MockClock
) -> None:
    make_old(file)
    before = stored(file)
    rotation = CredentialRotation(file)
    async with running(rotation) as sent:
        await until(lambda: sent)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(ANSWER_S + 1)
        await wait_all_tasks_blocked(0.05)
        rotation.confirmed(sent[0].sha256)  # too late
        mock_clock.jump(AGAIN_S + 1)
        await until(lambda: len(sent) == 2)
        assert stored(file) == before
        assert sent[1].sha256 != sent[0].sha256


async def test_a_file_that_cannot_be_read_is_left_alone(file: Path) -> None:
    empty(file)
    make_old(file)
    async with running(CredentialRotation(file)) as sent:
        await wait_all_tasks_blocked(0.05)
        assert sent == []
