"""Whatever a watcher missed: the events that it gets, applied in order, are the document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.balancer.activity.feed_document import FeedDocument, entry

TOPICS = ("a", "b", "c")
KEYS = ("1", "2", "3", 'x"y\n')
TOPIC = st.sampled_from(TOPICS)
CHANGES = st.dictionaries(
    TOPIC, st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 3), max_size=4)
)


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

    @rule(topic=TOPIC, values=st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3)))
    def begin(self, topic: str, values: dict[str, int]) -> None:
        if topic not in self.truth:
            self.truth[topic] = dict(values)
            self.document.begin(topic, entries(values))

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.truth)))
        del self.truth[topic]
        self.document.drop(topic)

    @rule(changes=CHANGES)
    def change(self, changes: dict[str, dict[str, int | None]]) -> None:
        known = {topic: keys for topic, keys in changes.items() if topic in self.truth}
        before = self.document.seq
        did = self.document.commit({topic: entries(each) for topic, each in known.items()})
        assert did == any(known.values())
        assert self.document.seq == before + did
        for topic, each in known.items():
            for key, value in each.items():
                if value is None:
                    self.truth[topic].pop(key, None)
                else:
                    self.truth[topic][key] = value

    @rule(topics=st.sets(TOPIC, min_size=1))
    def come(self, topics: set[str]) -> None:
        if len(self.readers) < 3:
            self.readers.append(Reader(tuple(sorted(topics))))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        if set(reader.topics) <= self.truth.keys():
            reader.read(self.document)
            assert reader.shown == {topic: self.truth[topic] for topic in reader.topics}

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), seq=st.integers(-1, 30))
    def forget(self, data: st.DataObject, seq: int) -> None:
        """A reader begins anew; or another one claims a number that it never got."""
        reader = data.draw(st.sampled_from(self.readers))
        reader.seq, reader.shown = None, {}
        known = self.truth.keys() & set(reader.topics)
        self.document.since(seq, tuple(known))  # does not raise, whatever it is

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
