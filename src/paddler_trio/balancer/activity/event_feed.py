"""The feed: one task that looks at the topics somebody watches, and wakes their watchers.

Without watchers the task waits, and nothing is held. While there are some it looks at most four
times a second, and less often the more it costs: the bytes of a change times their watchers, and
the processor time of the look itself. Looks are made in pieces of a millisecond. What a look found
becomes visible in one step, with one sequence number.

A watcher takes an event when it is ready for one, and gets what changed since its last one: whoever
reads slowly gets newer events, not more of them. Events are made once for all who need the same.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, thread_time
from typing import Final

import attrs
import trio

from paddler_trio.balancer.activity.feed_document import Entry, FeedDocument, entry
from paddler_trio.balancer.activity.feed_topic import Topic
from paddler_trio.balancer.activity.moments import ms, utc_ms
from paddler_trio.balancer.fleet.shared_view import BYTES_OF_A_SEND
from paddler_trio.errors import PaddlerError
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.system.synchronization import Changes

SHORTEST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 2.0
WATCHERS_BYTES_A_SECOND: Final = 16 * 1024 * 1024
"""To all watchers together."""
LOOKING_SHARE: Final = 0.04
"""Of processor time; looks pause accordingly."""
LONGEST_LOOKING_PAUSE_S: Final = 5.0
"""For this; a fleet of thousands of agents takes long to look at."""
PIECE_S: Final = 0.001
"""Of a look, before others run."""
LINGER_S: Final = 10.0
"""A topic is kept up to date so long without a watcher: one that comes back resumes."""
MAX_WATCHERS: Final = 64
SHARED_EVENT_S: Final = 0.1
"""An event is sent to others so long: it says which moment it is of."""
MAX_SHARED_EVENTS: Final = 8


class TooManyWatchersError(PaddlerError):
    """The feed has as many watchers as it may have."""


@attrs.define(eq=False, repr=False)
class EventFeed:
    """See the module docstring.

    Args:
      all_topics: that may be watched.
    """

    all_topics: Sequence[Topic]
    max_watchers: int = MAX_WATCHERS
    document: FeedDocument = attrs.field(init=False)
    committed: Changes = attrs.field(factory=Changes, init=False)
    """Something new can be read."""
    watchers: int = attrs.field(default=0, init=False)
    _topics: dict[str, Topic] = attrs.field(init=False)
    _watching: Counter[str] = attrs.field(factory=Counter, init=False)
    """How many watch each topic."""
    _open: dict[str, float] = attrs.field(factory=dict, init=False)
    """Topics that are up to date, with the last time that somebody was seen to watch them."""
    _newcomer: trio.Event = attrs.field(factory=trio.Event, init=False)
    _shared: dict[tuple[int | None, Sequence[str]], tuple[float, bytes | None]] = attrs.field(
        factory=dict, init=False
    )

    def __attrs_post_init__(self) -> None:
        self._topics = {topic.name: topic for topic in self.all_topics}
        self.document = FeedDocument(secrets.token_hex(4), _moment)

    def __repr__(self) -> str:
        return f"<EventFeed {self.document!r}, {self.watchers} watchers>"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all topics."""
        return tuple(self._topics)

    # ----------------------------------------------------------- for watchers

    @contextmanager
    def watch(self, topics: Sequence[str]) -> Iterator[Watcher]:
        """Be one of the watchers of these topics; TooManyWatchersError."""
        if self.watchers >= self.max_watchers:
            raise TooManyWatchersError(
                f"{self.watchers} watch the feed, the limit is {self.max_watchers}: close one"
            )
        shown = tuple(name for name in self._topics if name in topics)
        self.watchers += 1
        self._watching.update(shown)
        if not self.has_begun(shown):
            self._newcomer.set()
        try:
            yield Watcher(self, shown)
        finally:
            self.watchers -= 1
            self._watching.subtract(shown)

    def has_begun(self, topics: Sequence[str]) -> bool:
        """Return whether all of these are up to date."""
        return self._open.keys() >= set(topics)

    def event(self, seq: int | None, topics: Sequence[str]) -> bytes | None:
        """Return the event that leads from ``seq`` to now; a full one for None.

        None if there is none: only a full one will do. Empty if nothing differs.
        """
        now_s = trio.current_time()
        made_s, event = self._shared.get((seq, topics), (-SHARED_EVENT_S, None))
        if now_s - made_s >= SHARED_EVENT_S:
            document = self.document
            event = document.full(topics) if seq is None else document.since(seq, topics)
            if len(self._shared) >= MAX_SHARED_EVENTS:
                del self._shared[next(iter(self._shared))]
            self._shared[seq, topics] = now_s, event
        return event

    # --------------------------------------------------------------- the task

    async def run(self) -> None:
        """Keep what is watched up to date, until cancelled."""
        explain_this_task(self._explanation)
        while True:
            await self._begin_topics()
            began_s = trio.current_time()
            num_bytes, looking_s = await self._tick()
            self._close_unwatched()
            if not self._open:
                await self._newcomer.wait()
                continue
            pause_s = max(
                SHORTEST_PAUSE_S,
                min(LONGEST_PAUSE_S, num_bytes / WATCHERS_BYTES_A_SECOND),
                min(LONGEST_LOOKING_PAUSE_S, looking_s / LOOKING_SHARE),
            )
            due_s = max(began_s + pause_s, trio.current_time() + SHORTEST_PAUSE_S / 2)
            while trio.current_time() < due_s:
                with trio.move_on_at(due_s):
                    await self._newcomer.wait()
                await self._begin_topics()

    def _explanation(self) -> str:
        if not self._open:
            return "waits for a watcher"
        return f"{self.watchers} watch {', '.join(self._open)}; event {self.document.seq}"

    async def _begin_topics(self) -> None:
        """Show topics whole that are watched and were not."""
        self._newcomer = trio.Event()
        for name, topic in self._topics.items():
            if self._watching[name] <= 0 or name in self._open:
                continue
            topic.open()
            changes, _ = await self._look(topic)
            entries = {key: each for key, each in changes.items() if each is not None}
            self.document.begin(name, entries)
            self._open[name] = trio.current_time()
            self._shared.clear()
            self.committed.notify()

    async def _tick(self) -> tuple[int, float]:
        """Look at all topics that are open.

        Returns:
          What was found costs to send, in bytes; and for how long was looked.
        """
        found: dict[str, dict[str, Entry | None]] = {}
        total_s, num_bytes = 0.0, 0
        for name in self._open:
            found[name], looking_s = await self._look(self._topics[name])
            total_s += looking_s
            size = sum(len(each or b"") for each in found[name].values())
            num_bytes += size * max(0, self._watching[name])
        if self.document.commit(found):
            num_bytes += BYTES_OF_A_SEND * self.watchers
            self._shared.clear()
            self.committed.notify()
        return num_bytes, total_s

    async def _look(self, topic: Topic) -> tuple[dict[str, Entry | None], float]:
        """Return what differs from what is shown, and the processor time that it took to see
        that."""
        shown = self.document.entries(topic.name)
        changes: dict[str, Entry | None] = {}
        looking_s = -thread_time()
        piece_ends_s = perf_counter() + PIECE_S
        for change in topic.look(trio.current_time()):
            if change is not None:
                key, text = change
                found = None if text is None else entry(key, text)
                if found != shown.get(key):
                    changes[key] = found
                else:
                    changes.pop(key, None)
            if perf_counter() > piece_ends_s:
                looking_s += thread_time()
                await trio.lowlevel.checkpoint()
                looking_s -= thread_time()
                piece_ends_s = perf_counter() + PIECE_S
        return changes, looking_s + thread_time()

    def _close_unwatched(self) -> None:
        now_s = trio.current_time()
        for name, watched_s in list(self._open.items()):
            if self._watching[name] > 0:
                self._open[name] = now_s
            elif now_s - watched_s >= LINGER_S:
                self._topics[name].close()
                self.document.drop(name)
                del self._open[name]
                self._shared.clear()


