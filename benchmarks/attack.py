"""Attack a fleet of our own on loopback, and measure what it costs the fleet and its neighbours.

    python benchmarks/attack.py [--seconds 60] [--seed 1] [--only KIND,...] [--json]

A balancer, agents with the bundled model and a projection, a balancer that asks for keys, and one
with agents in front of a server are started as real processes. Each attack is played three times:
an honest request of its size alone, the attack alone, and the attack beside neighbours that stream
answers. It does harm if it costs 100 times as much CPU or memory as the honest one, if a
neighbour's tokens come late or its answer ends wrong, if something is computed for longer than a
second after the client left, if a process is lost, or if it ends without a clear answer. The exit
status is 0 only if no attack did.

Everything listens on loopback. Every process is known by its id and ended when this one ends; one
that takes more memory than ``--memory-gib`` together with the others is killed at once.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence

import attrs
from attack_fleet import FleetError
from attack_judge import MIB, RULES, Result, Rules
from attack_kinds import KINDS
from attack_run import Run
from whole_path import describe_machine


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = ",".join(KINDS)
    parser.add_argument("--seconds", type=float, default=60.0, help="no attack begins later (60)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same attacks (1)")
    parser.add_argument("--only", default=kinds, help=f"kinds to choose from (default {kinds})")
    parser.add_argument("--number", type=int, help="only this attack of each kind")
    parser.add_argument("--agents", type=int, default=2, help="1 to 3 (default 2)")
    parser.add_argument("--gap-ms", type=float, default=250.0, help="allowed to neighbours (250)")
    parser.add_argument("--memory-gib", type=float, default=6.0, help="for all processes (6)")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parsed = parser.parse_args(arguments)
    parsed.kinds = parsed.only.split(",")
    unknown = [kind for kind in parsed.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} unknown; choose from {kinds}")
    if not 1 <= parsed.agents <= 3:
        parser.error(f"--agents is {parsed.agents}, must be 1 to 3")
    return parsed


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def perform(run: Run, options: argparse.Namespace) -> None:
    """Kinds take turns until the time is over; at least one attack is tried."""
    give_up_s = time.monotonic() + options.seconds
    number = options.number or 0
    while True:
        for kind in options.kinds:
            result = run.attempt(kind, number)
            say(f"{kind} {number}: {line_of(result, run.rules)}")
            if time.monotonic() > give_up_s:
                return
        if options.number is not None:
            return
        number += 1


def line_of(result: Result, rules: Rules) -> str:
    beside = result.beside
    waits = (
        "no neighbours"
        if beside is None
        else f"gap {beside.gap_s * 1000:.0f}, first {beside.first_s * 1000:.0f} ms"
    )
    text = (
        f"{result.name}: cpu {result.alone.cpu_s:.2f} s ({result.times_cpu(rules):.0f} x), "
        f"memory {result.alone.peak_bytes // MIB} MiB ({result.times_memory(rules):.0f} x), {waits}"
    )
    return "\n    ".join([text, *(f"HARM {violation}" for violation in result.violations)])


# --- the report -------------------------------------------------------------------------------


def table(results: Sequence[Result], rules: Rules) -> list[list[str]]:
    """A row for each kind, the worst of everything, and how many attacks broke each rule."""
    worst = ["worst: cpu s", "x", "MiB", "x", "gap ms", "first ms", "quiet s"]
    rows = [["kind", "tried", "harmful", *RULES, *worst]]
    for kind in dict.fromkeys(result.kind for result in results):
        own = [result for result in results if result.kind == kind]
        besides = [result.beside for result in own if result.beside is not None]
        quiets = [result.alone.quiet_s for result in own]
        broken = [
            sum(any(v.startswith(rule + ":") for v in result.violations) for result in own)
            for rule in RULES
        ]
        rows.append(
            [
                kind,
                str(len(own)),
                str(sum(bool(result.violations) for result in own)),
                *(str(number or "") for number in broken),
                f"{max(result.alone.cpu_s for result in own):.2f}",
                f"{max(result.times_cpu(rules) for result in own):.0f}",
                str(max(result.alone.peak_bytes for result in own) // MIB),
                f"{max(result.times_memory(rules) for result in own):.0f}",
                f"{max((b.gap_s for b in besides), default=0) * 1000:.0f}",
                f"{max((b.first_s for b in besides), default=0) * 1000:.0f}",
                "never" if None in quiets else f"{max(q for q in quiets if q is not None):.1f}",
            ]
        )
    return rows


def print_report(run: Run, began_s: float) -> None:
    machine = describe_machine()
    print(f"\n{machine['cpu']}, {machine['cores']} cores; {run.agents} agents, seed {run.seed}")
    rows = table(run.results, run.rules)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    harmful = [result for result in run.results if result.violations]
    for problem in run.problems:
        print(f"HARM {problem}")
    print(
        f"{len(run.results)} attacks, {len(harmful)} harmful, {run.fleets} fleets, "
        f"{time.monotonic() - began_s:.0f} s"
    )


def as_json(run: Run) -> dict[str, object]:
    return {
        "machine": describe_machine(),
        "seed": run.seed,
        "agents": run.agents,
        "rules": attrs.asdict(run.rules),
        "problems": run.problems,
        "results": [attrs.asdict(result) for result in run.results],
    }


def main() -> int:
    """Exit status 0: no attack did harm. 1: some did. 2: there was no fleet to attack."""
    options = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    gap_s = options.gap_ms / 1000
    rules = Rules(gap_s=gap_s, first_s=2 * gap_s)
    began_s = time.monotonic()
    memory_bytes = round(options.memory_gib * (1 << 30))
    with Run.open(rules, options.agents, options.seed, memory_bytes, say) as run:
        try:
            perform(run, options)
            run.finish()
        except FleetError as error:
            print(f"attack: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            run.problems.append("interrupted")
        if options.json:
            print(json.dumps(as_json(run), indent=1))
        else:
            print_report(run, began_s)
        return 1 if run.problems or any(result.violations for result in run.results) else 0


if __name__ == "__main__":
    sys.exit(main())
