"""Measure the whole path, client to client: our balancer with one agent, against llama-server.

    python benchmarks/whole_path.py --llama-server PATH [--model PATH] [--quick] [--json]

Both servers are up for the whole run and take turns, scenario by scenario and round by round, so
that a machine that slows down slows both. See README.md beside this file for what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs
from answers import Answer, AnswerError, Exchange
from child_processes import cpu_seconds
from contestants import (
    CACHE_TYPES,
    SAMPLINGS,
    Contestant,
    Terms,
    behind,
    llama_server,
    our_pair,
    unbound,
    with_prompt_cache,
    without_residency,
)
from figures import (
    FIGURES,
    Run,
    differences,
    median_cpu_us_per_token,
    median_figures,
    median_ratios,
)
from load_client import Lane, run_lanes
from relays import relays
from scenarios import Ask, AskLane, Scenario, Sizes, all_scenarios, text_of

from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.system.config import default_threads

RUN_LIMIT_S = 180.0
CALIBRATION_WORDS = 100
MIXED_WORDS = 700
TEMPLATE_WORDS = 600
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "requests_per_s": "req/s",
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p95": "p95",
    "ttft_ms_p99": "p99",
    "gap_ms_p50": "gap p50",
    "gap_ms_p95": "p95",
    "gap_ms_p99": "p99",
    "cpu_us_per_token": "CPU us/tok",
}


@attrs.define
class Table:
    """All runs of one scenario, by contestant, in the order of the rounds."""

    scenario: Scenario
    runs: dict[str, list[Run]] = attrs.field(factory=dict)


# --- running ----------------------------------------------------------------------------------


def run_once(contestant: Contestant, lanes: Sequence[AskLane], *, may_fail: bool = False) -> Run:
    """One scenario against one contestant; AnswerError when it does not answer as it should,
    unless it ``may_fail``: then it got no tokens."""

    def read(exchange: Exchange) -> Answer:
        try:
            return contestant.read(exchange)
        except AnswerError as error:
            if not may_fail:
                raise
            print(f"{contestant.name}: {error}", file=sys.stderr)
            return Answer(0, 0, ())

    wire = [Lane(tuple(map(contestant.request, lane.asks)), lane.is_late) for lane in lanes]
    before = cpu_seconds(contestant.pids)
    exchanges = run_lanes(contestant.address, wire, limit_s=RUN_LIMIT_S)
    after = cpu_seconds(contestant.pids)
    answers = [[read(exchange) for exchange in lane] for lane in exchanges]
    short = sum(
        answer.tokens < ask.max_tokens
        for lane, read in zip(lanes, answers, strict=True)
        for ask, answer in zip(lane.asks, read, strict=True)
    )
    everything = [exchange for lane in exchanges for exchange in lane]
    late = [i for i, lane in enumerate(lanes) if lane.is_late]
    timed = late or range(len(lanes))
    windows = [
        (exchange.sent_s, answer.arrivals_s[0])
        for i in late
        for exchange, answer in zip(exchanges[i], answers[i], strict=True)
        if answer.arrivals_s
    ]
    others = [answer for i, lane in enumerate(answers) if i not in late for answer in lane]
    return Run(
        tokens=tuple(answer.tokens for lane in answers for answer in lane),
        prompt_tokens=tuple(answer.prompt_tokens for lane in answers for answer in lane),
        wall_s=max(e.ended_s for e in everything) - min(e.sent_s for e in everything),
        ttfts_s=tuple(
            answer.arrivals_s[0] - exchange.sent_s
            for i in timed
            for exchange, answer in zip(exchanges[i], answers[i], strict=True)
            if answer.arrivals_s
        ),
        gaps_s=tuple(gap for answer in others for gap in _gaps(answer, windows)),
        cpu_s={name: after[name] - before[name] for name in after},
        failed=short,
    )


def _gaps(answer: Answer, windows: Sequence[tuple[float, float]]) -> list[float]:
    """Times between visible tokens; with windows, only those that reach into one."""
    pairs = zip(answer.arrivals_s, answer.arrivals_s[1:], strict=False)
    return [
        stop - start
        for start, stop in pairs
        if not windows or any(start < closes and stop > opens for opens, closes in windows)
    ]


def words_for(contestant: Contestant, tokens: int) -> int:
    """How many of our words make a prompt of about so many tokens with this vocabulary."""
    probe = [AskLane((Ask(text_of(CALIBRATION_WORDS, seed=7), 1),))]
    measured = run_once(contestant, probe).prompt_tokens[0]
    return max(1, tokens * CALIBRATION_WORDS // measured)


def measure(sides: Sequence[Contestant], scenarios: Sequence[Scenario], rounds: int) -> list[Table]:
    """Every scenario in ``rounds`` rounds, the contestants taking turns within each.

    A round before the first warms everything up and is not kept.
    """
    tables = []
    for scenario in scenarios:
        table = Table(scenario)
        entered = list(sides)
        if scenario.shows_cache:
            # those that reuse come first, so that nobody finds what another left behind
            entered[1:1] = [with_prompt_cache(side) for side in sides[1:]]
            entered.append(without_residency(sides[0]))
        if scenario.shows_unbound:
            entered[1:] = [
                unbound(sides[0]),
                *(s for side in sides[1:] for s in (side, unbound(side))),
            ]
        for round_number in range(-1, rounds):
            for side in entered:
                say(f"{scenario.title}: round {round_number + 1} of {rounds}, {side.name}")
                if scenario.before is not None:
                    run_once(side, scenario.before(round_number + 1))
                lanes = scenario.lanes_of(round_number + 1)
                run = run_once(side, lanes, may_fail=scenario.may_fail)
                if round_number >= 0:
                    table.runs.setdefault(side.name, []).append(run)
        tables.append(table)
    return tables


# --- printing ---------------------------------------------------------------------------------


def say(text: str) -> None:
    """Where we are, for whoever waits; overwritten on a terminal, silent elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def describe_machine() -> dict[str, object]:
    """What the figures belong to."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.platform()}


def print_table(tables: Sequence[Table]) -> None:
    """One block a scenario: a row a contestant, then ours divided by theirs."""
    print(f"{'':38}" + "".join(f"{title:>11}" for title in COLUMNS.values()))
    for table in tables:
        print(f"\n{table.scenario.title}")
        for name, runs in table.runs.items():
            _print_row(name, median_figures(runs))
            if table.scenario.may_fail:
                lost = [run.failed for run in runs]
                print(f"{'':6}answers that failed or ended early, by round: {lost}")
            cpu = median_cpu_us_per_token(runs)
            if len(cpu) > 1:
                shares = ", ".join(f"{process} {us:.0f}" for process, us in cpu.items())
                print(f"{'':6}CPU us/token: {shares}")
        ours = table.runs["ours"]
        for name, runs in table.runs.items():
            if name == "ours":
                continue
            _print_row(f"ours / {name}", median_ratios(ours, runs))
            for sentence in [] if table.scenario.may_fail else differences(ours, runs):
                print(f"  UNEQUAL WORK against {name}: {sentence}")
    print("\nMilliseconds; gap: between visible tokens of one answer. Ratios: tokens/s and req/s")
    print("above 1 are in our favour, all others below 1.")


def _print_row(name: str, figures: dict[str, float]) -> None:
    cells = "".join(
        f"{'-':>11}" if figures[key] != figures[key] else f"{figures[key]:>11.2f}"
        for key in COLUMNS
    )
    print(f"  {name:<36}{cells}")


def as_json(tables: Sequence[Table], terms: Terms, rounds: int) -> dict[str, object]:
    """Medians, ratios and every round, for scripts. NaN becomes null."""
    scenarios = []
    for table in tables:
        ours = table.runs["ours"]
        others = {name: runs for name, runs in table.runs.items() if name != "ours"}
        scenarios.append(
            {
                "name": table.scenario.name,
                "title": table.scenario.title,
                "medians": {n: _plain(median_figures(runs)) for n, runs in table.runs.items()},
                "ratios_of_ours": {
                    n: _plain(median_ratios(ours, runs)) for n, runs in others.items()
                },
                "cpu_us_per_token": {
                    n: median_cpu_us_per_token(runs) for n, runs in table.runs.items()
                },
                "unequal_work": {n: differences(ours, runs) for n, runs in others.items()},
                "rounds": {
                    n: [_plain(run.figures()) | {"tokens": sum(run.tokens)} for run in runs]
                    for n, runs in table.runs.items()
                },
            }
        )
    return {
        "machine": describe_machine(),
        "model": terms.model.name,
        "slots": terms.slots,
        "cells_per_slot": terms.cells,
        "cache_type": terms.cache_type,
        "threads": terms.threads,
        "rounds": rounds,
        "compared": any(len(table.runs) > 1 for table in tables),
        "scenarios": scenarios,
    }


def _plain(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: None if figures[name] != figures[name] else figures[name] for name in FIGURES}


# --- arguments --------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llama-server", type=Path, help="its binary; without it ours runs alone")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="a GGUF file")
    parser.add_argument("--slots", type=int, default=8, help="parallel sequences (default 8)")
    parser.add_argument("--cells", type=int, default=2048, help="tokens a slot (default 2048)")
    parser.add_argument(
        "--threads", type=int, default=default_threads(), help="of the engine (default %(default)s)"
    )
    parser.add_argument(
        "--cache-type", choices=CACHE_TYPES, default="q8_0", help="of the KV cache (default q8_0)"
    )
    parser.add_argument(
        "--sampling",
        choices=SAMPLINGS,
        default="greedy",
        help="the most likely token, or what llama-server does by default (default greedy)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="kept rounds (default 5)")
    parser.add_argument(
        "--max-tokens", type=int, default=128, help="of an answer of the stream scenarios (128)"
    )
    parser.add_argument("--crowd", type=int, default=64, help="streams that queue (default 64)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="a scenario by name; may be repeated"
    )
    parser.add_argument(
        "--pressure",
        action="store_true",
        help="one pool of cells, half of what the slots would need, and the scenario for it",
    )
    parser.add_argument(
        "--prefix-cache-ram", type=int, metavar="MIB", help="of our agent (default: its own)"
    )
    parser.add_argument(
        "--relays", type=int, default=0, help="llama-server once more, behind so many (default 0)"
    )
    parser.add_argument(
        "--each-pass",
        action="store_true",
        help="ours once more, with every pass delivered by itself (--stream-interval-ms 0)",
    )
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parsed = parser.parse_args(arguments)
    for name in ("slots", "cells", "threads", "rounds", "max_tokens", "crowd"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(parsed, name)}, must be >= 1")
    for name in ("model", "llama_server"):
        path = getattr(parsed, name)
        if path is not None and not path.is_file():
            parser.error(f"--{name.replace('_', '-')}: there is no file at {path}")
    if parsed.quick:
        parsed.rounds, parsed.max_tokens = 1, min(parsed.max_tokens, 32)
    return parsed


def run(options: argparse.Namespace) -> None:
    terms = Terms(
        options.model.resolve(),
        options.slots,
        options.cells,
        options.threads,
        options.cache_type,
        unified=options.pressure,
        sampling=options.sampling,
        prefix_cache_ram=options.prefix_cache_ram,
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paddler-bench-")))
        sides = [stack.enter_context(our_pair(terms, folder))]
        if options.each_pass:
            apart = attrs.evolve(terms, stream_interval_ms=0)
            folder_apart = folder / "each-pass"
            folder_apart.mkdir()
            pair = stack.enter_context(our_pair(apart, folder_apart))
            sides.append(attrs.evolve(pair, name="ours, each pass by itself"))
        if options.llama_server is not None:
            binary = options.llama_server.resolve()
            server = stack.enter_context(llama_server(binary, terms, folder))
            sides.append(server)
            if options.relays:
                row = stack.enter_context(relays(options.relays, server.address, folder))
                sides.append(behind(row, server))
        sizes = Sizes(
            slots=options.slots,
            max_tokens=options.max_tokens,
            crowd=options.crowd,
            long_prompts=1 if options.quick else 3,
            long_words=words_for(sides[0], options.cells * 3 // 4),
            prefix_words=words_for(sides[0], options.cells // 3),
            mixed_words=min(MIXED_WORDS, words_for(sides[0], options.cells * 3 // 4)),
            template_words=min(TEMPLATE_WORDS, words_for(sides[0], options.cells * 3 // 4)),
            template_turns=2 if options.quick else 4,
            short_requests=(4 if options.quick else 16) * options.slots,
            turns=3 if options.quick else 10,
            cells=options.cells,
            under_pressure=options.pressure,
        )
        scenarios = [
            scenario
            for scenario in all_scenarios(sizes)
            if options.only is None or scenario.name in options.only
        ]
        tables = measure(sides, scenarios, options.rounds)
    say("")
    if options.json:
        print(json.dumps(as_json(tables, terms, options.rounds), indent=1))
        return
    machine = describe_machine()
    print(f"{machine['cpu']}, {machine['cores']} cores; medians of {options.rounds} rounds")
    print(
        f"{terms.model.name}: {terms.slots} slots of {terms.cells} tokens, "
        f"{terms.cache_type} cache, {terms.threads} engine threads"
    )
    if options.llama_server is None:
        print("OURS ALONE: no --llama-server was given, so nothing is compared.")
    print()
    print_table(tables)


def main() -> int:
    """Exit status 0: measured. 1: a server did not do its part, and the reason. 130: stopped."""
    options = parse_arguments()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    try:
        run(options)
    except AnswerError as error:
        print(f"\nbenchmark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbenchmark: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
