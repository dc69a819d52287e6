"""Tell how much and how long: usage, timings and the progress of prompts, as OpenAI and
llama-server report them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from paddler_trio.balancer.apis.answers.answer import Ended, Piece, Prefilled, completion_tokens
from paddler_trio.balancer.apis.shapes import Json


def usage_of(endings: Sequence[Ended], *, prompts: int = 1) -> Json:
    """OpenAI's ``usage``: each prompt counts once, the tokens of all its choices add up.

    Args:
      endings: of all choices, in their order: those of one prompt stand together.
      prompts: how many different prompts the request had.
    """
    per_prompt = max(1, len(endings) // prompts)
    firsts = endings[::per_prompt]
    prompt_tokens = sum(ending.usage["prompt_tokens"] for ending in firsts)
    cached = sum(ending.usage.get("cached_prompt_tokens", 0) for ending in firsts)
    heard = sum(ending.usage.get("input_audio_tokens", 0) for ending in firsts)
    reasoning = sum(ending.usage.get("reasoning_tokens", 0) for ending in endings)
    written = sum(completion_tokens(ending) for ending in endings)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": heard},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def timings_of(ending: Ended) -> Json:
    """llama-server's ``timings``: counts, milliseconds, and both ratios of them."""
    reported = ending.timings
    cached = int(reported.get("cached_n", ending.usage.get("cached_prompt_tokens", 0)))
    timings = _timings(
        cached,
        ending.usage["prompt_tokens"] - cached,
        reported.get("prompt_ms", 0.0),
        int(reported.get("predicted_n", completion_tokens(ending))),
        reported.get("predicted_ms", 0.0),
    )
    if "draft_n" in reported:
        timings["draft_n"] = reported["draft_n"]
        timings["draft_n_accepted"] = reported.get("draft_accepted_n", 0)
    return timings


def _timings(
    cached: int, computed: int, prompt_ms: float, predicted: int, predicted_ms: float
) -> Json:
    """The first token is sampled in the prompt's last pass: its time counts from there on."""
    return {
        "cache_n": cached,
        **_speed("prompt", computed, computed, prompt_ms),
        **_speed("predicted", predicted, max(0, predicted - 1), predicted_ms),
    }


def _speed(name: str, count: int, timed: int, took_ms: float) -> Json:
    took_ms = round(took_ms, 3)
    return {
        f"{name}_n": count,
        f"{name}_ms": took_ms,
        f"{name}_per_token_ms": took_ms / timed if timed else 0.0,
        f"{name}_per_second": timed / took_ms * 1000 if took_ms else 0.0,
    }


@attrs.define
class Stopwatch:
    """The ``timings`` while tokens still come, measured where they are passed on."""

    now_s: Callable[[], float]
    began_s: float = attrs.field(init=False)
    _prompt: Prefilled | None = attrs.field(default=None, init=False)
    _first_token_s: float | None = attrs.field(default=None, init=False)
    _num_tokens: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.began_s = self.now_s()

    def prefilled(self, prompt: Prefilled) -> None:
        """Note how far the prompt is computed."""
        if self._first_token_s is None:
            self._prompt = prompt

    def passed(self, num_tokens: int) -> None:
        """Count tokens that were passed on."""
        self._num_tokens += num_tokens
        if num_tokens and self._first_token_s is None:
            self._first_token_s = self.now_s()

    def timings(self) -> Json | None:
        """Return None before the first token. If the agent reports no progress, only the time of
        the prompt is known; its numbers of tokens are 0."""
        if self._first_token_s is None:
            return None
        prompt = Prefilled(0, 0, 0) if self._prompt is None else self._prompt
        return _timings(
            prompt.cached,
            prompt.total - prompt.cached,
            (self._first_token_s - self.began_s) * 1000,
            self._num_tokens,
            (self.now_s() - self._first_token_s) * 1000,
        )


@attrs.define
class PromptProgress:
    """Choose which reports a client gets of one prompt, as members of its chunks.

    Args:
      now_s: a clock of seconds.
      began_s: from when time counts if the agent did not report the beginning.
      with_timings: reports carry timings, too.
    """

    now_s: Callable[[], float]
    began_s: float
    with_timings: bool
    _latest: Prefilled | None = attrs.field(default=None, init=False)
    _reported: int = attrs.field(default=-1, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def take(self, prefilled: Prefilled) -> list[Json]:
        """Return the reports that follow from this one of the agent.

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

    def finished(self) -> list[Json]:
        """Return the reports that are missing when the first token came."""
        was_over, self._is_over = self._is_over, True
        if was_over or self._latest is None or self._reported >= self._latest.total:
            return []
        return [self._report(attrs.evolve(self._latest, done=self._latest.total))]

    def _report(self, prefilled: Prefilled) -> Json:
        self._reported = prefilled.done
        took_ms = (self.now_s() - self.began_s) * 1000 if prefilled.done > prefilled.cached else 0.0
        progress = {
            "total": prefilled.total,
            "cache": prefilled.cached,
            "processed": prefilled.done,
            "time_ms": round(took_ms),
        }
        if not self.with_timings:
            return {"prompt_progress": progress}
        computed = prefilled.done - prefilled.cached
        timings = _timings(prefilled.cached, computed, took_ms, 0, 0.0)
        return {"prompt_progress": progress, "timings": timings}


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
        """Return the members of the chunks that come before that of ``piece``."""
        if isinstance(piece, Prefilled) and choice == 0:
            self.watch.prefilled(piece)
        if not self.is_wanted:
            return []
        watch = self.watch
        if choice not in self._choices:
            progress = PromptProgress(watch.now_s, watch.began_s, self.with_timings)
            self._choices[choice] = progress
        progress = self._choices[choice]
        return progress.take(piece) if isinstance(piece, Prefilled) else progress.finished()
