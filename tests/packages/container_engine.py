"""Containers of buildah and podman, with images and storage that are forgotten afterwards.

The base image is the minimal Debian that machines are booted from: no registry is asked. Containers
share this machine's network where a test wants that, and have only a loopback otherwise. They are
started in a mount namespace with control groups of version 2 alone, since crun refuses a mixture,
and without limits of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
from booted_machine import base_files
from source_tree import copy_tree

IMAGE: Final = "localhost/paddler-trio:latest"
BASE: Final = "localhost/python"
BUILD_S: Final = 1200.0
AS_IMAGE: Final = (
    *("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
    *("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"),
)
"""Of every container; the limits are what this machine may give where it is a container itself."""
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


@attrs.frozen
class ContainerEngine:
    """See the module docstring.

    Args:
      holder: the process that the mount namespace belongs to.
    """

    folder: Path
    holder: int

    def podman(self, *words: str, timeout_s: float = 120.0) -> str:
        """Return the output of a command, which has to succeed."""
        ended = self.try_podman(*words, timeout_s=timeout_s)
        assert ended.returncode == 0, f"podman {words}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def try_podman(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command of podman."""
        return self._ended("podman", *words, timeout_s=timeout_s)

    def buildah(self, *words: str, timeout_s: float = 120.0) -> str:
        """Return the output of a command, which has to succeed."""
        ended = self._ended("buildah", *words, timeout_s=timeout_s)
        assert ended.returncode == 0, f"buildah {words}\n{ended.stdout[-3000:]}{ended.stderr}"
        return ended.stdout

    def wait_for(self, container: str, *words: str, within_s: float = 90.0) -> str:
        """Run a command in a container until it succeeds, and return its output."""
        until_s = time.monotonic() + within_s
        while (ended := self.try_podman("exec", container, *words)).returncode:
            log = self.try_podman("logs", container)
            assert time.monotonic() < until_s, f"{ended.stderr}\n{log.stdout}{log.stderr}"
            time.sleep(0.2)
        return ended.stdout

    def remove_containers(self) -> None:
        """Remove all of them, first those that use the network of others, and their volumes."""
        self.podman("rm", "--force", "--ignore", "--time=0", "agent")
        self.podman("rm", "--all", "--force", "--time=0")
        self.podman("volume", "prune", "--force")

    def command(self, program: str, *words: str) -> list[str]:
        """Return a command line of buildah or podman."""
        storage = ["--storage-driver=overlay", f"--root={self.folder}/images"]
        manager = ["--cgroup-manager=cgroupfs"] if program == "podman" else []
        return [
            *("nsenter", f"--target={self.holder}", "--mount", "--"),
            *("env", "BUILDAH_ISOLATION=chroot", f"TMPDIR={self.folder}"),
            *(program, *storage, f"--runroot={self.folder}/run", *manager, *words),
        ]

    def _ended(
        self, program: str, *words: str, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(program, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@contextmanager
def open_container_engine(folder: Path) -> Iterator[ContainerEngine]:
    """Have podman and buildah below ``folder``; skip the test where they cannot work."""
    if os.geteuid() != 0:
        pytest.skip("only root has a mount namespace for control groups of version 2")
    for tool in ("buildah", "podman", "crun", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = "mount -t cgroup2 none /sys/fs/cgroup && echo mounted && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if not holder.stdout.readline():
                pytest.skip("no control groups of version 2 can be mounted here")
            yield ContainerEngine(folder, holder.pid)
        finally:
            holder.stdin.close()  # and with its namespace all that was mounted there goes
    shutil.rmtree(folder, ignore_errors=True)


def build_image(engine: ContainerEngine, context: Path) -> None:
    """Build the image of the Dockerfile, with what llama.cpp was built into here before."""
    container = engine.buildah("from", "scratch").strip()
    engine.buildah("add", container, str(base_files()), "/", timeout_s=300)
    engine.buildah("run", container, "--", "ln", "-sf", "python3", "/usr/bin/python")
    given = ["--env=DEBIAN_FRONTEND=noninteractive"]
    if CERTIFICATES.exists():  # what this machine trusts: its way out may be a proxy of its own
        engine.buildah("add", container, str(CERTIFICATES), str(CERTIFICATES))
        given += [f"--env={name}={CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
    engine.buildah("config", *given, container)
    engine.buildah("commit", "--rm", container, BASE, timeout_s=300)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddler-trio"
    wheels = engine.folder / "wheels"
    if (cache / "wheels").is_dir():
        shutil.copytree(cache / "wheels", wheels)
    wheels.mkdir(exist_ok=True)
    engine.buildah(
        *("build", "--format=docker", "--network=host"),
        f"--volume={wheels}:/root/.cache/paddler-trio/wheels",
        # --portable would be compiled anew; --cpu is what `make setup` has left here
        *("--build-arg=SETUP=--cpu", f"--build-arg=PYTHON_IMAGE={BASE}"),
        f"--tag={IMAGE}",
        str(copy_tree(context)),
        timeout_s=BUILD_S,
    )
