"""``paddler-trio bench``: how fast the fleet is under load, alone or beside another server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.bench.bench_order import (
    STANDARD_OUTPUT,
    BenchOrder,
    check_apart,
    check_writable,
    parse_levels,
    parse_workloads,
    target_order,
)
from paddler_trio.cli.bench.conditions import check_level, parse_condition
from paddler_trio.cli.bench.plan import MAX_ROUNDS, BenchPlan
from paddler_trio.cli.bench.workloads import Sizes
from paddler_trio.cli.daemons.options import KeyFileOption
from paddler_trio.cli.daemons.tls_options import with_tls
from paddler_trio.cli.exit_codes import USAGE
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR

LOAD = "The load"
BOUNDS = "Bounds"
COMPARED = "Against another server"
OUTPUT = "Output"
MAX_WORDS = 100_000


@with_tls
def bench(
    inference_addr: Annotated[
        str,
        typer.Option(
            "--inference-addr",
            envvar="PADDLER_TRIO_INFERENCE_ADDR",
            metavar="URL",
            help="host:port or base URL of the server to test: a balancer's inference service, or "
            "any other with OpenAI's chat completions.",
        ),
    ] = DEFAULT_INFERENCE_ADDR,
    model: Annotated[
        str, typer.Option("--model", help="Model to ask for.", show_default="the first listed")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="What it is called in tables.", show_default="host:port")
    ] = "",
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="URL",
            rich_help_panel=COMPARED,
            help="Base URL of a second server, which takes turns with the first: llama-server, "
            "vLLM, Ollama, or another way to the same fleet.",
        ),
    ] = "",
    against_model: Annotated[
        str,
        typer.Option(
            "--against-model",
            rich_help_panel=COMPARED,
            help="Model to ask it for.",
            show_default="the first listed",
        ),
    ] = "",
    against_name: Annotated[
        str,
        typer.Option(
            "--against-name",
            rich_help_panel=COMPARED,
            help="What it is called in tables.",
            show_default="host:port",
        ),
    ] = "",
    against_key_file: Annotated[
        Path | None,
        typer.Option(
            "--against-key-file",
            rich_help_panel=COMPARED,
            help="File that holds the API key to show to it; --key-file is never shown to it.",
        ),
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency",
            rich_help_panel=LOAD,
            help="How many clients at a time; a run for each of these numbers.",
        ),
    ] = "1,2,4,8,16",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            rich_help_panel=LOAD,
            help="plain, prefix (all prompts begin alike), mixed (one prompt in four is long), "
            "several with commas between, or all.",
        ),
    ] = "plain",
    requests: Annotated[
        int,
        typer.Option(
            "--requests",
            min=1,
            max=10_000,
            rich_help_panel=LOAD,
            help="Requests of each client in a run.",
        ),
    ] = 4,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            min=1,
            max=MAX_ROUNDS,
            rich_help_panel=LOAD,
            help="How often each run is done.",
        ),
    ] = 2,
    warmup: Annotated[
        int,
        typer.Option(
            "--warmup",
            min=0,
            max=64,
            rich_help_panel=LOAD,
            help="Requests of each workload that are sent before, and not counted.",
        ),
    ] = 2,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", min=1, max=100_000, rich_help_panel=LOAD, help="Tokens of an answer."
        ),
    ] = 64,
    prompt_words: Annotated[
        int,
        typer.Option(
            "--prompt-words", min=1, max=MAX_WORDS, rich_help_panel=LOAD, help="Words of a prompt."
        ),
    ] = 64,
    prefix_words: Annotated[
        int,
        typer.Option(
            "--prefix-words",
            min=1,
            max=MAX_WORDS,
            rich_help_panel=LOAD,
            help="Words that all prompts of the workload prefix begin with.",
        ),
    ] = 512,
    long_words: Annotated[
        int,
        typer.Option(
            "--long-words",
            min=1,
            max=MAX_WORDS,
            rich_help_panel=LOAD,
            help="Words of the long prompts of the workload mixed.",
        ),
    ] = 512,
    full_length: Annotated[
        bool,
        typer.Option(
            "--full-length/--natural-length",
            rich_help_panel=LOAD,
            help="Ask for answers of --max-tokens (ignore_eos), or let the model end them.",
        ),
    ] = True,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            max=2**32 - 1,
            rich_help_panel=LOAD,
            help="Of the prompts: the same ones again, if no server has them in its cache.",
            show_default="a new one",
        ),
    ] = None,
    run_time: Annotated[
        float,
        typer.Option(
            "--run-time",
            min=0.1,
            max=3600,
            rich_help_panel=BOUNDS,
            help="Seconds after which a run sends no further request.",
        ),
    ] = 10.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.1,
            max=3600,
            rich_help_panel=BOUNDS,
            help="Seconds that a request may take.",
        ),
    ] = 60.0,
    max_time: Annotated[
        float,
        typer.Option(
            "--max-time",
            min=1,
            max=86_400,
            rich_help_panel=BOUNDS,
            help="Seconds that everything may take; what is not done by then is left out.",
        ),
    ] = 600.0,
    allow_public: Annotated[
        bool,
        typer.Option(
            "--allow-public",
            rich_help_panel=BOUNDS,
            help="The public address is yours to load, or its owner agrees.",
        ),
    ] = False,
    max_error_rate: Annotated[
        float,
        typer.Option(
            "--max-error-rate",
            min=0,
            max=1,
            rich_help_panel=OUTPUT,
            help="Exit code 1 if a larger share of the requests fails.",
        ),
    ] = 0.01,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            rich_help_panel=OUTPUT,
            help="Exit code 1 if this is so of the first server, such as 'ttft_p95>500ms' or "
            "'tokens_per_s@8<100', or if nothing was measured that tells; may be repeated.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", rich_help_panel=OUTPUT, help="Write a page with plots to this file."
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            rich_help_panel=OUTPUT,
            help="Write all figures to this file as JSON; - is standard output, without the table.",
        ),
    ] = None,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Load-test the fleet: time to first token, inter-token latency, tokens a second."""
    with one_line_errors(codes={ConfigurationError: USAGE}):
        targets = [
            target_order(
                inference_addr,
                "--inference-addr",
                name=name,
                model=model,
                key_file=key_file,
                tls=tls,
            )
        ]
        if against:
            other = target_order(
                against,
                "--against",
                name=against_name,
                model=against_model,
                key_file=against_key_file,
                tls=SYSTEM_TRUST,  # the flags are about the fleet
            )
            targets.append(other)
        elif against_model or against_name or against_key_file:
            raise ConfigurationError("--against-… is about a second server: give --against URL")
        if against and targets[0].label == targets[1].label:
            raise ConfigurationError("both servers have one name: give --name or --against-name")
        check_writable(html)
        check_writable(None if json_file == STANDARD_OUTPUT else json_file)
        check_apart(html, json_file)
        plan = BenchPlan(
            workloads=parse_workloads(workload),
            concurrencies=parse_levels(concurrency),
            rounds=rounds,
            requests=requests,
            warmup=warmup,
            run_s=run_time,
            timeout_s=timeout,
            max_s=max_time,
            sizes=Sizes(
                prompt_words=prompt_words,
                prefix_words=prefix_words,
                long_words=long_words,
                max_tokens=max_tokens,
            ),
            seed=secrets.randbelow(2**32) if seed is None else seed,
            num_targets=len(targets),
        )
        conditions = [parse_condition(text) for text in fail_if or []]
        for condition in conditions:
            check_level(condition, plan.concurrencies)
        order = BenchOrder(
            plan=plan,
            targets=tuple(targets),
            ignores_end=full_length,
            allow_public=allow_public,
            max_error_rate=max_error_rate,
            conditions=conditions,
            html=html,
            json=json_file,
        )
        from paddler_trio.cli.bench.bench_run import run  # Trio and Rich take a while to import

        raise typer.Exit(run(order))