@attrs.define(eq=False)
class Watcher:
    """One who reads the feed, at its own pace."""

    feed: EventFeed
    topics: tuple[str, ...]
    seq: int | None = attrs.field(default=None, init=False)
    """Of the last event it has; None if it has none."""
    _is_greeted: bool = attrs.field(default=False, init=False)

    def resume(self, last_event_id: str) -> None:
        """Go on after this event, if that can be."""
        epoch, _, seq = last_event_id.rpartition(".")
        is_number = seq.isascii() and seq.isdecimal() and len(seq) <= 15
        if epoch == self.feed.document.epoch and is_number:
            self.seq = int(seq)

    async def next(self) -> bytes:
        """Return the next event that has something new; a full one if there is no other way.

        The first one comes in any case: who resumes hears at once that it did.
        """
        feed = self.feed
        await trio.lowlevel.checkpoint()  # not later: an event that is taken is not lost
        while True:
            ordinal = feed.committed.ordinal
            if feed.has_begun(self.topics):
                event = feed.event(self.seq, self.topics)
                if event is None:
                    event = feed.event(None, self.topics)
                    assert event is not None
                self.seq = feed.document.seq
                if not self._is_greeted:
                    self._is_greeted = True
                    event = event or feed.document.nothing()
                if event:
                    return event
            await feed.committed.wait_beyond(ordinal)


def _moment() -> dict[str, object]:
    return {"now_ms": ms(trio.current_time()), "time": utc_ms()}
