"""The two servers as child processes: started alike, asked alike, ended whatever happens.

Both get the same model file, slots, cells a slot, batch size, cache types and engine threads,
greedy sampling, and nothing else: what each does by default beyond that is its own merit. Every
process is started by us, known by its id, and ended by it; on Linux the kernel ends them even if
this program is killed.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import attrs
from answers import Answer, AnswerError, Exchange, read_llama_server, read_ours
from scenarios import Ask

START_S = 120.0
"""A model of a few hundred megabytes is read and warmed up in seconds."""
END_S = 10.0
POLL_S = 0.02
CACHE_TYPES = ("q8_0", "f16", "f32")
BATCH_TOKENS = 2048
USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama-server does unless it is told otherwise."""
SAMPLINGS = ("greedy", "usual")
WAITING_REQUESTS = 4096
PATIENCE_MS = 600_000

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
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
    with _process(balancer_command, folder / "balancer.log") as balancer:
        up = _wait_for(_our_addresses, balancer, folder / "balancer.log")
        agent_command = [
            *(*command, "agent", "--management-addr", up["management"]),
            *("--slots", str(terms.slots), "--threads", str(terms.threads), "--log-json"),
            *("--kv-layout", "unified" if terms.unified else "split"),
        ]
        if terms.prefix_cache_ram is not None:
            agent_command += ["--prefix-cache-ram", str(terms.prefix_cache_ram)]
        management, inference = _split(up["management"]), _split(up["inference"])
        with _process(agent_command, folder / "agent.log") as agent:
            _put_desired_state(management, terms)
            _wait_for(lambda _: _is_ready(inference, "/readyz"), agent, folder / "agent.log")
            pids = {"balancer": balancer.pid, "agent": agent.pid}
            for child in _children(agent.pid):
                command_line = Path(f"/proc/{child}/cmdline").read_bytes()
                is_engine = b"paddler_trio.engine\0" in command_line
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
    with _process(command, log) as server:
        port = _wait_for(lambda text: _LISTENING.search(text), server, log)[1]
        address = ("127.0.0.1", int(port))
        _wait_for(lambda _: _is_ready(address, "/health"), server, log)
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
        name="llama-server, cache_prompt",
        request=partial(server.request, cache_prompt=True),
    )


def without_residency(ours: Contestant) -> Contestant:
    """The same fleet, asked to compute every prompt anew."""
    return attrs.evolve(ours, name="ours, nothing reused", request=_request_without_reuse)


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Processor time used so far, by process; empty where there is no ``/proc``.

    Raises:
      AnswerError: one of them is gone.
    """
    if not Path("/proc/self/stat").exists():
        return {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    used = {}
    for name, pid in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError as error:
            raise AnswerError(f"the {name} process is gone") from error
        used[name] = (int(fields[11]) + int(fields[12])) * tick_s
    return used


# --- requests -------------------------------------------------------------------------------


def _our_request(ask: Ask) -> bytes:
    body = {"raw_prompt": ask.prompt, "max_tokens": ask.max_tokens}
    return _post("/api/v1/continue_from_raw_prompt", body)


def _request_without_reuse(ask: Ask) -> bytes:
    body = {
        "prompt": {"Text": {"text": ask.prompt}},
        "max_tokens": ask.max_tokens,
        "reuse_prefix": False,
    }
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
        "ignore_eos": False,
        "cache_prompt": cache_prompt,
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


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that writes to ``log``; asked to end on leaving, then made to."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # no session of its own: Linux schedules each as a group
            preexec_fn=_die_with_parent,  # no threads here
        )
        try:
            yield child
        except AnswerError as error:
            if child.poll() is None:
                raise
            last_words = log.read_text(errors="replace")[-2000:]
            raise AnswerError(
                f"{error}\n{log.stem} had ended with {child.returncode}: {last_words}"
            ) from error
        finally:
            _end(child, output)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(child: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    """SIGTERM twice is "now" for our daemons; then SIGKILL."""
    for ending in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(ending)
        try:
            child.wait(END_S / 2)
        except subprocess.TimeoutExpired:
            output.write(f"(still there after signal {ending})\n".encode())


def _wait_for(look: Callable[[str], T | None], child: subprocess.Popen[bytes], log: Path) -> T:
    """What ``look`` finds in the log of a child that starts; AnswerError if it ends instead."""
    deadline_s = time.monotonic() + START_S
    text = ""
    while time.monotonic() < deadline_s:
        text = log.read_text(errors="replace")
        if found := look(text):
            return found
        if child.poll() is not None:
            raise AnswerError(f"{log.stem} ended with {child.returncode}:\n{text[-2000:]}")
        time.sleep(POLL_S)
    raise AnswerError(
        f"{log.stem} was not ready after {START_S:g} s; its log ends:\n{text[-2000:]}"
    )


def _our_addresses(log: str) -> dict[str, str] | None:
    for line in log.splitlines():
        if '"balancer up"' in line:
            record = json.loads(line)
            return {key: record[key][0] for key in ("inference", "management")}
    return None


def _put_desired_state(management: tuple[str, int], terms: Terms) -> None:
    """The model for all agents, with the sampling, cache and batch sizes of the terms."""
    path = "/api/v1/balancer_desired_state"
    state = json.loads(_ask(management, "GET", path))
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
    _ask(management, "PUT", path, json.dumps(state))


def _is_ready(address: tuple[str, int], path: str) -> bool:
    try:
        _ask(address, "GET", path)
    except (AnswerError, OSError):
        return False
    return True


def _ask(address: tuple[str, int], method: str, path: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status >= 300:
        raise AnswerError(f"{method} {path}: status {response.status}, {text[:500]!r}")
    return text


def _children(pid: int) -> list[int]:
    """The children of a process; empty where there is no ``/proc``."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, children.read_text().split())
    return found


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
