"""What forwarding to llama-servers costs, and what it keeps when a server dies.

    python benchmarks/reverse_proxy.py --server PATH [--model FILE] [--nginx PATH] [--rounds 3]
        [--only latency|throughput|slots|kill|mixed|neighbours] [--json]

Two llama-servers of four slots, an agent in front of each, one balancer, and nginx beside it for
``mixed`` and ``neighbours``. Parts take turns, round by round; medians are printed. See README.md
beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from answers import AnswerError
from proxied_fleet import fleet
from proxied_parts import PARTS, Figures, Sizes

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

QUICK = Sizes(tokenize=60, completion=20, streams_a_client=1, mixed=32, turns=2)
NEED_NGINX = frozenset({"mixed", "neighbours"})


def measure(options: argparse.Namespace) -> dict[str, list[Figures]]:
    """The figures of each part, round by round."""
    names = [options.only] if options.only else list(PARTS)
    beside_nginx = [name for name in names if name in NEED_NGINX]
    if options.nginx is None and beside_nginx:
        if options.only:
            raise AnswerError(f"{options.only} needs nginx: install it, or say --nginx PATH")
        names = [name for name in names if name not in NEED_NGINX]
        print(f"left out, there is no nginx: {', '.join(beside_nginx)}", file=sys.stderr)
    sizes = QUICK if options.quick else Sizes()
    results: dict[str, list[Figures]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="paddler-bench-") as folder:
        nginx = options.nginx if NEED_NGINX & set(names) else None
        with fleet(options.server.resolve(), options.model, nginx, Path(folder)) as up:
            for number in range(1, options.rounds + 1):
                for name in names:
                    print(f"round {number} of {options.rounds}: {name}", file=sys.stderr)
                    results[name].append(PARTS[name](up, sizes, number))
                    up.wait_whole()
    return results


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--server", type=Path, required=True, help="llama-server")
    parser.add_argument(
        "--model", type=Path, default=BUNDLED_MODEL, help="default: the bundled one"
    )
    found = shutil.which("nginx")
    parser.add_argument("--nginx", type=Path, default=found and Path(found))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer requests: does it work?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for path in (options.server, options.model):
        if not path.is_file():
            parser.error(f"there is no file {path}")
    if not 1 <= options.rounds <= 100:
        parser.error(f"--rounds {options.rounds}: 1 to 100")
    return options


def main() -> int:
    """Exit status 0: measured. 1: a promise was broken, and which. 130: stopped."""
    options = parse_arguments()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    before = os.getloadavg()[0]
    try:
        results = measure(options)
    except AnswerError as error:
        print(f"\nbenchmark: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbenchmark: stopped", file=sys.stderr)
        return 130
    medians = {
        part: {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        for part, rounds in results.items()
    }
    loads = [before, os.getloadavg()[0]]
    if options.json:
        print(json.dumps({"load_average": loads, "rounds": options.rounds, "medians": medians}))
        return 0
    for part, figures in medians.items():
        print(f"\n{part}, medians of {options.rounds} rounds")
        for name, value in figures.items():
            print(f"  {name:44} {value:12,.2f}")
    print(f"\nload average before and after: {loads[0]:.1f}, {loads[1]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
