"""A text in Python's quotes, or between quote tokens."""

from __future__ import annotations

import re

from paddler_trio.language.answers.call_events import NotACallError
from paddler_trio.language.answers.text_source import Reading, Sink, Source, stops_of

_KEY = re.compile(r"[A-Za-z_][\w.-]*\s*=")
_BEGUN_KEY = re.compile(r"[A-Za-z_][\w.-]*\s*")
_MAX_AHEAD = 256


def read_quoted(source: Source, quote: str, sink: Sink, depth: int) -> Reading[None]:
    """A text through its closing quote; models forget to escape quotes inside, so they are here."""
    escapes = ("\\",) if len(quote) == 1 else ()
    while True:
        stop = yield from source.take_until(stops_of(quote, *escapes), sink)
        if stop is None:
            raise NotACallError("a text in the call does not end")
        if stop == quote:
            if not escapes or (yield from _may_follow_value(source, depth)):
                sink(stop)
                return
            sink("\\")
        sink(stop)
        if stop != quote:
            if not (yield from source.peek()):
                raise NotACallError("a text in the call does not end")
            sink(source.take(1))


def _may_follow_value(source: Source, depth: int) -> Reading[bool]:
    """Whether a value of a call can end before what comes next.

    Args:
      depth: how many brackets are open inside the value.
    """
    while True:
        ahead = source.ahead(_MAX_AHEAD)
        is_all_there = source.ended or len(ahead) == _MAX_AHEAD
        there = ahead.lstrip()
        first, after = there[:1], there[1:].lstrip()
        if first and (depth or first not in ",)"):
            return bool(depth) and first in ",:)]}"
        if first and after:
            if first == ")":  # the call ends too, and another one or a text may follow
                gap = there[1 : len(there) - len(after)]
                return after[0] in ",;]`<_" or after[0].isalnum() or "\n" in gap
            if after[0] == ")" or _KEY.match(after):
                return True
            if not _BEGUN_KEY.fullmatch(after):
                return False
        if is_all_there:
            return True
        yield
