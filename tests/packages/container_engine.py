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
UID: Final = 12_345
ROOTLESS: Final = "/mnt"
"""The place of everything of the user without privileges, who may not enter folders of tests."""
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


@attrs.frozen
class ContainerEngine:
    """See the module docstring.

    Args:
      holder: the process that the mount namespace belongs to.
      has_own_network: it has a network namespace as well, in which ports are nobody else's.
      user: what makes a command one of a user without privileges.
    """

    folder: Path
    holder: int
    has_own_network: bool = False
    user: tuple[str, ...] = ()

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
        options = ["--storage-driver=overlay", f"--root={self.folder}/images"]
        options += [f"--runroot={self.folder}/run"]
        if program == "podman":
            options += ["--cgroup-manager=cgroupfs", f"--network-config-dir={self.folder}/networks"]
        return self.inside(program, *options, *words)

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command there."""
        network = ["--net"] if self.has_own_network else []
        return [
            *("nsenter", f"--target={self.holder}", "--mount", *network, "--"),
            *self.user,
            *("env", "BUILDAH_ISOLATION=chroot", f"TMPDIR={self.folder}"),
            *command,
        ]

    @contextmanager
    def rootless(self) -> Iterator[ContainerEngine]:
        """Have an engine of a user without privileges, who has IDs for containers; skip the test
        where the kernel or the machine forbids it."""
        for tool in ("newuidmap", "newgidmap", "setpriv"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")
        folder = self.folder / "rootless"
        for each in ("home", "run"):
            (folder / each).mkdir(parents=True)
            os.chown(folder / each, UID, UID)
        os.chown(folder, UID, UID)
        (folder / "ids").write_text(f"someone:{UID * 100}:65536\n")
        entry = f"someone:x:{UID}:{UID}::{ROOTLESS}/home:/bin/sh\n"
        (folder / "passwd").write_text(Path("/etc/passwd").read_text() + entry)
        files = {"ids": ("/etc/subuid", "/etc/subgid"), "passwd": ("/etc/passwd",)}
        binds = [(f"{ROOTLESS}/{name}", at) for name, places in files.items() for at in places]
        mounts = [f"mount --bind {what} {at}" for what, at in [(str(folder), ROOTLESS), *binds]]
        program = " && ".join([*mounts, "echo mounted", "exec cat"])
        variables = (f"HOME={ROOTLESS}/home", f"XDG_RUNTIME_DIR={ROOTLESS}/run", "USER=someone")
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i")
        with subprocess.Popen(
            self.inside("unshare", "--mount", "--propagation=private", "sh", "-c", program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                if not holder.stdout.readline():
                    pytest.skip("no files of a user can be mounted here")
                engine = ContainerEngine(Path(ROOTLESS), holder.pid, user=(*user, *variables, path))
                told = engine.try_podman("unshare", "true")
                if told.returncode:
                    pytest.skip(f"no rootless containers here: {told.stderr[-300:]}")
                try:
                    yield engine
                finally:
                    engine.podman("system", "migrate")  # ends what holds the user's namespaces
            finally:
                holder.stdin.close()

    @contextmanager
    def with_own_network(self) -> Iterator[ContainerEngine]:
        """Have the same engine where a network begins with nothing but a loopback."""
        program = "ip link set lo up && echo up && exec cat"
        with subprocess.Popen(
            self.inside("unshare", "--net", "sh", "-c", program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                assert holder.stdout.readline() == "up\n"
                yield ContainerEngine(self.folder, holder.pid, has_own_network=True)
            finally:
                holder.stdin.close()

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
