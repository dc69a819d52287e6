"""The balancer's side of the model store: its process, and the connections passed to it.

Owner: one task, :meth:`ModelStoreChild.run`. A connection that was passed is the store's: here only
its number is kept, until the store reports that it has closed it. When the process ends, all of
them end with it, in one step.
"""

from __future__ import annotations

import array
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import structlog
import trio

from paddler_trio.errors import ModelStoreError, WireError
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.store_messages import (
    MAX_MESSAGE_BYTES,
    Configure,
    Desire,
    PassedRequest,
    RequestEnded,
    StoreCounts,
    StoreFailed,
    StoreUp,
    decode_message,
    encode_message,
)
from paddler_trio.system.kernel.socket_options import message_pair
from paddler_trio.system.process_end import end_process
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.json_text import loads

log = structlog.get_logger("store")

MAX_PASSED: Final = 512
"""Connections that the store has at a time: 128 agents with four requests each."""
PASS_S: Final = 5.0
"""For the store to take one connection; it does nothing else that takes time in that task."""
START_S: Final = 60.0
END_S: Final = 2.0
_SOCKET_BYTES: Final = 4 * MAX_MESSAGE_BYTES
_LINE_BYTES: Final = 64 * 1024


OnEnd: TypeAlias = Callable[[RequestEnded], None]


def nobody(ended: RequestEnded) -> None:
    """Hear of the end of a connection that nobody wants to hear of."""


class NotPassedError(ModelStoreError):
    """The store takes no connection now; it may soon."""


