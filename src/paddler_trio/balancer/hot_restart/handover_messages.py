"""The messages that a balancer and its successor exchange, one JSON each. Pure.

    successor                   predecessor
    TakeOver
                                Sockets, with the listening sockets
    GiveState                                     it is configured, and has all of its ports
                                State, with the locks          nothing is written any more
    Ready                                         it has read the state
                                ServeAgents                    the management port is its
                                ServeAll                       all ports are its
                                Left, once a second

Before ``Ready`` either side may end it by closing its end: then the predecessor goes on. After it
the predecessor's end is open until its last request has ended. ``Refused`` ends it with a reason.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.scalars import Uint32
from paddler_trio.wire.tags import external_tag, structs

PROTOCOL: Final = 1
MAX_MESSAGE_BYTES: Final = 65_536
MAX_DESCRIPTORS: Final = 64


@attrs.frozen
class TakeOver:
    """``program`` names the successor's version, for the log."""

    protocol: Uint32
    program: str


@attrs.frozen
class Service:
    """A port by the name of its service: the address as it was configured, and how many of the
    descriptors are its sockets, in their order."""

    name: str
    address: str
    sockets: Uint32


@attrs.frozen
class Sockets:
    services: tuple[Service, ...]


@attrs.frozen
class GiveState:
    pass


@attrs.frozen
class State:
    """``locks`` are the names of the files whose locks the descriptors hold."""

    locks: tuple[str, ...]


@attrs.frozen
class Ready:
    pass


@attrs.frozen
class ServeAgents:
    pass


@attrs.frozen
class ServeAll:
    pass


@attrs.frozen
class Left:
    """Say how many requests have not ended."""

    requests: Uint32


@attrs.frozen
class Refused:
    reason: str


HandoverMessage: TypeAlias = (
    TakeOver | Sockets | GiveState | State | Ready | ServeAgents | ServeAll | Left | Refused
)
external_tag(HandoverMessage, *structs(HandoverMessage))


def encode(message: HandoverMessage) -> bytes:
    """Return the whole message."""
    return dumps(unstructure(message, HandoverMessage))


def decode(text: bytes) -> HandoverMessage:
    """Read a message; WireError if it is none."""
    message: HandoverMessage = structure(loads(text), HandoverMessage)
    if isinstance(message, Sockets):
        number = sum(each.sockets for each in message.services)
        if number > MAX_DESCRIPTORS:
            raise WireError(f"{number} sockets, the limit is {MAX_DESCRIPTORS}")
    return message
