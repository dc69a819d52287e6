"""The two servers as child processes: started alike, asked alike, ended whatever happens.

Both get the same model file, slots, cells a slot, batch size, cache types and engine threads,
greedy sampling, and nothing else: what each does by default beyond that is its own merit. Every
process is started by us, known by its id, and ended by it; on Linux the kernel ends them even if
this program is killed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
from answers import Answer, Exchange, read_llama_server, read_ours
from child_processes import ask, is_ready, process, split, wait_for
from relays import Relays
from scenarios import Ask

CACHE_TYPES = ("q8_0", "f16", "f32")
BATCH_TOKENS = 2048
USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama-server does unless it is told otherwise."""
SAMPLINGS = ("greedy", "usual")
WAITING_REQUESTS = 4096
PATIENCE_MS = 600_000

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


@attrs.frozen
class Terms:
    """What both contestants are given."""

    model: Path
    slots: int
    cells: int
    """Tokens of context a slot."""
    threads: int
    cache_type: str
    """Of keys and values, one of ``CACHE_TYPES``."""
    unified: bool = False
    """One pool of half of all cells, for all slots."""
    sampling: str = "greedy"
    """How tokens are drawn, one of ``SAMPLINGS``."""
    prefix_cache_ram: int | None = None
    """MiB in which our agent keeps prefixes; None for its default."""
    stream_interval_ms: float | None = None
    """How long our agent's engine may hold tokens; None for its default."""

    @property
    def context_size(self) -> int:
        return self.slots * self.cells // (2 if self.unified else 1)


@attrs.frozen(eq=False)
class Contestant:
    """A server that is up. ``pids`` by name; ``request`` renders what ``run_lanes`` writes."""

    name: str
    address: tuple[str, int]
    pids: Mapping[str, int]
    request: Callable[[Ask], bytes]
    read: Callable[[Exchange], Answer]


@contextmanager
def our_pair(terms: Terms, folder: Path) -> Iterator[Contestant]:
    """Our balancer with one agent, serving; ended on leaving."""
    command = [sys.executable, "-m", "paddler_trio"]
    balancer_command = [
        *(*command, "balancer", "--inference-addr", "127.0.0.1:0"),
        *("--management-addr", "127.0.0.1:0", "--log-json"),
        *("--max-buffered-requests", str(WAITING_REQUESTS)),
        *("--buffered-request-timeout", str(PATIENCE_MS)),
        *("--inference-item-timeout", str(PATIENCE_MS)),
    ]
    with process(balancer_command, folder / "balancer.log") as balancer:
        up = wait_for(_our_addresses, balancer, folder / "balancer.log")
        agent_command = [
            *(*command, "agent", "--management-addr", up["management"]),
            *("--slots", str(terms.slots), "--threads", str(terms.threads), "--log-json"),
            *("--kv-layout", "unified" if terms.unified else "split"),
        ]
        if terms.prefix_cache_ram is not None:
            agent_command += ["--prefix-cache-ram", str(terms.prefix_cache_ram)]
        if terms.stream_interval_ms is not None:
            agent_command += ["--stream-interval-ms", str(terms.stream_interval_ms)]
        management, inference = split(up["management"]), split(up["inference"])
        with process(agent_command, folder / "agent.log") as agent:
            _put_desired_state(management, terms)
            wait_for(lambda _: is_ready(inference, "/readyz"), agent, folder / "agent.log")
            pids = {"balancer": balancer.pid, "agent": agent.pid}
            for child in _children(agent.pid):
                command_line = Path(f"/proc/{child}/cmdline").read_bytes()
                is_engine = b"paddler_trio.processes.engine\0" in command_line
                pids["engine" if is_engine else f"helper {child}"] = child
            yield Contestant("ours", inference, pids, _our_request, read_ours)


@contextmanager
def llama_server(binary: Path, terms: Terms, folder: Path) -> Iterator[Contestant]:
    """A llama-server, ready; ended on leaving.

    Its cache of prompts in main memory is off: with prompts that never come again it only costs.
    """
    command = [
        *(str(binary), "--model", str(terms.model), "--host", "127.0.0.1", "--port", "0"),
        *("--parallel", str(terms.slots), "--ctx-size", str(terms.context_size)),
        "--kv-unified" if terms.unified else "--no-kv-unified",
        *("--threads", str(terms.threads), "--threads-batch", str(terms.threads)),
        *("--cache-type-k", terms.cache_type, "--cache-type-v", terms.cache_type),
        *("--batch-size", str(BATCH_TOKENS), "--cache-ram", "0", "--n-gpu-layers", "0"),
    ]
    log = folder / "llama-server.log"
    with process(command, log) as server:
        port = wait_for(lambda text: _LISTENING.search(text), server, log)[1]
        address = ("127.0.0.1", int(port))
        wait_for(lambda _: is_ready(address, "/health"), server, log)
        yield Contestant(
            "llama-server",
            address,
            {"llama-server": server.pid},
            partial(_llama_server_request, sampling=terms.sampling, cache_prompt=False),
            read_llama_server,
        )