@attrs.define(eq=False)
class ModelStoreChild:
    """All lives of the store's process, one after the other.

    Args:
      folder: absolute, and there.
      size_bytes: what it may take.
      desired: what stays in the store, as the JSON of a ``DesiredModel`` each.
      desired_changes: when ``desired`` returns something else.
    """

    folder: Path
    size_bytes: int
    desired: Callable[[], tuple[bytes, ...]]
    desired_changes: Changes
    counts: StoreCounts = attrs.field(factory=StoreCounts, init=False)
    """As the newest life reported them."""
    _control: trio.socket.SocketType | None = attrs.field(default=None, init=False)
    """Of the life that is up."""
    _process: trio.Process | None = attrs.field(default=None, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """One task at a time waits for the socket to be writable."""
    _sent_desire: int = attrs.field(default=-1, init=False)
    _num_requests: int = attrs.field(default=0, init=False)
    _passed: dict[int, OnEnd] = attrs.field(factory=dict, init=False)
    """What hears of the end of each connection that the store has."""

    def __repr__(self) -> str:
        state = "down" if self._control is None else "up"
        return f"<ModelStoreChild {state}: {len(self._passed)} connections>"

    @property
    def layout(self) -> StoreLayout:
        """Return where its files are."""
        return StoreLayout(self.folder)

    @property
    def is_up(self) -> bool:
        """Return whether connections can be passed."""
        return self._control is not None

    @property
    def pid(self) -> int:
        """Return the pid of the process of this life; there must be one."""
        assert self._process is not None
        return self._process.pid

    @property
    def num_passed(self) -> int:
        """Return how many connections the store has."""
        return len(self._passed)

    async def pass_on(
        self,
        request: PassedRequest,
        descriptor: int,
        on_end: OnEnd = nobody,
    ) -> None:
        """Pass a connection on; NotPassedError. Its ``id`` is replaced. From the return on the
        store has a copy of the descriptor, and ours is to be closed.

        Args:
          on_end: called once when the store has closed it, or has ended: then the status is 0.

        Cancellation: it was not passed.
        """
        if self._control is None:
            raise NotPassedError("the model store is starting")
        if len(self._passed) >= MAX_PASSED:
            raise NotPassedError(f"the model store has {MAX_PASSED} connections, its limit")
        self._num_requests += 1
        request = attrs.evolve(request, id=self._num_requests)
        self._passed[request.id] = on_end
        try:
            with trio.fail_after(PASS_S):
                await self._send(encode_message(request), descriptor)
        except trio.TooSlowError as error:
            self._passed.pop(request.id, None)
            raise NotPassedError(
                f"the model store took no connection within {PASS_S:g} s"
            ) from error
        except (OSError, trio.ClosedResourceError) as error:
            self._passed.pop(request.id, None)
            raise NotPassedError("the model store has just ended") from error
        except BaseException:
            self._passed.pop(request.id, None)
            raise

    async def run(self) -> None:
        """Run one life, until cancelled; ModelStoreError if it ends by itself.

        Cancellation: the process ends at once; downloads and uploads keep what is on the disk.
        """
        try:
            ours, theirs = message_pair(_SOCKET_BYTES)
        except OSError as error:
            raise _not_started(error) from error
        process = None
        try:
            with theirs:
                for end in (ours, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
                process = await trio.lowlevel.open_process(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "paddler_trio.processes.model_store",
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C is the balancer's to handle; and Linux schedules a session as a group
                    start_new_session=True,
                )
            self._process = process
            ours.setblocking(False)
            control = trio.socket.from_stdlib_socket(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_log, process, name="model store log")
                await self._greet(control)
                self._control, self._sent_desire = control, -1
                nursery.start_soon(self._desire, name="desired models")
                await self._read(control)
                status = await process.wait()
                nursery.cancel_scope.cancel(reason="the store has ended")
            raise ModelStoreError(f"the model store ended with status {status}")
        except OSError as error:  # no further process, or no descriptors
            raise _not_started(error) from error
        finally:
            self._control = self._process = None
            lost, self._passed = self._passed, {}
            for number, on_end in lost.items():
                on_end(RequestEnded(number))
            trio.lowlevel.notify_closing(ours)  # somebody may be passing a connection on
            ours.close()
            if process is not None:
                await end_process(process, name="model store", grace_s=END_S)

    async def _greet(self, control: trio.socket.SocketType) -> None:
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
        configure = Configure(str(self.folder), self.size_bytes, level)
        with trio.move_on_after(START_S):
            try:
                await control.send(encode_message(configure))
                match await self._receive(control):
                    case StoreUp(files, used_bytes):
                        self.counts = StoreCounts(files=files, used_bytes=used_bytes)
                        log.info(
                            "model store up",
                            folder=str(self.folder),
                            files=files,
                            used_bytes=used_bytes,
                            size_bytes=self.size_bytes,
                        )
                        return
                    case StoreFailed(reason):
                        raise ModelStoreError(f"the model store cannot work: {reason}")
                    case _:
                        raise ModelStoreError("the model store ended before it was up")
            except OSError as error:
                raise ModelStoreError(f"the model store broke off: {error.strerror}") from error
        raise ModelStoreError(f"the model store was not up within {START_S:g} s")

    async def _read(self, control: trio.socket.SocketType) -> None:
        """Until the store closes its end."""
        while (message := await self._receive(control)) is not None:
            match message:
                case RequestEnded(number):
                    self._passed.pop(number, nobody)(message)
                case StoreCounts():
                    self.counts = message
                case other:
                    raise ModelStoreError(f"the store sent a {type(other).__name__}")

    async def _receive(self, control: trio.socket.SocketType) -> object:
        try:
            data = await control.recv(MAX_MESSAGE_BYTES)
            return decode_message(data) if data else None
        except ConnectionResetError:
            return None
        except WireError as error:
            raise ModelStoreError(str(error)) from error

    async def _desire(self) -> None:
        """Send what is desired, now and whenever it changes."""
        while True:
            ordinal = self.desired_changes.ordinal
            try:
                await self._send(b"", None)
            except OSError:
                return  # it has ended; the reader notices
            await self.desired_changes.wait_beyond(ordinal)

    async def _send(self, message: bytes, descriptor: int | None) -> None:
        """Send what is desired, if the store has not got it yet, and then ``message``; OSError. So
        a request for what was just desired never comes first."""
        async with self._turn:
            control = self._control
            if control is None:
                raise ConnectionResetError
            if self._sent_desire != self.desired_changes.ordinal:
                ordinal = self.desired_changes.ordinal
                await control.send(encode_message(Desire(self.desired())))
                self._sent_desire = ordinal
            if descriptor is not None:
                rights = array.array("i", [descriptor])
                await control.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def _not_started(error: OSError) -> ModelStoreError:
    return ModelStoreError(f"the model store cannot be started: {error.strerror or error}")


async def _log(process: trio.Process) -> None:
    """Log the store's records as ours; anything else that it prints as it is."""
    assert process.stderr is not None
    rest = b""
    async for data in process.stderr:
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_LINE_BYTES:]
        for line in lines:
            _log_line(line.decode(errors="replace"))


def _log_line(line: str) -> None:
    try:
        record = loads(line)
    except (WireError, ValueError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        log.warning("model store", text=line)
        return
    event, level = record.pop("event"), record.pop("level", "warning")
    number = logging.getLevelNamesMapping().get(str(level).upper(), logging.WARNING)
    fields = {name: value for name, value in record.items() if name not in {"timestamp", "logger"}}
    log.log(number, event, **fields)
