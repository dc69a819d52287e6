"""A copy of this machine that packages may be installed on, and that is forgotten afterwards.

The whole file system is the lower layer of an overlay in a mount namespace; whatever is written
goes to memory. What a package leaves behind is what is left in the upper layer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

LAYERS = """
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
mount --rbind /dev root/dev
mount --bind /proc root/proc
mkdir root/given
mount --bind "$2" root/given
echo ready
exec cat
"""
NOBODY = "65534:65534"


@attrs.frozen
class SpareMachine:
    """Attributes: ``pid`` keeps the namespace; ``folder`` has the layers, inside it."""

    pid: int
    folder: Path

    def try_to(self, *command: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command there; ``user`` is numbers, uid:gid."""
        spec = [] if user is None else [f"--userspec={user}"]
        return self._enter("chroot", *spec, str(self.folder / "root"), *command)

    def run(self, *command: str, user: str | None = None) -> str:
        """Its output; it has to succeed."""
        ended = self.try_to(*command, user=user)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def written(self, name: str) -> list[str]:
        """Paths of what was written and is there now whose last part matches ``name``."""
        upper = str(self.folder / "upper")
        # a character device in an upper layer is the absence of a file
        found = self._enter("find", upper, "-name", name, "-not", "-type", "c")
        return [line.removeprefix(upper) for line in found.stdout.splitlines()]

    def _enter(self, *command: str) -> subprocess.CompletedProcess[str]:
        plain = {"PYTHONPATH", "VIRTUAL_ENV", "CMAKE_ARGS", "PYTHONDONTWRITEBYTECODE"}
        environment = {name: value for name, value in os.environ.items() if name not in plain}
        environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment |= {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            ["nsenter", f"--target={self.pid}", "--mount", "--", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def open_spare_machine(folder: Path, given: Path) -> Iterator[SpareMachine]:
    """``given`` is /given there. Skips where that cannot be made."""
    for tool in ("unshare", "nsenter", "dpkg-deb", "apt-get"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("only root makes mount namespaces")
    with subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", LAYERS, "bash", str(folder), str(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        if keeper.stdout.readline() != "ready\n":
            reason = keeper.stderr.read().strip()
            keeper.wait()
            pytest.skip(f"no overlay can be mounted here: {reason}")
        yield SpareMachine(keeper.pid, folder)
        keeper.stdin.close()  # and the layers go with the last process in them
