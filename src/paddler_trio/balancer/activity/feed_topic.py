"""One topic of the feed: what it shows by key, looked at again and again while somebody watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import attrs

from paddler_trio.balancer.activity.feed_document import Change
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps


def shown(value: object) -> bytes:
    """Return the JSON of a value.

    An agent may say half a surrogate pair, which UTF-8 does not have: then all but ASCII is
    escaped, since what one agent says must not end the feed.
    """
    try:
        return dumps(value)
    except WireError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class Topic(Protocol):
    """Looks come one after the other, each to its end, between :meth:`open` and :meth:`close`."""

    @property
    def name(self) -> str: ...

    def open(self) -> None:
        """Somebody watches: the next look yields every key."""
        ...

    def look(self, now_s: float) -> Iterator[Change | None]:
        """Yield what may differ from the look before.

        None between two keys is a place for others to run, as is each key: what is looked at may
        change there.
        """
        ...

    def close(self) -> None:
        """Nobody watches any more: hold nothing."""
        ...


@attrs.define(eq=False)
class WholeTopic:
    """A topic of few keys, rendered whole at each look.

    Args:
      values: what each key shows now, as plain JSON.
      ordinal: counts the changes of that; where it is given, the same number means no look.
    """

    name: str
    values: Callable[[float], Mapping[str, object]]
    ordinal: Callable[[], int] | None = None
    _keys: set[str] = attrs.field(factory=set, init=False)
    _looked: int | None = attrs.field(default=None, init=False)

    def open(self) -> None:
        """See :class:`Topic`, as for the others."""
        self.close()

    def look(self, now_s: float) -> Iterator[Change | None]:
        ordinal = None if self.ordinal is None else self.ordinal()
        if ordinal is not None and ordinal == self._looked:
            return
        self._looked = ordinal
        values = self.values(now_s)
        for key, value in values.items():
            yield key, shown(value)
        for key in self._keys.difference(values):
            yield key, None
        self._keys = set(values)

    def close(self) -> None:
        self._keys = set()
        self._looked = None
