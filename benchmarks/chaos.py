"""Break a running fleet on purpose, under load, and count what its clients noticed.

    python benchmarks/chaos.py [--rounds 20] [--seed 1] [--faults kill-agent,...] [--json]

A real balancer and real agents on free ports of this machine serve the bundled model with greedy
sampling. First the streams run undisturbed, to know their texts. Then each round runs the same
streams again while one fault strikes: an agent or an engine is killed, an agent is stopped and
resumed, clients reset their connections, the model is swapped. What was killed is started again,
and the next round begins when the fleet is whole and idle. The exit status is 0 only if every
stream ended with exactly one Done, texts differ no more than undisturbed ones do, and every slot
came back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio
from chaos_daemon import ChaosError
from chaos_faults import Kind, Strikes, schedule
from chaos_fleet import Fleet, Terms
from chaos_run import Chaos
from chaos_tally import Round, summary, verdict
from whole_path import describe_machine, say

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLUMNS = {
    "rounds": "rounds",
    "streams": "streams",
    "ended_wrong": "ended wrong",
    "lost_it_midway": "hit midway",
    "moved_to_another_agent": "moved",
    "texts_differ": "texts differ",
    "chars_differ": "chars differ",
    "slots_leaked": "slots leaked",
    "waiting_leaked": "buffered leaked",
    "engines_left": "engines left",
    "recovery_s_p50": "recovery p50",
    "recovery_s_max": "max",
    "longest_gap_s_p50": "gap p50",
    "longest_gap_s_max": "max",
}


# --- printing ---------------------------------------------------------------------------------


def rows(rounds: Sequence[Round]) -> dict[str, dict[str, object]]:
    """A summary for each kind that struck, and one of all."""
    kinds = [kind for kind in Kind if any(r.fault.kind is kind for r in rounds)]
    each = {kind.value: summary([r for r in rounds if r.fault.kind is kind]) for kind in kinds}
    return {**each, "all": summary(rounds)}


def print_report(chaos: Chaos, problems: Sequence[str]) -> None:
    machine = describe_machine()
    terms = chaos.fleet.terms
    print(
        f"{machine['cpu']}, {machine['cores']} cores; {terms.model.name}, {terms.agents} agents of "
        f"{terms.slots} slots, {len(chaos.questions)} streams; silence {terms.silence_s:g} s"
    )
    if chaos.noise is not None:
        print(f"undisturbed: {chaos.noise.differing} of {chaos.noise.compared} texts differ\n")
    table = rows(chaos.rounds)
    print(f"{'':18}" + "".join(f"{kind:>15}" for kind in table))
    for key, title in COLUMNS.items():
        print(f"{title:<18}" + "".join(f"{_cell(row[key]):>15}" for row in table.values()))
    for words in sorted({words for each in chaos.rounds for words in each.words}):
        print(f"  said: {words}")
    for each in chaos.rounds:
        for difference in each.differences:
            print(f"  {each.fault.kind.value}, {difference}")
    errors = table["all"]["errors"]
    if errors:
        print(f"  endings: {errors}")
    for problem in problems:
        print(f"WRONG: {problem}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if isinstance(value, float) else str(value)


def as_json(chaos: Chaos, problems: Sequence[str]) -> dict[str, object]:
    return {
        "machine": describe_machine(),
        "terms": attrs.asdict(chaos.fleet.terms) | {"model": chaos.fleet.terms.model.name},
        "streams": len(chaos.questions),
        "noise": None if chaos.noise is None else attrs.asdict(chaos.noise),
        "problems": list(problems),
        "table": rows(chaos.rounds),
        "rounds": [
            attrs.asdict(each)
            | {"fault": attrs.asdict(each.fault) | {"kind": each.fault.kind.value}}
            for each in chaos.rounds
        ],
    }


# --- arguments --------------------------------------------------------------------------------


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = ",".join(kind.value for kind in Kind)
    parser.add_argument("--rounds", type=int, default=20, help="faults (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="decides the faults (default 1)")
    parser.add_argument("--faults", default=kinds, help=f"kinds to choose from (default {kinds})")
    parser.add_argument("--agents", type=int, default=3, help="default 3")
    parser.add_argument("--slots", type=int, default=4, help="of each agent (default 4)")
    parser.add_argument("--streams", type=int, default=32, help="in each round (default 32)")
    parser.add_argument("--max-tokens", type=int, default=200, help="of an answer (default 200)")
    parser.add_argument("--context-tokens", type=int, default=4096, help="of all slots (4096)")
    parser.add_argument("--undisturbed", type=int, default=2, help="runs without a fault first (2)")
    parser.add_argument("--extras", type=int, default=6, help="clients that reset (default 6)")
    parser.add_argument(
        "--silence-s", type=float, default=2.0, help="until a stopped agent is given up (default 2)"
    )
    parser.add_argument(
        "--patience-s", type=float, default=90.0, help="for the end of an answer (default 90)"
    )
    parser.add_argument(
        "--limit-s", type=float, default=900.0, help="for the whole run (default 900)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parsed = parser.parse_args(arguments)
    for name in ("rounds", "agents", "slots", "streams", "max_tokens", "context_tokens", "extras"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(parsed, name)}, must be >= 1")
    if parsed.undisturbed < 2:
        parser.error(f"--undisturbed is {parsed.undisturbed}, must be >= 2 to know the noise")
    if parsed.silence_s < 1.5:
        parser.error(f"--silence-s is {parsed.silence_s:g}, must be >= 1.5: agents speak each 1 s")
    try:
        parsed.kinds = [Kind(name) for name in parsed.faults.split(",")]
    except ValueError as error:
        parser.error(f"--faults: {error}; choose from {kinds}")
    return parsed


def perform(options: argparse.Namespace, folder: Path) -> tuple[Chaos, list[str]]:
    """Run it within the limit; the run, and what is not as promised."""
    terms = Terms(
        BUNDLED_MODEL, options.agents, options.slots, options.context_tokens, options.silence_s
    )
    copy = folder / "copy-of-the-model.gguf"
    shutil.copyfile(terms.model, copy)
    fleet = Fleet(terms, folder)
    chaos = Chaos(
        fleet,
        Strikes(fleet, (terms.model, copy), options.extras),
        [f"Tell me a long story about number {number}." for number in range(options.streams)],
        options.max_tokens,
        options.patience_s,
    )
    names = [f"a{number}" for number in range(1, terms.agents + 1)]
    faults = schedule(options.seed, options.rounds, options.kinds, names, terms.silence_s)

    async def bounded() -> str | None:
        """What ended it before all rounds were done, if anything did."""
        signals: list[str] = []

        async def watch_signals() -> None:
            with trio.open_signal_receiver(*ENDINGS) as received:
                async for number in received:
                    signals.append(signal.Signals(number).name)
                    nursery.cancel_scope.cancel(reason="a signal")

        with trio.move_on_after(options.limit_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_signals)
                await chaos.run(faults, options.undisturbed)
                nursery.cancel_scope.cancel(reason="every round is done")
        if len(chaos.rounds) == len(faults):
            return None
        return signals[0] if signals else f"the limit of {options.limit_s:g} s"

    broken: list[str] = []
    try:
        if (reason := trio.run(bounded)) is not None:
            broken.append(f"{len(chaos.rounds)} of {options.rounds} rounds, then {reason}")
    except* ChaosError as group:
        broken.extend(map(str, leaves(group)))
    finally:
        fleet.end()
    if chaos.noise is None:
        return chaos, [*broken, "not even the undisturbed runs were done"]
    return chaos, [*verdict(chaos.rounds, chaos.noise), *broken]


def leaves(group: BaseExceptionGroup[ChaosError]) -> list[BaseException]:
    """The errors in a group, however deep."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def main() -> int:
    """Exit status 0: all as promised. 1: not, or not to the end, and why."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="paddler-chaos-") as folder:
        chaos, problems = perform(options, Path(folder))
    say("")
    if options.json:
        print(json.dumps(as_json(chaos, problems), indent=1))
    else:
        print_report(chaos, problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
