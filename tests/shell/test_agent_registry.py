"""The registry of agents: what is counted, kept and noticed, whatever is lost on the way."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.joining import join_rules
from paddler_trio.balancer.joining.agent_links import OVERLAP_S
from paddler_trio.balancer.joining.agent_registry import GRACE_S, KEPT_S, SAVE_S, AgentRegistry
from paddler_trio.balancer.joining.join_rules import JoinConflictError, JoinRefusedError
from paddler_trio.balancer.joining.stored_agents import UNUSED_LIFE, StoredCredential
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import digest_of, new_secret

HERE = "127.0.0.1"


@attrs.define
class Clock:
    """What the registry takes for the time of day."""

    now: datetime = datetime(2026, 5, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@attrs.define
class World:
    """A registry, and how a balancer that starts again finds it."""

    path: Path
    clock: Clock = attrs.field(factory=Clock)
    registry: AgentRegistry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """As after a crash: only what the file has is left."""
        self.registry = AgentRegistry.read(self.path)
        self.registry.now = self.clock

    async def token(self, *, uses: int = 1, name: str | None = None) -> tuple[str, str]:
        token, secret = await self.registry.make_token(
            ttl=timedelta(hours=1), uses=uses, labels={"gpu": "yes"}, name=name, by="ops"
        )
        return token.id, secret

    async def join(
        self, token: tuple[str, str], secret: str, name: str | None = "gpu"
    ) -> StoredCredential:
        return await self.registry.join(*token, digest=digest_of(secret), name=name, address=HERE)

    async def joined(self, name: str = "gpu") -> AgentCredential:
        secret = new_secret()
        return AgentCredential((await self.join(await self.token(), secret, name)).id, secret)

    def only(self) -> StoredCredential:
        (only,) = self.registry.credentials()
        return only


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "agents.json")


async def test_a_lost_answer_is_asked_for_again_and_counts_once(world: World) -> None:
    token, secret = await world.token(uses=2), new_secret()
    first = await world.join(token, secret)
    world.restart()
    assert await world.join(token, secret) == first
    assert world.registry.tokens()[0].uses_left == 1
    with pytest.raises(JoinConflictError, match="joined already"):
        await world.join(token, new_secret())
    await world.join(token, new_secret(), "other")
    assert world.registry.tokens() == []  # used up
    assert await world.join(token, secret) == first  # its answer can still be asked for
    with pytest.raises(JoinRefusedError, match="used up"):
        await world.join(token, new_secret(), "third")


async def test_a_token_with_one_use_lets_one_in_however_many_ask_at_once(world: World) -> None:
    token = await world.token()
    came_in: list[StoredCredential] = []

    refused = 0
    async with trio.open_nursery() as nursery:

        async def count(name: str) -> None:
            nonlocal refused
            try:
                came_in.append(await world.join(token, new_secret(), name))
            except JoinRefusedError:
                refused += 1

        for number in range(20):
            nursery.start_soon(count, f"gpu-{number}")
    assert (len(came_in), refused) == (1, 19)


@pytest.mark.parametrize("wrong", ["id", "secret", "expired", "revoked"])
async def test_what_opens_nothing(world: World, wrong: str) -> None:
    token_id, secret = await world.token()
    if wrong == "id":
        token_id = "0" * 12
    elif wrong == "secret":
        secret = new_secret()
    elif wrong == "expired":
        world.clock.now += timedelta(hours=1)
    else:
        assert await world.registry.revoke_token(token_id)
        assert not await world.registry.revoke_token(token_id)
    with pytest.raises(JoinRefusedError):
        await world.join((token_id, secret), new_secret())
    assert world.registry.credentials() == []


async def test_a_token_may_name_its_agent(world: World) -> None:
    token = await world.token(name="gpu-7", uses=1)
    with pytest.raises(JoinConflictError, match="'gpu-7', not for 'gpu-8'"):
        await world.join(token, new_secret(), "gpu-8")
    assert (await world.join(token, new_secret(), None)).name == "gpu-7"


async def test_a_credential_opens_until_it_is_revoked_or_long_unused(world: World) -> None:
    shown = await world.joined()
    assert world.registry.find(shown, "10.0.0.9") is not None
    assert world.only().address == "10.0.0.9"
    assert world.registry.find(AgentCredential(shown.id, new_secret()), HERE) is None
    assert world.registry.find(AgentCredential("0" * 12, shown.secret), HERE) is None
    world.clock.now += UNUSED_LIFE - timedelta(seconds=1)
    assert world.registry.find(shown, HERE) is not None
    world.clock.now += UNUSED_LIFE
    assert world.registry.find(shown, HERE) is None
    other = await world.joined("other")
    assert (await world.registry.revoke("other")) is not None
    assert await world.registry.revoke("other") is None
    assert world.registry.find(other, HERE) is None
    world.restart()
    assert world.registry.find(other, HERE) is None
    assert world.registry.guards


async def test_a_link_that_lasts_keeps_its_credential(
    world: World, mock_clock: trio.testing.MockClock
) -> None:
    shown = await world.joined()
    assert world.registry.find(shown, HERE) is not None
    world.clock.now += UNUSED_LIFE - timedelta(seconds=1)
    newer = new_secret()
    replaces = digest_of(shown.secret)
    assert await world.registry.rotate(shown.id, digest_of(newer), replaces=replaces)
    world.clock.now += UNUSED_LIFE - timedelta(seconds=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registry.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(SAVE_S + 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert world.only().id == shown.id
    world.restart()
    assert world.registry.find(AgentCredential(shown.id, newer), HERE) is not None


async def test_revoking_ends_the_links(world: World) -> None:
    shown = await world.joined()
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def link(*, task_status: trio.TaskStatus[None]) -> None:
            with world.registry.link(shown.id, "process", HERE) as opened:
                task_status.started()
                await trio.sleep_forever()
            assert opened.scope.cancelled_caught
            ended.set()

        await nursery.start(link)
        assert shown.id in world.registry.connected()
        await world.registry.revoke("gpu")
        with trio.fail_after(5):
            await ended.wait()
    assert not world.registry.connected()


async def test_two_processes_with_one_credential_are_noticed(
    world: World, mock_clock: trio.testing.MockClock
) -> None:
    shown = await world.joined()

    async def look_after(seconds: float) -> None:
        for _ in range(int(seconds / 5) + 1):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(5.01)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registry.run)
        with world.registry.link(shown.id, "one", "10.0.0.1"):
            await look_after(4 * OVERLAP_S)
            with world.registry.link(shown.id, "one", "10.0.0.1"):  # an instance of it
                await look_after(2 * OVERLAP_S)
            with world.registry.link(shown.id, "two", "10.0.0.1"):  # it was started again
                await look_after(OVERLAP_S / 3)
            assert world.only().suspicious is None
            with world.registry.link(shown.id, "three", "10.0.0.2"):
                await look_after(2 * OVERLAP_S)
        nursery.cancel_scope.cancel()
    assert "10.0.0.1 and 10.0.0.2" in (world.only().suspicious or "")
    world.restart()
    assert world.only().suspicious is not None


async def test_an_old_secret_counts_for_a_moment_and_is_suspicious_then(
    world: World, mock_clock: trio.testing.MockClock
) -> None:
    shown = await world.joined()
    newer = AgentCredential(shown.id, new_secret())
    digest, replaces = digest_of(newer.secret), digest_of(shown.secret)
    assert await world.registry.rotate(shown.id, digest, replaces=replaces)
    assert world.registry.find(shown, HERE) is not None  # the new one was not shown yet
    assert world.registry.find(newer, HERE) is not None
    mock_clock.jump(GRACE_S - 1)
    assert world.registry.find(shown, HERE) is not None
    assert world.only().suspicious is None
    mock_clock.jump(2)
    assert world.registry.find(shown, "10.9.9.9") is None
    assert "10.9.9.9" in (world.only().suspicious or "")
    assert world.registry.find(newer, HERE) is not None  # who has the new one stays
    assert not await world.registry.rotate(
        shown.id, digest_of(new_secret()), replaces=digest_of(shown.secret)
    )


STEPS = st.lists(
    st.sampled_from(
        [
            "rotate answer store",
            "rotate answer",
            "rotate",
            "answer",
            "store",
            "dial",
            "balancer-crashes",
            "agent-crashes",
        ]
    ),
    max_size=12,
).map(lambda parts: " ".join(parts).split())


@given(STEPS)
def test_no_crash_between_the_steps_of_a_rotation_locks_an_agent_out(steps: list[str]) -> None:
    """``secret`` is in the agent's file; a new one waits for its answer, then for the file."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder) / "agents.json")
            shown = await world.joined()
            secret, sent, answered = shown.secret, "", ""
            for step in [*steps, "agent-crashes", "balancer-crashes", "dial"]:
                if step == "rotate":
                    sent, answered = new_secret(), ""
                elif step == "answer" and sent:
                    done = await world.registry.rotate(
                        shown.id, digest_of(sent), replaces=digest_of(secret)
                    )
                    assert done
                    sent, answered = "", sent
                elif step == "store" and answered:
                    secret, answered = answered, ""
                elif step == "agent-crashes":
                    sent = answered = ""
                elif step == "balancer-crashes":
                    world.restart()
                elif step == "dial":
                    assert world.registry.find(AgentCredential(shown.id, secret), HERE) is not None
            assert world.only().suspicious is None

    trio.run(play)


