"""The id of an HTTP request: the client's ``X-Request-Id`` if it is short and plain, else ours.

Responses have it in the header of the same name, and so do all lines of the log about the request.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from paddler_trio.net.server.asgi import Scope, header

HEADER: Final = b"x-request-id"
_ACCEPTED: Final = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_MEMBER: Final = "paddler_trio.request_id"


def request_id(scope: Scope) -> str:
    """The same for the same scope."""
    known = scope.get(_MEMBER)
    if isinstance(known, str):
        return known
    given = header(scope, HEADER)
    if given is not None and _ACCEPTED.fullmatch(given):
        chosen = given.decode()
    else:
        chosen = "req_" + secrets.token_hex(16)
    scope[_MEMBER] = chosen
    return chosen
