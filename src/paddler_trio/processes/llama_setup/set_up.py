"""Try recipes until one is proven: what ``make setup`` and ``paddler-trio setup`` do."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paddler_trio.processes.engine.proof import BUNDLED_MODEL, Proof, prove_in_child
from paddler_trio.processes.llama_setup.environment import (
    Environment,
    Marker,
    SetupError,
    digest,
    features_unused,
    is_outdated,
    is_proven,
    read_marker,
    write_marker,
)
from paddler_trio.processes.llama_setup.recipes import (
    DISTRIBUTION,
    FOUND,
    PORTABLE_FLAGS,
    SWITCHES,
    VERSION,
    Accelerator,
    Recipe,
    choose_recipes,
    portable_recipes,
    usual_accelerator,
    wheel_key,
)
from paddler_trio.processes.llama_setup.wheel_build import (
    Pip,
    build_wheel,
    check_accelerator,
    cuda_architectures,
    find_compiler,
    find_kept,
    keep_wheel,
    open_pip,
    say,
)
from paddler_trio.system.machine import read_cpu_flags


@dataclass(frozen=True)
class SetupRequest:
    """The wishes of who starts a set-up.

    Attributes:
      command: what people type to start this again.
      accelerator: what computes beside the CPU; None leaves that as it is, or takes the CPU alone.
      portable: build for other machines of this kind, such as those that run a container image.
      plan_only: print what would be tried, and change nothing.
      quiet_if_proven: say nothing where nothing is to do.
    """

    command: str
    accelerator: Accelerator | None = None
    portable: bool = False
    plan_only: bool = False
    quiet_if_proven: bool = False


# --- pure ---------------------------------------------------------------------------------------


def reason_against(proof: Proof, flags: frozenset[str]) -> str | None:
    """Return why a build that somebody else installed is not kept; None if it is as good as ours.

    One that computes on a GPU stays even if its part for the CPU is not the best.
    """
    if not proof.ok:
        return proof.error
    if "AMX" in proof.system_info:
        return "it uses AMX, which faults on many virtual machines"
    unused = features_unused(proof.system_info, flags)
    if unused and all(device.startswith("CPU") for device in proof.devices):
        return f"it does not use {', '.join(unused)}, which this CPU has"
    return None


# --- doing --------------------------------------------------------------------------------------


def remember(
    recipe: Recipe,
    proof: Proof,
    *,
    environment: Environment,
    requested: str | None,
    accelerator: Accelerator,
    cpu: str,
) -> None:
    """Write down that what is installed now has been proven."""
    libraries = environment.fingerprint_libraries()
    if libraries is None:
        raise SetupError(f"{DISTRIBUTION} {VERSION} was installed and is not there any more")
    marker = Marker(
        recipe.name,
        requested,
        cpu,
        libraries,
        proof.system_info,
        recipe.cmake_args,
        accelerator,
    )
    write_marker(environment.marker, marker)
    say(f"==> llama.cpp ({recipe.name}) decoded {proof.tokens} tokens here: {proof.system_info}")
    if accelerator in SWITCHES and all(device.startswith("CPU") for device in proof.devices):
        say(f"    but it sees no device for {accelerator} here: is the driver installed?")


def try_wheel(wheel: Path, *, pip: Pip, environment: Environment) -> Proof:
    """Install ``wheel`` and run the proof with it."""
    pip.install_wheel(wheel, environment)
    proof = prove_in_child(BUNDLED_MODEL)
    if not proof.ok:
        say(f"==> this build does not run here: {proof.error}")
    return proof


def provide(
    recipes: Sequence[Recipe],
    *,
    environment: Environment,
    requested: str | None,
    accelerator: Accelerator,
    flags: frozenset[str],
    architectures: Sequence[str],
    command: str,
) -> None:
    """Try recipes until one is proven; raise SetupError when none is left."""
    cpu = digest(flags.union(architectures))
    compiler = find_compiler()
    check_accelerator(accelerator)
    environment.prepare()
    system = f"{sysconfig.get_platform()} {platform.libc_ver()}"
    with open_pip() as pip:
        for recipe in recipes:
            key = wheel_key(
                recipe, flags=flags, compiler=compiler, system=system, architectures=architectures
            )
            proof = _try_kept(key, pip=pip, environment=environment)
            if proof is None:
                proof = _try_build(recipe, key, architectures, pip=pip, environment=environment)
            if proof is not None:
                remember(
                    recipe,
                    proof,
                    environment=environment,
                    requested=requested,
                    accelerator=accelerator,
                    cpu=cpu,
                )
                return
    raise SetupError(
        "no build of llama.cpp decodes on this machine.\n"
        f"  tried: {', '.join(recipe.name for recipe in recipes)}; last log: {environment.log}\n"
        + (
            "  CMAKE_ARGS is set, so nothing else was tried: change it, or unset it and run\n"
            f"  `{command}` again for a CPU build chosen for this machine."
            if requested is not None
            else f"  Set CMAKE_ARGS to what you want and run `{command}` again, for example\n"
            f"  CMAKE_ARGS='-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF' {command}"
        )
    )


def _try_kept(key: str, *, pip: Pip, environment: Environment) -> Proof | None:
    """Return the proof of the wheel that was kept for this recipe; None if there is none that
    runs."""
    kept = find_kept(key)
    if kept is None:
        return None
    say(f"==> trying the wheel built here before: {kept}")
    proof = try_wheel(kept, pip=pip, environment=environment)
    if proof.ok:
        return proof
    kept.unlink()
    return None


def _try_build(
    recipe: Recipe, key: str, architectures: Sequence[str], *, pip: Pip, environment: Environment
) -> Proof | None:
    """Return the proof of a new build; None if it was refused by the compiler or does not run."""
    # Compilers that are being stopped may still write while the folder goes.
    with tempfile.TemporaryDirectory(
        prefix="paddler-trio-llama-", ignore_cleanup_errors=True
    ) as scratch:
        wheel = build_wheel(
            recipe, Path(scratch), pip=pip, log=environment.log, architectures=architectures
        )
        if wheel is None:
            return None
        proof = try_wheel(wheel, pip=pip, environment=environment)
        if not proof.ok:
            return None
        keep_wheel(wheel, key)
        return proof


def run(request: SetupRequest) -> None:
    """Do as the package says; raise SetupError where that is not possible."""
    requested = os.environ.get("CMAKE_ARGS", "").strip() or None
    _check_request(request, requested)
    flags = read_cpu_flags()
    usual = usual_accelerator(platform.system(), platform.machine())
    if request.plan_only:
        for recipe in _planned(request, requested, flags):
            say(f"{recipe.name}: {shlex.join(recipe.cmake_args)}")
    elif request.portable:
        provide(
            _planned(request, requested, flags),
            environment=Environment.here(),
            requested=None,
            accelerator=request.accelerator or usual,
            flags=PORTABLE_FLAGS,
            architectures=(),
            command=request.command,
        )
    else:
        _set_up_here(request, requested, flags)


def _check_request(request: SetupRequest, requested: str | None) -> None:
    """Raise SetupError if CMAKE_ARGS and the command ask for different things."""
    if requested is not None and request.accelerator is not None:
        raise SetupError(
            f"CMAKE_ARGS={shlex.quote(requested)} says exactly what to build, and so does "
            f"--{request.accelerator}: unset one of them"
        )
    if requested is not None and request.portable:
        raise SetupError(
            f"CMAKE_ARGS={shlex.quote(requested)} says exactly what to build: unset it"
        )


def _planned(
    request: SetupRequest, requested: str | None, flags: frozenset[str]
) -> Sequence[Recipe]:
    machine, system = platform.machine(), platform.system()
    asked = request.accelerator or usual_accelerator(system, machine)
    if request.portable:
        return portable_recipes(machine, asked, system=system)
    return choose_recipes(
        flags, machine=machine, requested=requested, accelerator=asked, system=system
    )


def _set_up_here(request: SetupRequest, requested: str | None, flags: frozenset[str]) -> None:
    """Keep the installed build if it is proven and as good as ours; else build one."""
    environment = Environment.here()
    marker = read_marker(environment.marker)
    machine, system = platform.machine(), platform.system()
    usual = usual_accelerator(system, machine) if marker is None else marker.accelerator
    accelerator = request.accelerator or usual
    architectures = cuda_architectures() if accelerator == "cuda" else ()
    recipes = choose_recipes(
        flags, machine=machine, requested=requested, accelerator=accelerator, system=system
    )
    cpu = digest(flags.union(architectures))
    if not _keeps_installed(
        request, marker, environment, requested=requested, recipes=recipes, flags=flags, cpu=cpu
    ):
        provide(
            recipes,
            environment=environment,
            requested=requested,
            accelerator=accelerator,
            flags=flags,
            architectures=architectures,
            command=request.command,
        )


def _keeps_installed(
    request: SetupRequest,
    marker: Marker | None,
    environment: Environment,
    *,
    requested: str | None,
    recipes: Sequence[Recipe],
    flags: frozenset[str],
    cpu: str,
) -> bool:
    """Return whether the installed build stays; if it had to be proven anew, that is remembered."""
    libraries = environment.fingerprint_libraries()
    if marker is not None and is_proven(
        marker,
        requested=requested,
        accelerator=request.accelerator,
        cpu=cpu,
        libraries=libraries,
        recipes=recipes,
    ):
        is_poor = marker.is_anybodys and features_unused(marker.system_info, flags)
        if not is_poor:
            if not request.quiet_if_proven:
                say(f"==> llama.cpp ({marker.recipe}) is proven here: {marker.system_info}")
            return True
    if requested is not None or request.accelerator is not None:
        return False
    if is_outdated(marker, libraries=libraries, recipes=recipes):
        say("==> the installed build is of an older recipe: building it anew")
        return False
    if libraries is None:
        return False
    proof = prove_in_child(BUNDLED_MODEL)
    is_known = marker is not None and marker.libraries == libraries
    if marker is not None and is_known and not marker.is_anybodys and proof.ok:
        environment.prepare()  # only the CPU is another, or the GPU
        remember(
            Recipe(marker.recipe, marker.cmake_args),
            proof,
            environment=environment,
            requested=marker.requested,
            accelerator=marker.accelerator,
            cpu=cpu,
        )
        return True
    against = reason_against(proof, flags)
    if against is not None:
        say(f"==> the installed build is not kept: {against}")
        return False
    environment.prepare()
    remember(FOUND, proof, environment=environment, requested=None, accelerator="cpu", cpu=cpu)
    return True


def main(request: SetupRequest) -> int:
    """Exit status 0: proven. 1: not possible, and the reason on standard error."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # under nohup it stays ignored
            signal.signal(ending, signal.default_int_handler)
    try:
        run(request)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"\nsetup: stopped; `{request.command}` starts this step again\n")
        return 130
    return 0
