"""One process takes over from another: over a real socket, both ends in this process."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from paddler_trio.balancer.fleet.state_lock import locked
from paddler_trio.balancer.hot_restart import bequest as bequest_module
from paddler_trio.balancer.hot_restart.bequest import Bequest, BoundPort
from paddler_trio.balancer.hot_restart.handover_channel import HandoverChannel, close_all, connect
from paddler_trio.balancer.hot_restart.handover_messages import Sockets
from paddler_trio.balancer.hot_restart.inheritance import Inheritance
from paddler_trio.balancer.hot_restart.own_successor import successor_command
from paddler_trio.errors import HandoverError, StateDatabaseError
from paddler_trio.net.server.listening import bound_address, listen
from paddler_trio.nursery_tree.state_owner import StateOwner

ADDRESS = "127.0.0.1:0"


@attrs.define(eq=False)
class Running:
    """A balancer that may be taken over from; ``lives`` counts how often its writer was started."""

    bequest: Bequest
    owner: StateOwner
    sockets: list[socket.socket]
    state: Path
    given_to: list[int]
    is_writing: bool = False
    lives: int = 0

    async def write(self) -> None:
        self.lives += 1
        self.is_writing = True
        try:
            await trio.sleep_forever()
        finally:
            self.is_writing = False

    async def until_it_waits(self) -> None:
        """For a successor; what the one before left undone has gone back."""
        with trio.fail_after(50):
            while "waits" not in repr(self.bequest) or not self.is_writing:  # noqa: ASYNC110
                await trio.sleep(0.001)

    async def ask(self) -> Inheritance:
        assert self.bequest.path is not None
        found = await Inheritance.ask(self.bequest.path)
        assert found is not None
        return found


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    state = folder / "state.json"
    given_to: list[int] = []
    sockets = listen(ADDRESS)
    with locked(state) as lock:
        assert lock.descriptor is not None

        def given(pid: int) -> None:
            given_to.append(pid)
            lock.give_up()

        it: Running
        owner = StateOwner({"writer": lambda: it.write()})
        bequest = Bequest(
            folder / "state.json.handover",
            {"inference": BoundPort(ADDRESS, sockets)},
            {"state": lock.descriptor},
            given,
            lambda: 7,
        )
        it = Running(bequest, owner, sockets, state, given_to)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.run)
            nursery.start_soon(bequest.run, owner)
            await wait_all_tasks_blocked()
            yield it
            nursery.cancel_scope.cancel()
    for each in sockets:
        each.close()


async def test_sockets_locks_and_turns_pass_in_order_and_nothing_is_free_in_between(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as old:
        heir = await old.ask()
        assert heir.take_port("inference", "127.0.0.1:1") is None, "another address is wanted"
        mine = heir.take_port("inference", ADDRESS)
        assert mine is not None
        assert bound_address(mine[0]) == bound_address(old.sockets[0])
        assert old.is_writing
        await heir.take_state()
        assert not old.is_writing
        with pytest.raises(StateDatabaseError, match="another balancer"), locked(old.state):
            pass
        with locked(old.state, inherited=heir.take_lock("state")):
            assert old.given_to == [], "until it is ready everything can go back"
            async with trio.open_nursery() as nursery:
                steps: list[str] = []

                async def take() -> None:
                    await heir.ready()
                    steps.append("agents")
                    await heir.wait_all()
                    steps.append("all")

                nursery.start_soon(take)
                await old.bequest.given.wait()
                await wait_all_tasks_blocked(0.01)
                assert steps == []
                old.bequest.agents_may_come.set()
                await wait_all_tasks_blocked(0.01)
                assert steps == ["agents"]
                old.bequest.all_may_come.set()
            for each in old.sockets:
                each.close()
            with socket.create_connection(mine[0].getsockname()[:2]):
                pass  # the queue of the socket is still there
            with pytest.raises(StateDatabaseError, match="another balancer"), locked(old.state):
                pass
        left: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heir.wait_end, left.append)
            await wait_all_tasks_blocked(0.01)
            assert left == [7]
            nursery.cancel_scope.cancel()
        mine[0].close()
        heir.close()


@pytest.mark.parametrize("when", ["asked", "has the state"])
async def test_a_successor_that_dies_before_it_is_ready_changes_nothing(
    tmp_path: Path, when: str
) -> None:
    async with running(tmp_path) as old:
        for life in (1, 2):
            heir = await old.ask()
            if when == "has the state":
                await heir.take_state()
                assert not old.is_writing
            heir.close()
            await old.until_it_waits()
            assert old.is_writing
            assert old.lives == (1 if when == "asked" else life + 1)
            assert old.given_to == []
            with pytest.raises(StateDatabaseError, match="another balancer"), locked(old.state):
                pass
        heir = await old.ask()
        await heir.take_state()
        old.bequest.agents_may_come.set()
        await heir.ready()
        assert len(old.given_to) == 1
        heir.close()


async def test_one_that_takes_too_long_is_refused_and_the_state_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bequest_module, "READY_S", 0.02)
    async with running(tmp_path) as old:
        heir = await old.ask()
        await heir.take_state()
        with pytest.raises(HandoverError, match="too long"):
            await heir.channel.receive()
        await old.until_it_waits()
        assert old.is_writing
        heir.close()


@pytest.mark.parametrize("when", ["before it is asked", "before the successor is ready"])
async def test_a_balancer_that_is_stopping_hands_over_to_nobody(tmp_path: Path, when: str) -> None:
    async with running(tmp_path) as old:
        if when == "before it is asked":
            old.bequest.close()
            with pytest.raises(HandoverError, match="this balancer is stopping"):
                await old.ask()
        else:
            heir = await old.ask()
            await heir.take_state()
            old.bequest.close()
            with pytest.raises(HandoverError, match="this balancer is stopping"):
                await heir.ready()
            heir.close()
        await old.until_it_waits()
        assert old.given_to == []
        assert not old.bequest.given.is_set()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b'{"TakeOver":{"protocol":9,"program":"x"}}', "speaks version 9"),
        (b'{"GiveState":{}}', "sent GiveState, and not TakeOver"),
        (b"rubbish", "no message of ours"),
    ],
)
async def test_what_is_no_successor_is_told_so_and_the_balancer_goes_on(
    tmp_path: Path, sent: bytes, reason: str
) -> None:
    async with running(tmp_path) as old:
        assert old.bequest.path is not None
        stranger = await connect(old.bequest.path)
        assert stranger is not None
        with stranger:
            await stranger.socket.send(sent)
            with pytest.raises(HandoverError, match=reason):
                await stranger.receive()
        assert old.is_writing
        (await old.ask()).close()


async def test_the_socket_is_its_owners_alone_lies_in_any_folder_and_goes_with_its_process(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    async with running(folder) as old:
        path = old.bequest.path
        assert path is not None
        assert len(str(path)) > 108
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (await old.ask()).close()
    assert not path.exists()
    assert await Inheritance.ask(path) is None, "nobody is there: one just starts"


async def test_sockets_that_nobody_takes_are_closed_with_what_was_inherited(tmp_path: Path) -> None:
    async with running(tmp_path) as old:
        heir = await old.ask()
        mine = heir.ports["inference"].sockets[0]
        heir.close()
        assert mine.fileno() == -1


async def test_a_lock_of_another_state_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as old:
        heir = await old.ask()
        await heir.take_state()
        other = tmp_path / "other.json"
        with (
            pytest.raises(StateDatabaseError, match=r"has another state than .*other\.json"),
            locked(other, inherited=heir.take_lock("state")),
        ):
            pass
        heir.close()


async def test_descriptors_come_with_their_message_and_malformed_ones_are_refused() -> None:
    ours, theirs = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with HandoverChannel(ours) as here, HandoverChannel(theirs) as there:
        await there.send(Sockets(()), [theirs.fileno()])
        message, descriptors = await here.receive()
        assert message == Sockets(())
        assert [socket.socket(fileno=each).detach() for each in descriptors] == descriptors
        assert len(descriptors) == 1
        close_all(descriptors)
        await there.socket.send(b'{"Sockets":{"services":[["a"]]}}')
        with pytest.raises(HandoverError, match="no message of ours"):
            await here.receive()
        there.socket.close()
        assert await here.receive() == (None, [])


def test_a_successor_is_the_same_command_line_once_more() -> None:
    once = successor_command("/bin/python", ["-m", "paddler_trio", "balancer"])
    assert once == ["/bin/python", "-m", "paddler_trio", "balancer", "--take-over"]
    assert successor_command("/bin/python", once[1:]) == once
