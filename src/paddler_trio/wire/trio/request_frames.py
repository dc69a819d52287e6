"""The frames that carry work to an agent, read no further than their head.

A request may be megabytes. An agent's event loop needs its id and its kind; what else it says is
read in a preparation process. Balancers write the id first, so the head is the first few bytes.
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
      tag: what it asks for, such as ``Generate``.
      text: the whole frame.
      is_paddlers: the frame is Paddler's ``Request``, not ours.
      client: whom the work is for; places are given to clients in turns.
      isolated: what it may have killed before, ``engine`` or ``agent``; empty for nothing.
    """

    id: str
    kind: Kind
    tag: str
    text: str
    is_paddlers: bool = True
    client: str = ""
    isolated: str = ""

    @property
    def is_extended(self) -> bool:
        """The request is ours: its results say more than Paddler's."""
        return self.tag in ("Generate", "Embed", "Rank")


def request_frame(text: str, *, speaks_trio: bool) -> RequestFrame | None:
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
