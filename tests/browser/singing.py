"""Requests that run for as long as a test wants to look at them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import httpx
from fleet import BUNDLED_MODEL, Fleet
from streams import RAW, song

from no_tls import NO_TLS

CONTEXT = 65_536
"""For four slots: an answer of so many tokens takes longer than any test looks at it."""
PATIENCE_S = 60.0


@attrs.define(eq=False)
class Singer:
    """A client that reads its answer in a thread of its own."""

    began: threading.Event = attrs.field(factory=threading.Event, init=False)
    ended: threading.Event = attrs.field(factory=threading.Event, init=False)
    error: dict[str, object] | None = attrs.field(default=None, init=False)
    """What the answer ended with, if that was an error."""
    _leaves: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)

    def sing(self, fleet: Fleet, client: str) -> None:
        """Ask, and return once the answer has begun."""
        self._thread = threading.Thread(target=self._read, args=(fleet.inference_url, client))
        self._thread.start()
        assert self.began.wait(PATIENCE_S), "no answer has begun"

    def leave(self) -> None:
        """Close the connection, if it is not closed yet."""
        self._leaves.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def _read(self, base: str, client: str) -> None:
        with (
            httpx.Client(trust_env=False, verify=NO_TLS, timeout=PATIENCE_S) as http,
            http.stream(
                "POST",
                f"{base}{RAW}",
                json=song(max_tokens=CONTEXT),
                headers={"X-Paddler-Client": client},
            ) as answer,
        ):
            for line in answer.iter_lines():
                self.began.set()
                if '"Error"' in line[:20]:
                    self.error = json.loads(line)["Error"]["error"]
                if self._leaves.is_set():
                    break
        self.ended.set()


@contextmanager
def singing(fleet: Fleet, client: str) -> Iterator[Singer]:
    """One of this name, from its first token on; it leaves at the end at the latest."""
    singer = Singer()
    try:
        singer.sing(fleet, client)
        yield singer
    finally:
        singer.leave()


def give_long_contexts(fleet: Fleet) -> None:
    """Agents serve the bundled model so that an answer can be long."""
    fleet.desire(BUNDLED_MODEL, context_size=CONTEXT)
    fleet.wait_serving()
