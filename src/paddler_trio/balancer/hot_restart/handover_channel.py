"""The Unix socket between a balancer and its successor: messages with descriptors, one user.

It lies beside the state file, mode 0600, and the kernel says who is at the other end. Its address
goes through the folder's descriptor, since the system takes 107 bytes and paths are longer.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import attrs
import trio

from paddler_trio.balancer.hot_restart.handover_messages import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE_BYTES,
    HandoverMessage,
    Refused,
    decode,
    encode,
)
from paddler_trio.errors import HandoverError, WireError
from paddler_trio.system.kernel.socket_options import descriptors_in

_CREDENTIALS: Final = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""
_SO_PEERCRED: Final[int] = getattr(socket, "SO_PEERCRED", 0)
_O_PATH: Final[int] = getattr(os, "O_PATH", 0)
ONLY_LINUX: Final = "only on Linux a balancer hands over to another one: stop this one, start anew"


@attrs.define(eq=False)
class HandoverChannel:
    """One connection; its descriptors are closed with it unless they were taken."""

    socket: trio.socket.SocketType

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    @property
    def peer_pid(self) -> int:
        """Return the process at the other end; 0 if it is in another container."""
        return self._peer()[0]

    def check_peer(self) -> None:
        """Raise HandoverError unless it runs as this user or as root."""
        pid, user, _ = self._peer()
        if user not in (os.geteuid(), 0):
            raise HandoverError(f"process {pid} runs as another user ({user})")

    async def send(self, message: HandoverMessage, descriptors: Sequence[int] = ()) -> None:
        """Send it; HandoverError if the other end is gone."""
        rights = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        try:
            await self.socket.sendmsg([encode(message)], ancillary)
        except OSError as error:
            raise HandoverError(f"the other process is gone: {error.strerror}") from error

    async def receive(self) -> tuple[HandoverMessage | None, list[int]]:
        """Return the next message and the descriptors that came with it, which are the caller's to
        close; None at the end.

        Raises:
          HandoverError: it is malformed, or a refusal.
        """
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = await self.socket.recvmsg(MAX_MESSAGE_BYTES, room)
        except OSError as error:
            raise HandoverError(f"the other process is gone: {error.strerror}") from error
        descriptors = descriptors_in(ancillary)
        try:
            if not data:
                return None, descriptors
            message = decode(data)
            if isinstance(message, Refused):
                raise HandoverError(message.reason[:1000])
        except WireError as error:
            close_all(descriptors)
            raise HandoverError(f"the other process sent no message of ours: {error}") from error
        except BaseException:
            close_all(descriptors)
            raise
        return message, descriptors

    def _peer(self) -> tuple[int, int, int]:
        found = self.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
        pid, user, group = _CREDENTIALS.unpack(found)
        return pid, user, group


async def connect(path: Path) -> HandoverChannel | None:
    """Connect to the balancer that listens there; None if there is none.

    Raises:
      HandoverError: it is of another user, or the path is no socket one may open.
    """
    _check_system()
    end = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = HandoverChannel(end)
    try:
        folder = os.open(path.parent, _O_PATH | os.O_DIRECTORY)
        try:
            await end.connect(_address(folder, path.name))
        finally:
            os.close(folder)
        channel.check_peer()
    except (FileNotFoundError, ConnectionRefusedError):
        end.close()
        return None
    except OSError as error:
        end.close()
        raise HandoverError(f"cannot connect to {path}: {error.strerror}") from error
    except BaseException:
        end.close()
        raise
    return channel


def listen_at(path: Path) -> trio.socket.SocketType:
    """Return a listening socket, in one step in the place of what is there; HandoverError.

    Only who holds the lock of the state calls this: the socket before was another process's.
    """
    _check_system()
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new = f".{path.name}.{os.getpid()}"
    try:
        folder = os.open(path.parent, _O_PATH | os.O_DIRECTORY)
        try:
            end.bind(_address(folder, new))
            os.chmod(new, 0o600, dir_fd=folder)  # nobody can connect before it listens
            end.listen(4)
            os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        end.close()
        raise HandoverError(f"cannot listen at {path}: {error.strerror}") from error
    return trio.socket.from_stdlib_socket(end)


def close_all(descriptors: Sequence[int]) -> None:
    """Close each of them."""
    for descriptor in descriptors:
        os.close(descriptor)


def _check_system() -> None:
    """Raise HandoverError where a socket does not say who is at its other end."""
    if sys.platform != "linux":
        raise HandoverError(ONLY_LINUX)


def _address(folder: int, name: str) -> str:
    return f"/proc/self/fd/{folder}/{name}"
