"""Messages between the balancer and its model store, over one Unix socket.

The socket keeps message boundaries (``SOCK_SEQPACKET``): one message is one kind byte and a
MessagePack list. A :class:`PassedRequest` travels with the descriptor of its connection. Both ends
come from one installation, so the format has no version.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs
import msgpack

from paddler_trio.errors import WireError

MAX_MESSAGE_BYTES: Final = 192 * 1024
"""A head of 24 KiB, what one read brings behind it, 64 KiB, and the desired models."""


@attrs.frozen
class Configure:
    """The first message of the balancer.

    Args:
      folder: absolute.
      size_bytes: what the store may take of the disk.
      log_level: of :data:`paddler_trio.system.logs.logs.LEVELS`.
    """

    folder: str
    size_bytes: int
    log_level: str


@attrs.frozen
class PassedRequest:
    """A request that was parsed and authorised; the store answers it and closes the connection.

    Args:
      id: from 1, never used twice in one life of the store.
      path: percent-decoded; begins with :data:`PREFIX`.
      raw_path: as it was sent, for names that have slashes.
      headers: names in lower case, values as Latin-1.
      client: the address that it came from.
      unread: what arrived behind the head.
      is_agents: an agent's credential came with it.
    """

    id: int
    method: str
    path: str
    raw_path: str
    query: str
    headers: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    client: str
    unread: bytes = attrs.field(repr=False)
    is_agents: bool = False


@attrs.frozen
class Desire:
    """The models that the fleet shall serve now; they stay in the store.

    Args:
      models: the JSON of a ``DesiredModel`` each.
    """

    models: tuple[bytes, ...]


@attrs.frozen
class StoreUp:
    """The store has read its folder: connections may be passed."""

    files: int
    used_bytes: int


@attrs.frozen
class StoreFailed:
    """The store cannot work; it ends."""

    reason: str


@attrs.frozen
class RequestEnded:
    """The connection of this request is closed.

    Args:
      status: of the answer; 0 if there was none.
      changed: what the request changed in the store, for the audit log; empty for nothing.
    """

    id: int
    status: int = 0
    changed: str = ""


@attrs.frozen
class StoreCounts:
    """The measurements of the store since it came up, sent at most once a second.

    Args:
      files, used_bytes: held now; what is arriving counts with its full size.
      found: requests for files: for one that was whole, one on its way already, and for one of
        which there was nothing; the order of ``label_values.STORE_FOUND``.
      fetched_bytes, pushed_bytes, sent_bytes: of files, from sources, from operators, to clients.
      evictions: files that went for want of room.
      downloads_running: now.
      downloads: that are over: done, failed, given up.
    """

    files: int = 0
    used_bytes: int = 0
    found: tuple[int, int, int] = (0, 0, 0)
    fetched_bytes: int = 0
    pushed_bytes: int = 0
    sent_bytes: int = 0
    evictions: int = 0
    downloads_running: int = 0
    downloads: tuple[int, int, int] = (0, 0, 0)


ToStore: TypeAlias = Configure | PassedRequest | Desire
FromStore: TypeAlias = StoreUp | StoreFailed | RequestEnded | StoreCounts
StoreMessage: TypeAlias = ToStore | FromStore

PREFIX: Final = "/api/v2/store"
_KINDS: Final = (Configure, PassedRequest, Desire, StoreUp, StoreFailed, RequestEnded, StoreCounts)


def is_store_path(path: str) -> bool:
    """Return whether the store answers requests for ``path`` (percent-decoded)."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def encode_message(message: StoreMessage) -> bytes:
    """Encode a message; WireError if it is too long for the socket."""
    fields = attrs.astuple(message, recurse=False)
    packed: bytes = msgpack.packb(fields)
    data = bytes([_KINDS.index(type(message))]) + packed
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(
            f"a {type(message).__name__} of {len(data)} bytes; the limit is {MAX_MESSAGE_BYTES}"
        )
    return data


def decode_message(data: bytes) -> StoreMessage:
    """Decode a message; WireError if it is none."""
    try:
        fields = msgpack.unpackb(data[1:], use_list=False)
        message: StoreMessage = _KINDS[data[0]](*fields)
    except (IndexError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise WireError(f"no message of the model store: {error!r}") from error
    return message


Found: TypeAlias = Literal["whole", "arriving", "nothing"]
DownloadOutcome: TypeAlias = Literal["done", "failed", "given_up"]


@attrs.define(eq=False)
class StoreCounters:
    """Totals since the process came up; see :class:`StoreCounts`."""

    found: dict[Found, int] = attrs.field(
        factory=lambda: {"whole": 0, "arriving": 0, "nothing": 0}, init=False
    )
    downloads: dict[DownloadOutcome, int] = attrs.field(
        factory=lambda: {"done": 0, "failed": 0, "given_up": 0}, init=False
    )
    fetched_bytes: int = attrs.field(default=0, init=False)
    """The bytes of downloads that are over."""
    pushed_bytes: int = attrs.field(default=0, init=False)
    sent_bytes: int = attrs.field(default=0, init=False)
    evictions: int = attrs.field(default=0, init=False)

    def sent(self, num_bytes: int) -> None:
        """Count so many more bytes of files that are in the kernel's hands, for a client."""
        self.sent_bytes += num_bytes

    def counts(
        self, *, files: int, used_bytes: int, downloads_running: int, arriving_bytes: int
    ) -> StoreCounts:
        """Return all counts as they are now; ``arriving_bytes`` were received by downloads that go
        on."""
        whole, arriving, nothing = self.found.values()
        done, failed, given_up = self.downloads.values()
        return StoreCounts(
            files=files,
            used_bytes=used_bytes,
            found=(whole, arriving, nothing),
            fetched_bytes=self.fetched_bytes + arriving_bytes,
            pushed_bytes=self.pushed_bytes,
            sent_bytes=self.sent_bytes,
            evictions=self.evictions,
            downloads_running=downloads_running,
            downloads=(done, failed, given_up),
        )
