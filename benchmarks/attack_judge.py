"""When an attack did harm: what was measured of it, and the rules."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

MIB = 1 << 20


@attrs.frozen
class Rules:
    """What is allowed; times in seconds.

    Attributes:
      most_times: CPU and memory of an attack, over those of an honest request of its size.
      least_cpu_s, least_bytes: an honest request counts as this much at least.
      gap_s: between two tokens of a neighbour.
      first_s: until the first token of a neighbour that asks.
      quiet_s: from the end of an attack until no more than ``quiet_cores`` are busy with it.
      kept: of resident memory, after a fleet's whole life.
    """

    most_times: float = 100.0
    least_cpu_s: float = 0.02
    least_bytes: int = 8 * MIB
    gap_s: float = 0.25
    first_s: float = 0.5
    quiet_s: float = 1.0
    quiet_cores: float = 0.15
    kept: float = 0.05


@attrs.frozen
class Cost:
    """Calls played alone: CPU seconds of the fleet, growth of its memory at the peak and at the
    end, and how long it was busy after the last of them was over (None: it did not end).
    ``was_refused``: every HTTP answer was an error of the client's."""

    cpu_s: float
    peak_bytes: int
    kept_bytes: int
    quiet_s: float | None
    problems: Sequence[str]
    took_s: float
    was_refused: bool


@attrs.frozen
class Beside:
    """Calls played beside neighbours: the longest that those had to wait, and what ended wrong.

    ``machine_s``: the longest that a thread which only sleeps was woken too late meanwhile.
    """

    gap_s: float
    first_s: float
    machine_s: float
    answers: int
    problems: Sequence[str]


@attrs.frozen(kw_only=True)
class Result:
    """All that is known of one attack. ``lost``: processes that are not there any more, by name;
    ``disconnected``: agents that left the balancer, or were ejected by it."""

    kind: str
    number: int
    name: str
    honest: Cost
    alone: Cost
    beside: Beside | None
    lost: Sequence[str]
    disconnected: int
    violations: Sequence[str] = ()

    def times_cpu(self, rules: Rules) -> float:
        return self.alone.cpu_s / max(self.honest.cpu_s, rules.least_cpu_s)

    def times_memory(self, rules: Rules) -> float:
        return self.alone.peak_bytes / max(self.honest.peak_bytes, rules.least_bytes)


def judged(result: Result, rules: Rules) -> Result:
    """The same with its violations: each begins with the word for its rule and a colon."""
    return attrs.evolve(result, violations=list(_violations(result, rules)))


RULES = ("cpu", "memory", "gap", "stream", "quiet", "lost", "answer")


def _violations(result: Result, rules: Rules) -> list[str]:
    found = []
    alone, beside = result.alone, result.beside
    if (times := result.times_cpu(rules)) > rules.most_times:
        found.append(f"cpu: {alone.cpu_s:.2f} s, {times:.0f} x an honest request")
    if (times := result.times_memory(rules)) > rules.most_times:
        found.append(f"memory: {alone.peak_bytes // MIB} MiB, {times:.0f} x an honest request")
    if alone.quiet_s is None:
        found.append("quiet: it is still computed when we stop looking")
    elif alone.quiet_s > rules.quiet_s:
        found.append(f"quiet: busy for {alone.quiet_s:.1f} s after the client had left")
    if beside is not None:
        if beside.gap_s > rules.gap_s:
            found.append(f"gap: {beside.gap_s * 1000:.0f} ms between a neighbour's tokens")
        if beside.first_s > rules.first_s:
            found.append(f"gap: {beside.first_s * 1000:.0f} ms until a neighbour's first token")
        found += [f"stream: {problem}" for problem in beside.problems[:1]]
    if result.lost:
        found.append(f"lost: {', '.join(result.lost)}")
    if result.disconnected:
        found.append(f"lost: {result.disconnected} agents were disconnected or ejected")
    found += [f"answer: {problem}" for problem in alone.problems[:1]]
    return found


def only_timing(result: Result) -> bool:
    """Whether all it violates is what a busy machine can cause."""
    return bool(result.violations) and all(
        violation.startswith(("gap:", "quiet:", "cpu:")) for violation in result.violations
    )
