"""A client of ``/api/v2/events`` for tests: it applies what it gets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import httpx

from no_tls import NO_TLS

PATIENCE_S = 60.0

Document = dict[str, dict[str, Any]]


@attrs.define(eq=False)
class FeedReader:
    """What a feed has shown so far."""

    _lines: Iterator[str]
    document: Document = attrs.field(factory=dict, init=False)
    """Values by topic and key."""
    last_id: str = attrs.field(default="", init=False)
    events: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    @classmethod
    @contextmanager
    def watching(
        cls, management_url: str, topics: str | None = None, *, resumes: FeedReader | None = None
    ) -> Iterator[FeedReader]:
        """A stream of these topics, all without any; ``resumes`` one that was lost."""
        query = {} if topics is None else {"topics": topics}
        headers = {} if resumes is None else {"Last-Event-ID": resumes.last_id}
        with httpx.stream(
            "GET",
            f"{management_url}/api/v2/events",
            params=query,
            headers=headers,
            trust_env=False,
            verify=NO_TLS,
            timeout=PATIENCE_S,
        ) as answer:
            answer.raise_for_status()
            reader = cls(answer.iter_lines())
            if resumes is not None:
                reader.document = resumes.document
            yield reader

    def next(self) -> dict[str, Any]:
        """The next event, applied; StopIteration at the end of the stream."""
        last_id = ""
        while True:
            line = next(self._lines)
            if line.startswith("id: "):
                last_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                self.last_id = last_id
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                self._apply(event)
                self.events.append(event)
                return event

    def until(self, is_so: Callable[[Document], object], what: str) -> Document:
        """Read on until the document satisfies ``is_so``; AssertionError if it does not in time."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not self.document or not is_so(self.document):
            assert time.monotonic() < give_up_s, f"not in time: {what}; shown: {self.document}"
            self.next()
        return self.document

    def _apply(self, event: dict[str, Any]) -> None:
        if event["full"]:
            self.document = event["set"]
            return
        for topic, keys in event["gone"].items():
            for key in keys:
                self.document[topic].pop(key, None)
        for topic, values in event["set"].items():
            self.document[topic] |= values
