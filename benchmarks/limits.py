"""What one balancer bears: agents that all come back, open streams, hours of churn, and changes.

    .venv/bin/python benchmarks/limits.py [--only rejoin,streams,soak,changes] [--json]
                                          [--agents 1000] [--streams 10000] [--minutes 60]

Real processes on loopback: a balancer, fake agents in a second process, readers in a third. It
raises its soft limit of descriptors to the hard one and says so where that is not enough.

*rejoin*: the balancer is killed under its agents and started again, at once and after five seconds;
agents redial with the pauses of real ones. *streams*: so many streams, all agents together 4,000
tokens a second: memory, descriptors and tasks of each; and what a token costs with 8 streams and
with 5,000, beyond what idle agents cost, with the same agents and eight tokens in each frame.
*soak*: 50 agents of 16 slots, seven slots in ten busy, a link lost every other second, answers of
different lengths, one in five left by its client: memory, descriptors and tasks over the time.
*changes*: one agent that joins and leaves among ten and among all, reads of all agents, watchers.

Exit status 1 if a goal is missed. Without the soak it takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator

import attrs
from answers import AnswerError
from limits_figures import Figure, table
from limits_fleet import SPARE_DESCRIPTORS, allow_descriptors, progress
from limits_parts import changes, rejoin, soak, streams

PARTS = ("rejoin", "streams", "changes", "soak")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the soak")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each other measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of few and many streams in turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "rejoin": lambda: rejoin(options.agents),
        "streams": lambda: streams(options.streams, options.rounds, options.seconds),
        "changes": lambda: changes(options.agents, options.seconds),
        "soak": lambda: soak(options.minutes),
    }
    wanted = options.only.split(",")
    for name in wanted:
        if name not in parts:
            parser.error(f"--only: {name!r} is none of {', '.join(PARTS)}")
    for name in ("agents", "streams", "minutes", "seconds", "rounds"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} is {getattr(options, name)}; it must be more than 0")
    figures: list[Figure] = []
    try:
        most = allow_descriptors(max(options.agents, options.streams * 9 // 8) + SPARE_DESCRIPTORS)
        progress(f"at most {most} descriptors a process")
        for name in wanted:
            progress(f"--- {name}")
            for figure in parts[name]():
                figures.append(figure)
                progress(table([figure]).splitlines()[1])
    except AnswerError as error:
        sys.stderr.write(f"limits: {error}\n")
        return 1
    if options.json:
        print(json.dumps([attrs.asdict(each) for each in figures]))
    else:
        print(table(figures))
    return 0 if all(each.is_good for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
