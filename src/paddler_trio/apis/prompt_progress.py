"""How far the prompt of one choice is, in llama-server's words: pure.

``prompt_progress`` begins with what the cache had, only rises, and ends with the whole prompt
before the first token. Agents tell of it now and then; what they leave out is added here as far
as it is known: the beginning from the first news, the end from the first token after them.
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
      began_s: from when time counts if the agent did not tell of the beginning.
    """

    now_s: Callable[[], float]
    began_s: float
    _latest: Prefilled | None = attrs.field(default=None, init=False)
    _told: int = attrs.field(default=-1, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def heard(self, news: Prefilled) -> list[Report]:
        """What there is to tell after this; nothing twice, and nothing beside tokens: another
        agent that goes on after a loss computes the prompt once more."""
        if self._is_over:
            return []
        first = [] if self._latest is not None else [attrs.evolve(news, done=news.cached)]
        if news.done == news.cached:
            self.began_s = self.now_s()
        self._latest = news
        return [self._report(each) for each in (*first, news) if each.done > self._told]

    def finished(self) -> list[Report]:
        """What there is to tell when the first token came."""
        was_over, self._is_over = self._is_over, True
        if was_over or self._latest is None or self._told >= self._latest.total:
            return []
        return [self._report(attrs.evolve(self._latest, done=self._latest.total))]

    def _report(self, news: Prefilled) -> Report:
        self._told = news.done
        took_ms = (self.now_s() - self.began_s) * 1000 if news.done > news.cached else 0.0
        progress: Json = {
            "total": news.total,
            "cache": news.cached,
            "processed": news.done,
            "time_ms": round(took_ms),
        }
        return Report(progress, prompt_timings_of(news, took_ms))


@attrs.define
class Reports:
    """Those of all choices of one answer; none unless they are wanted.

    Args:
      watch: hears of the first choice's prompt whether they are wanted or not.
      with_timings: chunks that tell of a prompt carry timings, too.
    """

    watch: Stopwatch
    is_wanted: bool
    with_timings: bool
    _choices: dict[int, PromptProgress] = attrs.field(factory=dict, init=False)

    def before(self, choice: int, piece: Piece) -> list[Json]:
        """The members of the chunks that come before ``piece`` is told."""
        if isinstance(piece, Prefilled) and choice == 0:
            self.watch.prefilled(piece)
        if not self.is_wanted:
            return []
        watch = self.watch
        progress = self._choices.setdefault(choice, PromptProgress(watch.now_s, watch.began_s))
        reports = progress.heard(piece) if isinstance(piece, Prefilled) else progress.finished()
        return [self._members(report) for report in reports]

    def _members(self, report: Report) -> Json:
        told: Json = {"prompt_progress": report.progress}
        return told | {"timings": report.timings} if self.with_timings else told
