"""``paddler-trio doctor``: what on this machine would keep a balancer or an agent from working.

Looking and judging are apart: each ``judge_*`` is a pure function from what was seen to one
``Finding``, each ``look_*`` sees and asks a judge. A finding is *broken* only if a daemon with
the default settings could not do its work; everything that merely costs speed or comfort is a
*warning*. Whatever is not *ok* says what to do about it.

Nothing is changed, and llama.cpp runs in a child process only: a build that crashes must not
take the doctor with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import resource
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import attrs
import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.tls.client_tls import unverified_context
from paddler_trio.processes.engine.proof import BUNDLED_MODEL, Proof, prove_in_child
from paddler_trio.processes.llama_setup.environment import (
    CPU_FLAGS_NEEDED,
    Environment,
    Marker,
    SetupError,
    built_features,
    features_lacking,
    features_unused,
    read_marker,
)
from paddler_trio.system.config import split_address
from paddler_trio.system.machine import available_memory_bytes, granted_cores, read_cpu_flags

BUNDLED_SHA256 = "f1e18e5bb688c08a6f4682eda2c89205b7bce4ef80a39de7e95a0d76f4ca20fd"
ENOUGH_FILES = 4096
ENOUGH_MEMORY_BYTES = 1 << 30
bound_parsing()

ANSWER_LIMIT_S = 2.0
MODEL_LIMIT_S = 600.0  # a big model on a slow disk is read once from end to end
REBUILD = "run `paddler-trio setup`: it builds llama.cpp for this machine and proves it"

State = Literal["ok", "warning", "broken"]
COLOURS: dict[State, str] = {"ok": "green", "warning": "yellow", "broken": "red"}


@attrs.frozen
class Finding:
    """One thing looked at: what was seen, and what to do, or could be done if it is ``ok``."""

    check: str
    state: State
    seen: str
    todo: str = ""


# --- judging ------------------------------------------------------------------------------------


def judge_proof(proof: Proof, model: Path) -> Finding:
    """Judge whether a prompt was decoded with ``model``."""
    if proof.ok:
        seen = f"{proof.tokens} tokens of {model.name} in {proof.seconds:.2f} s"
        return Finding("llama.cpp runs", "ok", seen)
    todo = REBUILD
    if "SIGKILL" in proof.error or "no answer" in proof.error:
        todo = "free memory or choose a smaller model, then run the doctor again"
    elif "cannot load" in proof.error:
        todo = "check that the file is a GGUF model that this llama.cpp knows"
    return Finding("llama.cpp runs", "broken", proof.error, todo)


def judge_devices(proof: Proof) -> list[Finding]:
    """Judge what models can be computed on, and how to get what this build lacks."""
    if not proof.ok:
        return []
    accelerators = [each for each in proof.devices if not each.startswith(("CPU", "BLAS"))]
    if accelerators:
        devices = Finding("devices", "ok", ", ".join(accelerators))
    else:
        how = "for a GPU: `paddler-trio setup --cuda`, or --vulkan; on a Mac --metal"
        devices = Finding("devices", "ok", "the CPU alone", how)
    if proof.has_rpc:
        how = "`rpc-server` lends this machine's devices, `agent --rpc` uses those of others"
        return [devices, Finding("RPC back end", "ok", "in this build", how)]
    how = "for `agent --rpc` and `rpc-server`: `paddler-trio setup --cpu`, or --cuda, --vulkan"
    return [devices, Finding("RPC back end", "ok", "not in this build", how)]


def judge_version(installed: str | None, requirements: Iterable[str]) -> Finding:
    """Judge whether the llama-cpp-python that is installed is the one this package was written
    for."""
    pinned = next(
        (
            match["version"]
            for match in (
                re.match(r"llama[-_]cpp[-_]python==(?P<version>[^ ;]+)", text)
                for text in requirements
            )
            if match
        ),
        None,
    )
    if installed is None:
        return Finding("llama-cpp-python", "broken", "not installed", REBUILD)
    if pinned is not None and installed != pinned:
        seen = f"{installed} instead of {pinned}"
        return Finding("llama-cpp-python", "broken", seen, f"{REBUILD} ({pinned})")
    return Finding("llama-cpp-python", "ok", installed)


def judge_cpu(proof: Proof, flags: frozenset[str], marker: Marker | None) -> Finding:
    """Compare the instructions built into llama.cpp with those the CPU lists.

    Args:
      marker: what set-up remembers of this very build, if it does.
    """
    if not proof.system_info or not flags:
        return Finding("CPU features", "ok", "not compared: no list of them here")
    lacking = features_lacking(proof.system_info, flags)
    if lacking:
        seen = f"built for {', '.join(lacking)}, which this CPU does not list"
        return Finding("CPU features", "broken", seen, REBUILD)
    built = built_features(proof.system_info)
    used = ", ".join(name for name in CPU_FLAGS_NEEDED if name in built) or "the baseline"
    unused = features_unused(proof.system_info, flags)
    if unused and marker is not None and marker.is_our_choice:
        seen = f"built for {used}: a build for {', '.join(unused)} was tried and did not run"
        return Finding("CPU features", "ok", seen)
    if unused:
        seen = f"a poor build for this CPU: it does not use {', '.join(unused)}"
        return Finding(
            "CPU features", "warning", seen, f"for more speed, {_rebuild(proof, marker)}"
        )
    return Finding("CPU features", "ok", f"built for {used}")


def _rebuild(proof: Proof, marker: Marker | None) -> str:
    """Return the command that builds llama.cpp anew for the devices that it computes on now.

    A build of somebody's own CMAKE_ARGS stays until another one is asked for in so many words.
    """
    names = " ".join(proof.devices).lower().replace("mtl", "metal")  # as newer ones call it
    own = " --cpu" if marker is not None and marker.requested is not None else ""
    option = next((f" --{each}" for each in ("cuda", "vulkan", "metal") if each in names), own)
    return f"run `paddler-trio setup{option}`"


def judge_cores(cores: float) -> Finding:
    """An agent's event loop and its engine want a core each."""
    if cores < 2:
        seen = f"{cores:g} granted to this process"
        return Finding(
            "cores", "warning", seen, "give an agent two cores or more, or expect pauses"
        )
    return Finding("cores", "ok", f"{cores:g} granted to this process")


