"""Hold what watchers of the feed are shown: texts by topic and key, and which keys changed when.

A change makes a *sequence number* and is remembered as the keys that it touched, not as texts. So a
watcher who has missed any number of changes is sent one event: the newest text of each key that
changed since, or that the key is gone. Where the memory does not go back so far, or a topic was not
kept up to date meanwhile, the event is *full*.

Applying the events of any watcher in order gives the same document. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from paddler_trio.wire.codec import dumps

MAX_DIFFS: Final = 240
"""A minute, at four a second."""
MAX_DIFF_KEYS: Final = 100_000
"""Of all remembered diffs together."""

Change: TypeAlias = tuple[str, bytes | None]
"""A key and its JSON text; None if it is gone."""
Entry: TypeAlias = bytes
"""A key and its JSON text as they stand in an event, ``"key":text``."""
Head: TypeAlias = Callable[[], Mapping[str, object]]
"""Fields of every event beside the document's own: the moment."""


def entry(key: str, text: bytes) -> Entry:
    """Return the entry as it stands in an event."""
    if key.isalnum() and key.isascii():
        return b'"%b":%b' % (key.encode(), text)
    return dumps(key) + b":" + text


@attrs.define
class _Topic:
    entries: dict[str, Entry]
    complete_from: int
    """The sequence number with which it was shown whole: earlier diffs lack it."""


@attrs.frozen
class _Diff:
    seq: int
    keys: Mapping[str, Sequence[str]]
    """By topic."""


@attrs.define(eq=False, repr=False)
class FeedDocument:
    """See the module docstring.

    Args:
      epoch: of this life of the balancer.
      head: called for each event that is made.
    """

    epoch: str
    head: Head = dict
    max_diffs: int = MAX_DIFFS
    max_diff_keys: int = MAX_DIFF_KEYS
    seq: int = attrs.field(default=0, init=False)
    _topics: dict[str, _Topic] = attrs.field(factory=dict, init=False)
    _diffs: deque[_Diff] = attrs.field(factory=deque, init=False)
    _num_keys: int = attrs.field(default=0, init=False)
    """In all diffs."""
    _forgotten: int = attrs.field(default=0, init=False)
    """The newest sequence number that was forgotten."""

    def __repr__(self) -> str:
        topics = ", ".join(f"{len(each.entries)} {name}" for name, each in self._topics.items())
        return f"<FeedDocument {self.epoch}.{self.seq}: {topics or 'nothing'}>"

    # -------------------------------------------------------------- writing

    def begin(self, topic: str, entries: Mapping[str, Entry]) -> None:
        """The topic is kept up to date from now on."""
        self.seq += 1
        self._topics[topic] = _Topic(dict(entries), self.seq)

    def drop(self, topic: str) -> None:
        """It is not, any more."""
        self._topics.pop(topic, None)

    def entries(self, topic: str) -> Mapping[str, Entry]:
        """Return the newest ones by key; none of a topic that is not kept up to date."""
        known = self._topics.get(topic)
        return {} if known is None else known.entries

    def commit(self, changes: Mapping[str, Mapping[str, Entry | None]]) -> bool:
        """Note what became of keys, by topic, None for those that are gone; False if that is
        nothing."""
        keys = {topic: tuple(changed) for topic, changed in changes.items() if changed}
        if not keys:
            return False
        self.seq += 1
        for topic in keys:
            entries = self._topics[topic].entries
            for key, changed in changes[topic].items():
                if changed is None:
                    entries.pop(key, None)
                else:
                    entries[key] = changed
        self._diffs.append(_Diff(self.seq, keys))
        self._num_keys += sum(map(len, keys.values()))
        while len(self._diffs) > self.max_diffs or self._num_keys > self.max_diff_keys:
            oldest = self._diffs.popleft()
            self._num_keys -= sum(map(len, oldest.keys.values()))
            self._forgotten = oldest.seq
        return True

    # -------------------------------------------------------------- reading

    def full(self, topics: Iterable[str]) -> bytes:
        """Return an event that shows these topics whole; all of them have begun."""
        entries = {name: self._topics[name].entries.values() for name in topics}
        return self._event(entries, {}, is_full=True)

    def nothing(self) -> bytes:
        """Return an event without a change."""
        return self._event({}, {}, is_full=False)

    def since(self, seq: int, topics: Sequence[str]) -> bytes | None:
        """Return what leads from ``seq`` to now; empty if these topics are the same as then.

        None: only :meth:`full` does.
        """
        if not self._forgotten <= seq <= self.seq:
            return None
        if any(self._topics[name].complete_from > seq for name in topics):
            return None
        changed: dict[str, dict[str, None]] = {}
        for diff in reversed(self._diffs):
            if diff.seq <= seq:
                break
            for name in topics:
                if name in diff.keys:
                    changed.setdefault(name, {}).update(dict.fromkeys(diff.keys[name]))
        if not changed:
            return b""
        present: dict[str, Sequence[Entry]] = {}
        gone: dict[str, Sequence[str]] = {}
        for name, keys in changed.items():
            known = self._topics[name].entries
            here = [known[key] for key in keys if key in known]
            if here:
                present[name] = here
            if len(here) < len(keys):
                gone[name] = [key for key in keys if key not in known]
        return self._event(present, gone, is_full=False)

    def _event(
        self,
        entries: Mapping[str, Iterable[Entry]],
        gone: Mapping[str, Sequence[str]],
        *,
        is_full: bool,
    ) -> bytes:
        """Return a server-sent event, with its id."""
        head = {"epoch": self.epoch, "seq": self.seq, "full": is_full, **self.head()}
        pieces = [
            b"id: %b.%d\ndata: " % (self.epoch.encode(), self.seq),
            dumps(head)[:-1],
            b',"set":{',
        ]
        for number, (name, each) in enumerate(entries.items()):
            pieces += b"," * (number > 0), b'"%b":{' % name.encode(), b",".join(each), b"}"
        pieces += b'},"gone":', dumps(gone), b"}\n\n"
        return b"".join(pieces)
