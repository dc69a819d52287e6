"""Whatever a watcher missed: the events that it gets, applied in order, are the document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paddler_trio.balancer.activity.feed_document import FeedDocument, entry

TOPICS = ("a", "b", "c")
KEYS = ("1", "2", "3", 'x"y\n')
TOPIC = st.sampled_from(TOPICS)
KEY = st.sampled_from(KEYS)
VALUES = st.dictionaries(KEY, st.integers(0, 3))
CHANGED = st.dictionaries(KEY, st.none() | st.integers(0, 3), min_size=1)
CHANGES = st.dictionaries(TOPIC, CHANGED, max_size=2)


def data_of(text: bytes) -> dict[str, Any]:
    """What stands in a server-sent event."""
    id_line, data_line, *rest = text.split(b"\n")
    event: dict[str, Any] = json.loads(data_line.removeprefix(b"data: "))
    assert id_line == b"id: %b.%d" % (event["epoch"].encode(), event["seq"])
    assert rest == [b"", b""]
    return event


@attrs.define
class Reader:
    """A client as one is written: it applies what it gets."""

    topics: tuple[str, ...]
    seq: int | None = None
    shown: dict[str, dict[str, int]] = attrs.field(factory=dict)

    def read(self, document: FeedDocument) -> None:
        text = None if self.seq is None else document.since(self.seq, self.topics)
        if text is None:
            text = document.full(self.topics)
        if not text:
            self.seq = document.seq
            return
        event = data_of(text)
        assert event["epoch"] == document.epoch
        assert set(event["set"]) | set(event["gone"]) <= set(self.topics)
        if event["full"]:
            assert set(event["set"]) == set(self.topics)
            self.shown = event["set"]
        else:
            assert self.seq is not None
            assert event["seq"] > self.seq, "an event that brings nothing"
            for topic, keys in event["gone"].items():
                for key in keys:
                    self.shown[topic].pop(key, None)
            for topic, values in event["set"].items():
                assert values, "an empty topic"
                self.shown[topic] |= values
        self.seq = event["seq"]


def entries(values: Mapping[str, int | None]) -> dict[str, Any]:
    return {
        key: None if value is None else entry(key, b"%d" % value) for key, value in values.items()
    }


class Watching(RuleBasedStateMachine):
    """Readers that read when they like, lose their place, or come back after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.document = FeedDocument("epoch", max_diffs=4, max_diff_keys=9)
        self.truth: dict[str, dict[str, int]] = {}
        self.readers: list[Reader] = []

    @initialize()
    def begin(self) -> None:
        for topic in TOPICS:
            self.truth[topic] = {"1": 1}
            self.document.begin(topic, entries(self.truth[topic]))
        self.readers = [Reader(TOPICS), Reader(("a",))]

    @rule(topic=TOPIC, values=VALUES)
    def pause(self, topic: str, values: dict[str, int]) -> None:
        """A topic is not kept up to date for a while."""
        self.document.drop(topic)
        self.truth[topic] = dict(values)
        self.document.begin(topic, entries(values))

    @rule(topic=TOPIC, others=CHANGES, changed=CHANGED)
    def change(
        self, topic: str, others: dict[str, dict[str, int | None]], changed: dict[str, int | None]
    ) -> None:
        changes = others | {topic: changed}
        before = self.document.seq
        assert self.document.commit({name: entries(each) for name, each in changes.items()})
        assert self.document.seq == before + 1
        assert not self.document.commit({name: {} for name in changes})
        for name, each in changes.items():
            for key, value in each.items():
                if value is None:
                    self.truth[name].pop(key, None)
                else:
                    self.truth[name][key] = value

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.read(self.document)
        assert reader.shown == {topic: self.truth[topic] for topic in reader.topics}

    @rule(topics=st.sets(TOPIC, min_size=1))
    def come(self, topics: set[str]) -> None:
        """Another reader, in the place of the one that was here longest."""
        self.readers = [*self.readers[-2:], Reader(tuple(sorted(topics)))]

    @rule(seq=st.integers(-1, 60), topics=st.sets(TOPIC, min_size=1))
    def claim(self, seq: int, topics: set[str]) -> None:
        """Whatever number somebody claims to have: it is answered, or not."""
        text = self.document.since(seq, tuple(topics))
        assert text is None or 0 <= seq <= self.document.seq

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.document._diffs) <= 4
        assert sum(len(k) for d in self.document._diffs for k in d.keys.values()) <= 9


class TestWatching(Watching.TestCase):
    settings = settings(stateful_step_count=40)


def test_a_reader_of_everything_but_the_newest_gets_one_event() -> None:
    document = FeedDocument("e", lambda: {"now_ms": 7})
    document.begin("a", entries({"1": 7, "2": 2}))
    begun = document.seq
    for number in range(50):
        document.commit({"a": entries({"1": number})})
    document.commit({"a": {"2": None}})
    text = document.since(begun, ("a",))
    assert text == (
        b"id: e.52\n"
        b'data: {"epoch":"e","seq":52,"full":false,"now_ms":7,'
        b'"set":{"a":{"1":49}},"gone":{"a":["2"]}}\n\n'
    )
    assert document.since(document.seq, ("a",)) == b""
    assert document.since(document.seq + 1, ("a",)) is None, "of the future"
    assert document.since(begun - 1, ("a",)) is None, "from before the topic began"


def test_a_topic_that_was_not_kept_up_to_date_is_shown_whole() -> None:
    document = FeedDocument("e")
    document.begin("a", entries({"1": 1}))
    seen = document.seq
    document.drop("a")
    document.begin("a", entries({"1": 2}))
    assert document.since(seen, ("a",)) is None