def judge_memory(available_bytes: int | None, host_bytes: int = 0) -> Finding:
    """A model has to fit; below a gibibyte only toys do.

    Args:
      host_bytes: what llama.cpp says that this machine has; 0 where it does not.
    """
    if available_bytes is None and host_bytes:
        seen = f"{host_bytes / (1 << 30):.1f} GiB in this machine; the system tells of no free part"
        return Finding("memory", "ok", seen)
    if available_bytes is None:
        return Finding("memory", "ok", "not known on this system")
    seen = f"{available_bytes / (1 << 30):.1f} GiB available"
    if available_bytes < ENOUGH_MEMORY_BYTES:
        return Finding("memory", "warning", seen, "free some, or raise the limit of the container")
    return Finding("memory", "ok", seen)


def judge_open_files(soft: int, hard: int) -> Finding:
    """Every client, agent and stream is a file descriptor."""
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "unlimited")
    if soft < ENOUGH_FILES:
        todo = f"`ulimit -n {65536 if hard == resource.RLIM_INFINITY else hard}` before a balancer"
        return Finding("open files", "warning", f"at most {soft}", f"{todo} with many clients")
    return Finding("open files", "ok", f"at most {soft}")


# --- looking ------------------------------------------------------------------------------------


def look_at_version() -> Finding:
    """Read what is installed from the package metadata."""
    try:
        requirements: Sequence[str] = importlib.metadata.requires("paddler-trio") or ()
    except importlib.metadata.PackageNotFoundError:
        requirements = ()
    try:
        installed: str | None = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    return judge_version(installed, requirements)


def look_at_marker() -> Marker | None:
    """Look at what set-up remembers of the installed build; None if it is not about that one."""
    try:
        environment = Environment.here()
    except SetupError:
        return None  # the system's own Python: set-up never worked there
    marker = read_marker(environment.marker)
    if marker is None or marker.libraries != environment.fingerprint_libraries():
        return None
    return marker


def look_at_bundled_model(path: Path = BUNDLED_MODEL) -> Finding:
    """The demo and the tests run on this very file."""
    try:
        seen_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return Finding("bundled model", "broken", str(error), "install paddler-trio again")
    if seen_sha256 != BUNDLED_SHA256:
        seen = f"{path.name} has SHA-256 {seen_sha256[:12]}… instead of {BUNDLED_SHA256[:12]}…"
        return Finding("bundled model", "broken", seen, "install paddler-trio again")
    return Finding("bundled model", "ok", path.name)