def with_prompt_cache(server: Contestant) -> Contestant:
    """The same llama-server, asked to reuse what a slot still holds."""
    return attrs.evolve(
        server,
        name=f"{server.name}, cache_prompt",
        request=partial(server.request, cache_prompt=True),
    )


def behind(row: Relays, server: Contestant) -> Contestant:
    """The same server, its requests and answers passed on by ``row``."""
    return attrs.evolve(
        server,
        name=f"{server.name} behind {len(row.pids)} relays",
        address=row.address,
        pids={**server.pids, **row.pids},
    )


def without_residency(ours: Contestant) -> Contestant:
    """The same fleet, asked to compute every prompt anew."""
    return attrs.evolve(ours, name="ours, nothing reused", request=_request_without_reuse)


def unbound(server: Contestant) -> Contestant:
    """The same server, asked for answers as long without the schema; prompts begin otherwise, so
    that nothing of the bound ones is found."""

    def request(one: Ask) -> bytes:
        prompt = f"free {one.prompt}"
        return server.request(attrs.evolve(one, prompt=prompt, schema=None, is_whole=True))

    return attrs.evolve(server, name=f"{server.name}, unbound", request=request)


# --- requests -------------------------------------------------------------------------------


def _our_request(ask: Ask) -> bytes:
    if ask.is_whole:  # which Paddler's requests cannot say
        return _our_generation(ask, sampling={"ignore_eos": True})
    body: dict[str, object] = {"raw_prompt": ask.prompt, "max_tokens": ask.max_tokens}
    if ask.schema is not None:
        body["grammar"] = {"type": "json_schema", "schema": json.dumps(ask.schema)}
    return _post("/api/v1/continue_from_raw_prompt", body)


def _request_without_reuse(ask: Ask) -> bytes:
    return _our_generation(ask, reuse_prefix=False)


def _our_generation(ask: Ask, **more: object) -> bytes:
    body = {"prompt": {"Text": {"text": ask.prompt}}, "max_tokens": ask.max_tokens, **more}
    return _post("/api/v2/generate", body)


def _llama_server_request(ask: Ask, *, sampling: str, cache_prompt: bool) -> bytes:
    drawn: dict[str, object] = dict(USUAL)
    if sampling == "greedy":  # the shortest way to the most likely token it has
        drawn = {"temperature": 0.0, "samplers": ["temperature"]}
    body = {
        "prompt": ask.prompt,
        "n_predict": ask.max_tokens,
        "stream": True,
        **drawn,
        "ignore_eos": ask.is_whole,
        "cache_prompt": cache_prompt,
        **({} if ask.schema is None else {"json_schema": ask.schema}),
    }
    return _post("/completion", body)


def _post(path: str, body: Mapping[str, object]) -> bytes:
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


# --- starting -------------------------------------------------------------------------------


def _our_addresses(log: str) -> dict[str, str] | None:
    for line in log.splitlines():
        if '"balancer up"' in line:
            record = json.loads(line)
            return {key: record[key][0] for key in ("inference", "management")}
    return None


def _put_desired_state(management: tuple[str, int], terms: Terms) -> None:
    """The model for all agents, with the sampling, cache and batch sizes of the terms."""
    path = "/api/v1/balancer_desired_state"
    state = json.loads(ask(management, "GET", path))
    state["model"] = {"LocalToAgent": str(terms.model)}
    state["inference_parameters"] |= {
        "context_size": terms.context_size,
        "n_batch": BATCH_TOKENS,
        "k_cache_dtype": terms.cache_type.upper(),
        "v_cache_dtype": terms.cache_type.upper(),
        **(USUAL if terms.sampling == "usual" else {"temperature": 0.0}),
        "penalty_repeat": 1.0,
        "penalty_presence": 0.0,
        "penalty_frequency": 0.0,
    }
    ask(management, "PUT", path, json.dumps(state))


def _children(pid: int) -> list[int]:
    """The children of a process; empty where there is no ``/proc``."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, children.read_text().split())
    return found
