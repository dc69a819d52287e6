"""Responses that may be asked for again or gone on with: in memory, bounded, the oldest go first.

A store lives and dies with its balancer. What was made with one API key is there for that key
alone; without keys everybody is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.responses.responses_items import Item
from paddler_trio.wire.codec import dumps

Json = dict[str, object]


@attrs.frozen
class StoredResponse:
    """``before``: the items of the responses it went on after; ``items``: its own input."""

    owner: str
    response: Json
    before: Sequence[Item]
    items: Sequence[Item]

    @property
    def conversation(self) -> list[Item]:
        """Everything up to and with its output: what the next one goes on after."""
        output = self.response["output"]
        assert isinstance(output, list)
        return [*self.before, *self.items, *output]


@attrs.define
class ResponseStore:
    """See the module docstring. A response counts with everything it went on after."""

    max_responses: int
    max_bytes: int
    num_bytes: int = attrs.field(default=0, init=False)
    _kept: OrderedDict[str, tuple[StoredResponse, int]] = attrs.field(
        factory=OrderedDict, init=False
    )

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, stored: StoredResponse) -> bool:
        """False if it alone is too large; else older ones make room for it."""
        size = len(dumps([stored.response, [*stored.before], [*stored.items]]))
        if size > self.max_bytes or self.max_responses == 0:
            return False
        self._kept[str(stored.response["id"])] = (stored, size)
        self.num_bytes += size
        while len(self._kept) > self.max_responses or self.num_bytes > self.max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.num_bytes -= freed
        return True

    def get(self, response_id: str, *, owner: str) -> StoredResponse | None:
        """None if there is none, or it is somebody else's; using it keeps it longer."""
        found = self._kept.get(response_id)
        if found is None or found[0].owner != owner:
            return None
        self._kept.move_to_end(response_id)
        return found[0]

    def drop(self, response_id: str, *, owner: str) -> bool:
        """Whether it was there."""
        if self.get(response_id, owner=owner) is None:
            return False
        _, size = self._kept.pop(response_id)
        self.num_bytes -= size
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
