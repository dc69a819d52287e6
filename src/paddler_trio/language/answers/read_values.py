"""Where a value between tags ends: code speaks about tags, and models misspell or repeat them."""

from __future__ import annotations

from collections.abc import Sequence

from paddler_trio.language.answers.call_events import NotACallError
from paddler_trio.language.answers.call_syntax import TaggedCalls
from paddler_trio.language.answers.known_slips import ends_of_call, misspelt_ends
from paddler_trio.language.answers.text_source import Reading, Sink, Source, stops_of


def take_value(
    source: Source,
    syntax: TaggedCalls,
    key: str,
    missing: set[str],
    sink: Sink,
    section_end: str = "",
) -> Reading[str]:
    """The value of ``key`` up to the tag that ends it, which is taken; NotACallError without one.

    A tag that neither an argument nor the call's end follows is text, and so is one that closes
    what the value opened. Where the tag was forgotten, an argument that was still missing ends the
    value if a line begins with it, and so does the call's end, or the section's, if it is the last
    of the section.

    Returns:
      The tag of the value's end, or the beginning of the next argument, which was taken too.
    """
    closers = (syntax.value_end, *misspelt_ends(syntax.value_end, key))
    opener = _opener_of(syntax)
    next_key = f"\n{syntax.before_key}"
    lasts = [f"\n{syntax.call_end}"] * bool(syntax.call_end) + [section_end] * bool(section_end)
    stops = stops_of(*closers, opener, *lasts, *[next_key] * bool(missing))
    depth = 0
    while (stop := (yield from source.take_until(stops, sink))) is not None:
        if stop in closers:
            run = yield from _run_of(source, stop, closers)
            last = yield from _last_of(source, syntax, run, depth)
            kept = run if last is None else run[:last]
            sink("".join(map("".join, kept)))
            depth = max(0, depth - len(kept))
            if last is not None:
                return syntax.value_end
        elif stop in lasts:
            with source.recording() as blanks:
                is_end = not (yield from source.skip_blank())
            if is_end and stop == section_end:  # it is all there, though a reader of tags took it
                source.is_cut_off = False  # for a part of the value
            if is_end and not source.is_cut_off:
                return syntax.value_end
            sink(stop + "".join(blanks))
        elif stop == next_key and (yield from _is_key(source, syntax, missing)):
            return stop
        else:
            depth += opener in stop
            sink(stop)
    raise NotACallError(f"the argument {key!r} does not end")


def _opener_of(syntax: TaggedCalls) -> str:
    """What a value that speaks about tags opens and closes again."""
    end = syntax.value_end
    return f"<{end[2:-1]}" if end.startswith("</") and len(end) > 3 else syntax.before_key


def _run_of(source: Source, closer: str, closers: Sequence[str]) -> Reading[list[tuple[str, str]]]:
    """``closer``, which was taken, and others that follow at once, each with the blanks behind."""
    run: list[tuple[str, str]] = []
    while True:
        with source.recording() as blanks:
            yield from source.skip_blank()
        run.append((closer, "".join(blanks)))
        following = yield from source.starts_with(*closers)
        if following is None:
            return run
        closer = source.take(len(following))


def _last_of(
    source: Source, syntax: TaggedCalls, run: Sequence[tuple[str, str]], depth: int
) -> Reading[int | None]:
    """Which of these tags ends the value; None if all are text.

    Args:
      depth: how many tags are open that the value opened itself.
    """
    proper = [index for index, (closer, _) in enumerate(run) if closer == syntax.value_end]
    is_end = source.ended and source.is_spent
    ends = (syntax.before_key, *ends_of_call(syntax))
    if is_end or (yield from source.starts_with(*ends)) is not None:
        candidates = proper or range(len(run))
        return candidates[min(depth, len(candidates) - 1)]
    return proper[0] if proper and not syntax.call_end else None


def _is_key(source: Source, syntax: TaggedCalls, keys: set[str]) -> Reading[bool]:
    """Whether one of ``keys`` and the end of its tag come next."""
    tags = (f"{key}{syntax.key_end}" for key in keys)
    return (yield from source.starts_with(*tags)) is not None
