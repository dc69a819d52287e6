"""Stored responses, to read again or to continue: in memory, bounded, the oldest are dropped first.

A store lives and dies with its balancer. A response that was made with one API key is there for
that key alone; requests without keys share theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.responses.responses_request import Item
from paddler_trio.apis.shapes import Json
from paddler_trio.wire.codec import dumps, loads

ENTRY_BYTES = 1024
"""The size of an entry beside its texts, rounded up: objects, keys, its place in the store."""


@attrs.frozen(kw_only=True)
class StoredResponse:
    """One response as JSON texts, so that its size is known.

    ``before``: the items of the responses that it continued; ``items``: its own input.
    """

    id: str
    owner: str
    response_json: bytes
    before_json: bytes
    items_json: bytes

    @classmethod
    def of(
        cls, owner: str, response: Json, before: Sequence[Item], items: Sequence[Item]
    ) -> StoredResponse:
        return cls(
            id=str(response["id"]),
            owner=owner,
            response_json=dumps(response),
            before_json=dumps([*before]),
            items_json=dumps([*items]),
        )

    @property
    def size_bytes(self) -> int:
        texts = (self.response_json, self.before_json, self.items_json)
        return ENTRY_BYTES + sum(map(len, texts)) + 4 * len(self.owner)

    @property
    def response(self) -> Json:
        response = loads(self.response_json)
        assert isinstance(response, dict)
        return response

    @property
    def input_items(self) -> list[Item]:
        """The conversation before its output."""
        return [*_listed(self.before_json), *_listed(self.items_json)]

    @property
    def conversation(self) -> list[Item]:
        """The conversation with its output, for the response that continues it."""
        output = self.response["output"]
        assert isinstance(output, list)
        return [*self.input_items, *output]


def _listed(text: bytes) -> list[Item]:
    items = loads(text)
    assert isinstance(items, list)
    return items


@attrs.define
class ResponseStore:
    """See the module docstring. A response counts with everything it continues."""

    max_responses: int
    max_bytes: int
    num_bytes: int = attrs.field(default=0, init=False)
    _kept: OrderedDict[str, StoredResponse] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, stored: StoredResponse) -> bool:
        """False if it alone is too large; else older ones make room for it."""
        if stored.size_bytes > self.max_bytes or self.max_responses == 0:
            return False
        self._kept[stored.id] = stored
        self.num_bytes += stored.size_bytes
        while len(self._kept) > self.max_responses or self.num_bytes > self.max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.num_bytes -= oldest.size_bytes
        return True

    def get(self, response_id: str, *, owner: str) -> StoredResponse | None:
        """None if there is none, or it has another owner; using it keeps it longer."""
        found = self._kept.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return found

    def drop(self, response_id: str, *, owner: str) -> bool:
        """Whether it was there."""
        stored = self.get(response_id, owner=owner)
        if stored is None:
            return False
        del self._kept[response_id]
        self.num_bytes -= stored.size_bytes
        return True


def not_stored(response_id: str) -> ApiError:
    """404 for an id that is not known, or not any more."""
    return ApiError(
        404,
        f"no response {response_id[:100]!r} is stored; responses are kept in memory, the latest "
        "max_stored_responses within max_stored_bytes",
        code="response_not_found",
        type="invalid_request_error",
    )
