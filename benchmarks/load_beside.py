"""What running streams notice while another engine is loaded beside theirs.

    python benchmarks/load_beside.py [--model M.gguf] [--streams 3] [--rounds 5] [--threads 1]

One agent with real engines and a balancer that is only its frames. In each round streams run for a
while alone; then the same weights are wanted from another file, and loaded beside. Gaps between
tokens of one stream are compared: before, and from the wish until the new model serves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import structlog
import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from balancer_double import BalancerDouble, Link, balancer_double  # found only now

from paddler_trio.agent.assembly.agent_daemon import serve_agent
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    InferenceParameters,
    KvCacheDtype,
    LocalToAgent,
    NoModel,
)

ALONE_S = 2.0
TOKENS_A_SLOT = 8192


def state(model: Path, slots: int) -> AgentDesiredState:
    return AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(
            context_size=slots * TOKENS_A_SLOT,
            k_cache_dtype=KvCacheDtype.F16,
            v_cache_dtype=KvCacheDtype.F16,
            temperature=0.0,
        ),
        model=LocalToAgent(str(model)),
        multimodal_projection=NoModel(),
    )


def p(quantile: float, gaps_s: list[float]) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(gaps_s, n=1000)[int(1000 * quantile) - 1]


def phases(link: Link, since_s: float, until_s: float) -> list[tuple[str, float, float]]:
    """What the agent was doing, from when to when."""
    seen = [
        (report.phase, at_s)
        for report, at_s in zip(link.reports, link.reported_s, strict=True)
        if since_s <= at_s <= until_s
    ]
    ends_s = [at_s for _, at_s in seen[1:]] + [until_s]
    return [(phase, at_s, end_s) for (phase, at_s), end_s in zip(seen, ends_s, strict=True)]


async def one_round(
    double: BalancerDouble, link: Link, model: Path, streams: int, number: int
) -> tuple[dict[str, list[float]], float, float | None]:
    """Gaps in seconds by what the agent was doing, how long the swap took, and ``load_s``."""
    names = [f"{number}.{i}" for i in range(streams)]
    running = [await link.start(name, max_tokens=TOKENS_A_SLOT - 100) for name in names]
    await double.until(lambda: all(len(stream.came_s) > 20 for stream in running))
    began_s = trio.current_time()
    await trio.sleep(ALONE_S)
    wished_s = trio.current_time()
    wanted = await link.want(state(model, streams + 1))
    await double.until(lambda: link.report.served_state == wanted)
    served_s = trio.current_time()
    for name in names:
        await link.stop(name)
    await double.until(lambda: all(stream.ending for stream in running))
    spans = [
        ("alone", began_s, wished_s),
        ("from the wish to serving", wished_s, served_s),
        *phases(link, wished_s, served_s),
    ]
    gaps_s: dict[str, list[float]] = {}
    for name, since_s, until_s in spans:
        for stream in running:
            gaps_s.setdefault(name, []).extend(stream.gaps_s(since_s, until_s))
    return gaps_s, served_s - wished_s, link.report.load_s


async def measure(options: argparse.Namespace, folder: Path) -> None:
    others = [folder / "a.gguf", folder / "b.gguf"]
    for path in others:
        shutil.copyfile(options.model, path)
    os.environ["PADDLER_CACHE_DIR"] = str(folder / "cache")
    async with trio.open_nursery() as nursery, balancer_double() as double:
        config = AgentConfig(
            management_host="127.0.0.1",
            management_port=double.port,
            slots=options.streams + 1,
            name="host",
            threads=options.threads,
        )
        serve = partial(serve_agent, config, trio.Event(), notifier=SystemdNotifier())
        await nursery.start(serve)
        link = await double.link("host")
        first = await link.want(state(others[1], options.streams + 1))
        await double.until(lambda: link.report.served_state == first)
        gaps_s: dict[str, list[float]] = {}
        for number in range(options.rounds):
            found, swap_s, load_s = await one_round(
                double, link, others[number % 2], options.streams, number
            )
            for name, some in found.items():
                gaps_s.setdefault(name, []).extend(some)
            print(f"round {number}: {swap_s:.2f} s until served, load_s {load_s or 0:.2f}")
        for name, some in gaps_s.items():
            if len(some) > 1:
                print(
                    f"{name}: {len(some)} gaps, p50 {p(0.5, some):.2f} ms, "
                    f"p99 {p(0.99, some):.2f} ms, longest {1000 * max(some):.1f} ms"
                )
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        trio.run(measure, options, Path(folder))


if __name__ == "__main__":
    main()
