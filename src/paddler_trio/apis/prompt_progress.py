"""llama-server's ``prompt_progress`` of one choice: pure.

It begins with the tokens that the cache had, only rises, and ends with the whole prompt before the
first token. Agents report it now and then; the missing beginning is derived from the first report,
the missing end from the first token after it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from paddler_trio.apis.answer import Piece, Prefilled, Stopwatch, prompt_timings_of

Json = dict[str, object]


@attrs.frozen
class Report:
    """``progress`` stands under ``prompt_progress``; ``timings`` are those of the same moment."""

    progress: Json
    timings: Json


@attrs.define
class PromptProgress:
    """See the module docstring.

    Args:
      now_s: a clock of seconds.
      began_s: from when time counts if the agent did not report the beginning.
    """

    now_s: Callable[[], float]
    began_s: float
    _latest: Prefilled | None = attrs.field(default=None, init=False)
    _reported: int = attrs.field(default=-1, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def take(self, prefilled: Prefilled) -> list[Report]:
        """The reports that follow from this one of the agent.

        None repeats, and there are none after the first token: an agent that continues after a
        loss computes the prompt once more.
        """
        if self._is_over:
            return []
        first = [] if self._latest is not None else [attrs.evolve(prefilled, done=prefilled.cached)]
        if prefilled.done == prefilled.cached:
            self.began_s = self.now_s()
        self._latest = prefilled
        return [self._report(each) for each in (*first, prefilled) if each.done > self._reported]

    def finished(self) -> list[Report]:
        """The reports that are missing when the first token came."""
        was_over, self._is_over = self._is_over, True
        if was_over or self._latest is None or self._reported >= self._latest.total:
            return []
        return [self._report(attrs.evolve(self._latest, done=self._latest.total))]

    def _report(self, prefilled: Prefilled) -> Report:
        self._reported = prefilled.done
        took_ms = (self.now_s() - self.began_s) * 1000 if prefilled.done > prefilled.cached else 0.0
        progress: Json = {
            "total": prefilled.total,
            "cache": prefilled.cached,
            "processed": prefilled.done,
            "time_ms": round(took_ms),
        }
        return Report(progress, prompt_timings_of(prefilled, took_ms))


@attrs.define
class Reports:
    """Those of all choices of one answer; none unless ``is_wanted``.

    Args:
      watch: gets the progress of the first choice in any case.
      with_timings: chunks of progress carry timings, too.
    """

    watch: Stopwatch
    is_wanted: bool
    with_timings: bool
    _choices: dict[int, PromptProgress] = attrs.field(factory=dict, init=False)

    def before(self, choice: int, piece: Piece) -> list[Json]:
        """The members of the chunks that come before that of ``piece``."""
        if isinstance(piece, Prefilled) and choice == 0:
            self.watch.prefilled(piece)
        if not self.is_wanted:
            return []
        watch = self.watch
        progress = self._choices.setdefault(choice, PromptProgress(watch.now_s, watch.began_s))
        reports = progress.take(piece) if isinstance(piece, Prefilled) else progress.finished()
        return [self._members(report) for report in reports]

    def _members(self, report: Report) -> Json:
        members: Json = {"prompt_progress": report.progress}
        return members | {"timings": report.timings} if self.with_timings else members