async def test_what_cannot_be_written_has_not_happened(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    world = World(folder / "agents.json")
    token, secret = await world.token(uses=1), new_secret()
    content = world.path.read_bytes()
    world.path.unlink()
    folder.rmdir()
    with pytest.raises(ConfigurationError, match="cannot write"):
        await world.join(token, secret)
    assert world.registry.credentials() == []
    folder.mkdir()
    world.path.write_bytes(content)
    assert (await world.join(token, secret)).name == "gpu"


async def test_there_are_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rules, "MAX_TOKENS", 2)
    monkeypatch.setattr(join_rules, "MAX_CREDENTIALS", 1)
    token = await world.token(uses=2)
    await world.token()
    with pytest.raises(JoinConflictError, match="2 join tokens, the limit is 2"):
        await world.token()
    await world.join(token, new_secret())
    with pytest.raises(JoinConflictError, match="the limit is 1"):
        await world.join(token, new_secret(), "other")


async def test_without_a_file_nothing_is_made(world: World) -> None:
    world.registry.path = None
    with pytest.raises(ConfigurationError, match="keeps no"):
        await world.token()


async def test_no_secret_is_in_the_file_and_only_the_owner_reads_it(world: World) -> None:
    token, secret = await world.token(), new_secret()
    await world.join(token, secret)
    text = world.path.read_text()
    assert token[1] not in text
    assert secret not in text
    assert world.path.stat().st_mode & 0o777 == 0o600


