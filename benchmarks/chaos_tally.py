"""From what the clients of a round heard to what is counted: pure arithmetic, no clock.

Texts are compared with those of a run that nothing disturbed. Two such runs need not agree either:
the same tokens in another batch shape give logits that differ in the second decimal, and a tie
flips. So what two undisturbed runs differ by is the noise, and a chaos run is allowed as much of
it for each of its streams.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import attrs
from chaos_faults import Fault
from chaos_streams import Heard

NOISE_SIGMAS = 3.0
FEW_TIES = 2


@attrs.frozen
class Loss:
    """A request that lost its agent, according to the balancer. ``tokens`` were drawn before."""

    request_id: str
    tokens: int


@attrs.frozen
class Round:
    """What one disturbed round came to. Counts are of its main streams, unless said otherwise.

    Args:
      wrong: streams that did not end with exactly one Done.
      errors: streams by what they heard instead, e.g. ``error 502``.
      texts_differ, chars_differ: from the undisturbed text; characters from the first that
        differs to the end of the longer text.
      differences: where each of these texts leaves the undisturbed one.
      hit: streams that lost their agent, ``hit_midway`` those of them that had drawn tokens.
      hit_differ: texts that differ among those hit midway.
      moved: streams whose answer was made by more than one agent.
      slots_left, waiting_left, engines_left: what was not given back once all was idle again.
      recovery_s: None if the fleet was whole all the time.
      longest_gap_s: between two tokens of a stream hit midway; None if there was none.
    """

    fault: Fault
    streams: int
    wrong: int
    errors: Mapping[str, int]
    words: Collection[str]
    texts_differ: int
    chars_differ: int
    differences: Sequence[str]
    hit: int
    hit_midway: int
    hit_differ: int
    moved: int
    slots_left: int
    waiting_left: int
    engines_left: int
    recovery_s: float | None
    longest_gap_s: float | None

    @property
    def leaked(self) -> int:
        return self.slots_left + self.waiting_left + self.engines_left


@attrs.frozen
class Noise:
    """What undisturbed runs differ by: ``differing`` of ``compared`` texts."""

    differing: int
    compared: int

    def allowed(self, streams: int) -> int:
        """Texts of so many streams that may differ without meaning anything.

        The expected number and three standard deviations of it, and a few ties more: no noise in
        some dozen texts is no proof that there is none.
        """
        expected = streams * self.differing / self.compared
        return FEW_TIES + math.ceil(expected + NOISE_SIGMAS * math.sqrt(expected))


def count_noise(runs: Sequence[Sequence[str]]) -> Noise:
    """Each later run against the first."""
    pairs = [(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True)]
    return Noise(sum(a != b for a, b in pairs), len(pairs))


def count_round(
    fault: Fault,
    all_heard: Sequence[Heard],
    undisturbed: Sequence[str],
    losses: Sequence[Loss],
    *,
    left: tuple[int, int, int],
    recovery_s: float | None,
) -> Round:
    """``left``: slots, waiting requests and engines that were not given back."""
    midway = {loss.request_id for loss in losses if loss.tokens}
    lost = {loss.request_id for loss in losses}
    wrong = [heard for heard in all_heard if not heard.is_as_promised]
    whole = [
        (heard, text)
        for heard, text in zip(all_heard, undisturbed, strict=True)
        if heard.is_as_promised
    ]
    differ = [(heard, text) for heard, text in whole if heard.text != text]
    gaps_s = [heard.longest_gap_s() for heard in all_heard if heard.request_id in midway]
    return Round(
        fault=fault,
        streams=len(all_heard),
        wrong=len(wrong),
        errors=Counter(
            " + ".join(heard.endings) or "no ending" for heard in wrong if heard.endings != ["Done"]
        ),
        words=sorted({words for heard in wrong for words in heard.errors}),
        texts_differ=len(differ),
        chars_differ=sum(chars_after_difference(heard.text, text) for heard, text in differ),
        differences=[describe_difference(heard, text) for heard, text in differ],
        hit=sum(heard.request_id in lost for heard in all_heard),
        hit_midway=len(gaps_s),
        hit_differ=sum(heard.request_id in midway for heard, _ in differ),
        moved=sum(len(set(heard.made_by)) > 1 for heard in all_heard),
        slots_left=left[0],
        waiting_left=left[1],
        engines_left=left[2],
        recovery_s=recovery_s,
        longest_gap_s=max(gaps_s, default=None),
    )


def chars_after_difference(a: str, b: str) -> int:
    """From the first character that differs to the end of the longer text; 0 if equal."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return max(len(a), len(b)) - same


def describe_difference(heard: Heard, undisturbed: str) -> str:
    """Where, by whom, and what instead of what; some characters of each."""
    text = heard.text
    same = max(len(text), len(undisturbed)) - chars_after_difference(text, undisturbed)
    made_by = " then ".join(heard.made_by)
    around = slice(max(0, same - 20), same + 20)
    return f"from character {same} ({made_by}): {text[around]!r} for {undisturbed[around]!r}"


def summary(rounds: Sequence[Round]) -> dict[str, object]:
    """Several rounds as one row, for the table and for scripts."""
    errors: Counter[str] = Counter()
    for each in rounds:
        errors.update(each.errors)
    recoveries_s = [r.recovery_s for r in rounds if r.recovery_s is not None]
    gaps_s = [r.longest_gap_s for r in rounds if r.longest_gap_s is not None]
    return {
        "rounds": len(rounds),
        "streams": sum(r.streams for r in rounds),
        "ended_wrong": sum(r.wrong for r in rounds),
        "errors": dict(errors),
        "lost_their_agent": sum(r.hit for r in rounds),
        "lost_it_midway": sum(r.hit_midway for r in rounds),
        "moved_to_another_agent": sum(r.moved for r in rounds),
        "texts_differ": sum(r.texts_differ for r in rounds),
        "texts_differ_of_those_midway": sum(r.hit_differ for r in rounds),
        "chars_differ": sum(r.chars_differ for r in rounds),
        "slots_leaked": sum(r.slots_left for r in rounds),
        "waiting_leaked": sum(r.waiting_left for r in rounds),
        "engines_left": sum(r.engines_left for r in rounds),
        "recovery_s_p50": statistics.median(recoveries_s) if recoveries_s else None,
        "recovery_s_max": max(recoveries_s, default=None),
        "longest_gap_s_p50": statistics.median(gaps_s) if gaps_s else None,
        "longest_gap_s_max": max(gaps_s, default=None),
    }


def verdict(rounds: Sequence[Round], noise: Noise) -> list[str]:
    """What is not as promised, one sentence each; empty if all is well."""
    streams = sum(r.streams for r in rounds)
    wrong = sum(r.wrong for r in rounds)
    differ = sum(r.texts_differ for r in rounds)
    leaked = sum(r.leaked for r in rounds)
    allowed = noise.allowed(streams)
    found = []
    if wrong:
        found.append(f"{wrong} of {streams} streams did not end with exactly one Done")
    if differ > allowed:
        found.append(
            f"{differ} of {streams} texts differ; undisturbed, {noise.differing} of "
            f"{noise.compared} did, so {allowed} were to be expected at most"
        )
    if leaked:
        found.append(f"{leaked} slots, waiting requests or engines were not given back")
    return found
