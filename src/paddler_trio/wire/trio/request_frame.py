"""The frames that carry requests to an agent, of which only the head is parsed.

A request may be megabytes. An agent's event loop needs its id and its kind; a preparation process
parses it. Balancers write the id first, so the head is the first few bytes.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import attrs

Kind: TypeAlias = Literal["generation", "embedding", "question"]

MAX_ID_CHARS = 256


def _head(*parts: str) -> str:
    """A pattern of these parts, with the white space that JSON allows between them."""
    return r"\s*".join(parts)


_OPEN, _ID = r"\{", _head('"id"', ":", rf'"([^"\\]{{1,{MAX_ID_CHARS}}})"', ",")
_ISOLATED = "(?:" + _head('"isolated"', ":", '"(?P<isolated>engine|agent)"', ",", "") + ")?"


def _client(group: str) -> str:
    return "(?:" + _head('"client"', ":", f'"(?P<{group}>[0-9a-f]{{0,16}})"', ",", "") + ")?"


_HEAD = re.compile(
    "|".join(
        (
            _head(_OPEN, '"Trio"', ":", _OPEN, '"Start"', ":", _OPEN, _ID, _client("start_of"))
            + _ISOLATED
            + _head('"request"', ":", _OPEN, r'"(?P<start>\w+)"', ":"),
            _head(_OPEN, '"Trio"', ":", _OPEN, '"Ask"', ":", _OPEN, _ID, _client("ask_of"))
            + _head('"question"', ":", _OPEN, r'"(?P<ask>\w+)"', ":"),
            _head(_OPEN, '"Request"', ":", _OPEN, _ID, '"request"', ":", _OPEN)
            + _head("", r'"(?P<request>\w+)"', ":"),
        )
    )
)
_GENERATIONS = ("Generate", "ContinueFromRawPrompt", "ContinueFromConversationHistory")
_EMBEDDINGS = ("Embed", "Rank", "GenerateEmbeddingBatch")


@attrs.frozen
class RequestFrame:
    """One request as it came in.

    Args:
      id: the request's id on this link.
      tag: the kind of request, such as ``Generate``.
      text: the whole frame.
      is_paddlers: the frame is Paddler's ``Request``, not ours.
      client: the client it is for; clients take turns.
      isolated: the process that it may have crashed, ``engine`` or ``agent``; empty for none.
    """

    id: str
    kind: Kind
    tag: str
    text: str = attrs.field(repr=False)
    is_paddlers: bool = True
    client: str = ""
    isolated: str = ""

    @property
    def is_extended(self) -> bool:
        """The request is one of ours, and its results may be too."""
        return self.tag in ("Generate", "Embed", "Rank")


def read_head(text: str, *, speaks_trio: bool) -> RequestFrame | None:
    """The head of a frame that carries work; None for every other frame."""
    head = _HEAD.match(text)
    if head is None or (head.lastgroup != "request" and not speaks_trio):
        return None
    assert head.lastgroup is not None, "each of the heads ends with a named group"
    tag = head[head.lastgroup]
    wire_id = next(group for group in head.groups() if group is not None)
    client = head["start_of"] or head["ask_of"] or ""
    isolated = head["isolated"] or ""
    if head.lastgroup == "ask":
        return RequestFrame(wire_id, "question", tag, text, False, client)
    is_paddlers = head.lastgroup == "request"
    if tag in _GENERATIONS:
        return RequestFrame(wire_id, "generation", tag, text, is_paddlers, client, isolated)
    if tag in _EMBEDDINGS:
        return RequestFrame(wire_id, "embedding", tag, text, is_paddlers, client, isolated)
    return None
