"""Stored responses, to read again or to continue: in memory, bounded, the oldest are dropped first.

A store lives and dies with its balancer. A response that was made with one API key is there for
that key alone; requests without keys share theirs. Who has most of the store makes room: nobody can
push out what others go on with.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.responses.client_tools import Item
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.wire.codec import loads
from paddler_trio.wire.json_limits import weight_bytes_of
from paddler_trio.wire.json_text import dumps_in_runs

ENTRY_BYTES = 1024
"""The size of an entry beside its texts, rounded up: objects, keys, its place in the store."""
ITEM_BYTES = 256
"""The same of what finds one item of its output."""


@attrs.frozen(kw_only=True)
class StoredResponse:
    """One response as JSON texts, so that its size is known.

    Args:
      before_json, items_json: the items of the responses that it continued, and of its own input.
      item_ids: of its output.
      weight_bytes: what the request held of the input budget for them. Whoever reads them again
        makes the balancer hold as much, and reserves it first.
      response_weight_bytes: the same of the response: what is known of its tokens is many times
        larger as objects than as text.
    """

    id: str
    owner: str
    response_json: bytes
    before_json: bytes
    items_json: bytes
    item_ids: tuple[str, ...]
    weight_bytes: int
    response_weight_bytes: int

    @classmethod
    def of(
        cls,
        owner: str,
        response: Json,
        before_json: bytes,
        items_json: bytes,
        weight_bytes: int,
        *,
        response_json: bytes | None = None,
    ) -> StoredResponse:
        """``response_json`` is the text of ``response``, if it is written already."""
        if response_json is None:
            response_json = dumps_in_runs(response)
        return cls(
            id=str(response["id"]),
            owner=owner,
            response_json=response_json,
            before_json=before_json,
            items_json=items_json,
            item_ids=tuple(str(item["id"]) for item in _output_of(response)),
            weight_bytes=weight_bytes,
            response_weight_bytes=weight_bytes_of(response_json),
        )

    @property
    def size_bytes(self) -> int:
        texts = (self.response_json, self.before_json, self.items_json)
        listed = ITEM_BYTES * len(self.item_ids)
        return ENTRY_BYTES + listed + sum(map(len, texts)) + 4 * len(self.owner)

    @property
    def response(self) -> Json:
        response = loads(self.response_json)
        assert isinstance(response, dict)
        return response

    @property
    def output(self) -> list[Item]:
        return _output_of(self.response)

    @property
    def input_items(self) -> list[Item]:
        """Return the conversation before its output."""
        return [*_listed(self.before_json), *_listed(self.items_json)]

    @property
    def conversation_weight_bytes(self) -> int:
        """Return what reading the conversation makes the balancer hold."""
        return self.weight_bytes + self.response_weight_bytes

    @property
    def conversation(self) -> list[Item]:
        """Return the conversation with its output, for the response that continues it."""
        return [*self.input_items, *self.output]


def _output_of(response: Json) -> list[Item]:
    output = response["output"]
    assert isinstance(output, list)
    return output


def _listed(text: bytes) -> list[Item]:
    items = loads(text)
    assert isinstance(items, list)
    return items


@attrs.define
class ResponseStore:
    """See the module docstring. A response counts with everything it continues."""

    max_responses: int
    max_bytes: int
    _owners: dict[str, _Owned] = attrs.field(factory=dict, init=False)
    """Those that have a response here."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """Long responses are finished, and kept, in a thread."""

    def __len__(self) -> int:
        return sum(len(owned.kept) for owned in self._owners.values())

    @property
    def num_bytes(self) -> int:
        return sum(owned.num_bytes for owned in self._owners.values())

    def keep(self, stored: StoredResponse) -> bool:
        """False if it alone is too large; else older ones make room for it."""
        if stored.size_bytes > self.max_bytes or self.max_responses == 0:
            return False
        with self._lock:
            self._owners.setdefault(stored.owner, _Owned()).add(stored)
            while len(self) > self.max_responses or self.num_bytes > self.max_bytes:
                self._make_room(stored)
        return True

    def get(self, response_id: str, *, owner: str) -> StoredResponse | None:
        """Return None if there is none, or it has another owner; using it keeps it longer."""
        with self._lock:
            owned = self._owners.get(owner)
            if owned is None or response_id not in owned.kept:
                return None
            owned.kept.move_to_end(response_id)
            return owned.kept[response_id]

    def having(self, item_id: str, *, owner: str) -> StoredResponse | None:
        """Return the response in whose output this item is, as :meth:`get` returns it."""
        with self._lock:
            owned = self._owners.get(owner)
            response_id = None if owned is None else owned.response_ids.get(item_id)
        return None if response_id is None else self.get(response_id, owner=owner)

    def drop(self, response_id: str, *, owner: str) -> bool:
        """Forget it; return whether it was there."""
        with self._lock:
            return self._drop(response_id, owner)

    def _drop(self, response_id: str, owner: str) -> bool:
        owned = self._owners.get(owner)
        if owned is None or response_id not in owned.kept:
            return False
        owned.remove(response_id)
        if not owned.kept:
            del self._owners[owner]
        return True

    def _make_room(self, newest: StoredResponse) -> None:
        """The oldest response goes of the owner that has most, the newest one not counted."""

        def share(owner: str) -> float:
            num, num_bytes = len(self._owners[owner].kept), self._owners[owner].num_bytes
            if owner == newest.owner:
                num, num_bytes = num - 1, num_bytes - newest.size_bytes
            return max(num / self.max_responses, num_bytes / self.max_bytes)

        owner = max(self._owners, key=share)
        oldest = next(iter(self._owners[owner].kept))
        self._drop(oldest, owner)


@attrs.define
class _Owned:
    """Hold what one owner has in the store, what was used last at the end."""

    kept: OrderedDict[str, StoredResponse] = attrs.field(factory=OrderedDict)
    response_ids: dict[str, str] = attrs.field(factory=dict)
    """By the items of their output."""
    num_bytes: int = 0

    def add(self, stored: StoredResponse) -> None:
        self.kept[stored.id] = stored
        self.response_ids.update(dict.fromkeys(stored.item_ids, stored.id))
        self.num_bytes += stored.size_bytes

    def remove(self, response_id: str) -> None:
        dropped = self.kept.pop(response_id)
        for item_id in dropped.item_ids:
            del self.response_ids[item_id]
        self.num_bytes -= dropped.size_bytes


def not_stored(response_id: str) -> ApiError:
    """404 for an id that is not known, or not any more."""
    return ApiError(
        404,
        f"no response {response_id[:100]!r} is stored; responses are kept in memory, the latest "
        "max_stored_responses within max_stored_bytes",
        code="response_not_found",
        type="invalid_request_error",
    )