def look_at_address(service: str, option: str, address: str) -> Finding:
    """Look whether ``address`` (``host:port``, ``[v6]:port``) can be bound, or who has it
    already."""
    try:
        host, port = split_address(address)
    except ConfigurationError as error:
        todo = f"give {option} an address like 127.0.0.1:8061"
        return Finding(service, "broken", str(error), todo)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            trial.listen(1)
    except OSError as error:
        answer = _ask_who_answers(address)
        if answer is not None:
            return Finding(service, "ok", f"{answer} is serving on {address}")
        todo = f"stop what uses it (`ss -ltnp`), or start with another {option}"
        return Finding(service, "broken", f"{address}: {error.strerror or error}", todo)
    return Finding(service, "ok", f"{address} is free")


def _ask_who_answers(address: str) -> str | None:
    """Ours knows ``/livez``; every Paddler balancer answers ``/health`` with ``OK``. A service with
    TLS answers plain HTTP with another status; nothing secret is sent, so nothing is verified."""
    asked = (
        ("http", "/livez", "a paddler-trio balancer"),
        ("http", "/health", "a Paddler balancer"),
        ("https", "/livez", "a paddler-trio balancer with TLS"),
    )
    for scheme, path, name in asked:
        try:
            answer = httpx.get(
                f"{scheme}://{address}{path}",
                timeout=ANSWER_LIMIT_S,
                trust_env=False,
                verify=unverified_context(),
            )
        except (httpx.HTTPError, httpx.InvalidURL):
            return None  # no HTTP there at all: the finding says that the address is taken
        if answer.status_code == 200 and (path == "/livez" or answer.text == "OK"):
            return name
    return None


def look_at_systemd(booted: Path = Path("/run/systemd/system")) -> Finding:
    """Look at systemd, for information: the units in ``systemd/`` need it, nothing else does."""
    if sys.platform == "darwin":
        name, here = "launchd", "runs this machine: launchd/ has property lists"
    else:
        is_here = booted.is_dir()
        name, here = "systemd", "runs this machine" if is_here else "not here: start by hand"
    return Finding(name, "ok", here)


def look_at_everything(
    *, inference_addr: str, management_addr: str, model: Path | None
) -> list[Finding]:
    """All findings, the most basic first."""
    proven_with = model or BUNDLED_MODEL
    proof = prove_in_child(proven_with, limit_s=MODEL_LIMIT_S if model else 120)
    return [
        look_at_version(),
        look_at_bundled_model(),
        judge_proof(proof, proven_with),
        judge_cpu(proof, read_cpu_flags(), look_at_marker()),
        *judge_devices(proof),
        judge_cores(granted_cores()),
        judge_memory(available_memory_bytes(), proof.host_bytes),
        judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        look_at_address("inference address", "--inference-addr", inference_addr),
        look_at_address("management address", "--management-addr", management_addr),
        look_at_systemd(),
    ]


# --- the command --------------------------------------------------------------------------------


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
    inference_addr: Annotated[
        str, typer.Option(help="Where a balancer would serve applications.")
    ] = "127.0.0.1:8061",
    management_addr: Annotated[
        str, typer.Option(help="Where a balancer would serve agents and operators.")
    ] = "127.0.0.1:8060",
    model: Annotated[
        Path | None, typer.Option(help="Decode with this GGUF file, not the bundled model.")
    ] = None,
) -> None:
    """Check that this machine can run Paddler; exit with 1 if something is broken."""
    findings = look_at_everything(
        inference_addr=inference_addr, management_addr=management_addr, model=model
    )
    healthy = all(finding.state != "broken" for finding in findings)
    if as_json:
        told = {"healthy": healthy, "findings": [attrs.asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        table = Table("", "check", "seen", "what to do", show_edge=False)
        for finding in findings:
            state = f"[{COLOURS[finding.state]}]{finding.state}[/]"
            table.add_row(state, finding.check, escape(finding.seen), escape(finding.todo))
        Console().print(table)
    if not healthy:
        raise typer.Exit(1)
