"""The requests that need no state machine, read at once.

What programs send to a server behind a proxy is one request after the other: HTTP/1.1, a path, some
fields, a body of known length, all of it in what one read of the socket returned. Those are read
here. Everything else (other versions, chunks, upgrades, ``Expect``, long heads, pieces, more than
one request, whatever is malformed) is None and left to h11, so that each rule of HTTP is applied in
one place. A request that is read here means the same to h11.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

MAX_LINES: Final = 64
_TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++"
_VALUE: Final = rb"(?:[\x21-\x7e]++(?:[ \t]++[\x21-\x7e]++)*+)?+"
_LINE: Final = re.compile(rb"(%b):[ \t]*+(%b)[ \t]*+\r\n" % (_TOKEN, _VALUE))
_HEAD: Final = re.compile(
    rb"(?P<method>[A-Z]{1,16}+) (?P<target>/[\x21\x22\x24-\x7e]*+) HTTP/1\.1\r\n"
    rb"(?P<fields>(?:%b:[ \t]*+%b[ \t]*+\r\n){1,%d}+)\r\n" % (_TOKEN, _VALUE, MAX_LINES)
)
_LENGTH: Final = re.compile(rb"[0-9]{1,9}+")
_NOT_PLAIN: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade"})


@attrs.frozen
class PlainRequest:
    """One request, whole.

    Args:
      head: as it came; with the body behind it, it is all that came.
      headers: names in lower case.
      names: as they were written.
    """

    head: bytes = attrs.field(repr=False)
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    names: list[bytes]
    body: bytes = attrs.field(repr=False)


def plain_request(data: bytes, max_head_bytes: int) -> PlainRequest | None:
    """The request that these bytes are; None if h11 has to look at them."""
    head = _HEAD.match(data)
    if head is None or head.end() > max_head_bytes or head["method"] == b"CONNECT":
        return None
    written = _LINE.findall(head["fields"])
    headers = [(name.lower(), value) for name, value in written]
    length, num_hosts, num_lengths = 0, 0, 0
    for name, value in headers:
        if name in _NOT_PLAIN or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        if name == b"host":
            num_hosts += 1
        elif name == b"content-length":
            if _LENGTH.fullmatch(value) is None:
                return None
            length, num_lengths = int(value), num_lengths + 1
    if num_hosts != 1 or num_lengths > 1 or len(data) - head.end() != length:
        return None
    names = [name for name, _ in written]
    body = data[head.end() :]
    return PlainRequest(head[0], head["method"], head["target"], headers, names, body)
