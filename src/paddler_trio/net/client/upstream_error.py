"""Why an upstream server did not answer a request, or not to the end."""

from __future__ import annotations

import enum

from paddler_trio.errors import PaddlerError


class FailureKind(enum.Enum):
    """The side that may be at fault, and whether the request can be tried elsewhere."""

    CONNECT = "connect"
    """No connection: a refused or unanswered one, no such host, a TLS handshake that failed."""
    TIMEOUT = "timeout"
    """Silence: before the head of the answer, between parts of its body, or while it was sent the
    request."""
    CLOSED = "closed"
    """The connection was closed before the answer was whole."""
    PROTOCOL = "protocol"
    """What was received breaks HTTP's rules, or a limit of this client."""
    REQUEST = "request"
    """The request itself cannot be sent: what the caller gave breaks HTTP's rules."""


class UpstreamError(PaddlerError):
    """The text is one line, and has nothing of the request and at most 40 bytes of the answer.

    Args:
      before_first_byte: nothing of the answer had arrived, so another server can be asked without
        the client noticing. With ``CONNECT`` and ``REQUEST`` nothing of the request was sent.
    """

    def __init__(self, kind: FailureKind, message: str, *, before_first_byte: bool) -> None:
        super().__init__(message)
        self.kind = kind
        self.before_first_byte = before_first_byte


class MalformedAnswerError(Exception):
    """Bytes that break HTTP's rules; the text says which. The connection makes it an
    :class:`UpstreamError` with the server's address."""