@pytest.fixture(autouse=True)
def _no_file_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


async def test_a_clock_that_was_wrong_costs_no_agent_its_credential(
    world: World, mock_clock: trio.testing.MockClock
) -> None:
    shown = await world.joined()

    async def save() -> None:
        assert world.registry.find(other, HERE) is not None  # which is to be saved
        mock_clock.jump(SAVE_S + 1)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registry.run)
        await trio.testing.wait_all_tasks_blocked()
        right = world.clock.now
        world.clock.now += 4 * UNUSED_LIFE
        other = await world.joined("other")
        await save()
        assert world.registry.find(shown, HERE) is None
        nursery.cancel_scope.cancel()
    world.clock.now = right
    world.restart()
    assert world.registry.find(shown, HERE) is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registry.run)
        await trio.testing.wait_all_tasks_blocked()
        world.clock.now += 2 * UNUSED_LIFE
        await save()
        mock_clock.jump(KEPT_S)
        await save()
        nursery.cancel_scope.cancel()
    world.clock.now = right
    world.restart()
    assert world.registry.find(shown, HERE) is None, "it is forgotten after a day"
    assert world.registry.find(other, HERE) is not None


async def test_the_name_of_a_credential_that_has_expired_is_free(world: World) -> None:
    before = await world.joined()
    world.clock.now += UNUSED_LIFE
    after = await world.joined()
    assert world.registry.find(after, HERE) is not None
    world.restart()
    assert [each.id for each in world.registry.credentials()] == [after.id]
    assert world.registry.find(before, HERE) is None


async def test_a_credential_with_which_an_agent_is_connected_holds_its_name_and_is_kept(
    world: World, mock_clock: trio.testing.MockClock
) -> None:
    """Its link may last longer than a credential may lie unused, or the clock is wrong."""
    shown = await world.joined()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.registry.run)
        with world.registry.link(shown.id, "p1", HERE):
            world.clock.now += 2 * UNUSED_LIFE
            with pytest.raises(JoinConflictError, match="has joined already"):
                await world.joined()
            for number in range(2):
                other = await world.joined(f"other{number}")
                assert world.registry.find(other, HERE) is not None  # which is to be saved
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(KEPT_S + SAVE_S)
                await trio.testing.wait_all_tasks_blocked()
        assert world.registry.find(shown, HERE) is not None
        nursery.cancel_scope.cancel()
    world.restart()
    assert world.registry.find(shown, HERE) is not None
