"""A machine with systemd as PID 1, in namespaces of this one; forgotten afterwards.

Its files are those of a minimal Debian, made once by debootstrap and kept, under an overlay whose
upper layer is in memory. It has a loopback interface and nothing else. The root is entered by
pivot_root: in a chroot the root is no mount point, and systemd ends every sandboxed unit with
226/NAMESPACE. There is no memory controller, so ``MemoryMax=`` does nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest

RELEASE: Final = "bookworm"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "curl", "iproute2"),
    *("libgomp1", "ca-certificates", "procps"),
)
BOOT_S: Final = 60.0
INIT: Final = """
set -e
layers=$1 base=$2 given=$3
mount --make-rprivate /
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$layers/root"
root=$layers/root
mount -t overlay overlay -o "lowerdir=$base,upperdir=$layers/upper,workdir=$layers/work" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /sys "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/given" "$root/old"
for device in null zero random urandom tty full; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666,mode=0620
ln -s pts/ptmx "$root/dev/ptmx"
touch "$root/dev/console"
mount --bind "$given" "$root/given"
ip link set lo up
cd "$root"
pivot_root . old
umount --lazy /old
rmdir /old
mount --make-rshared /
exec env --ignore-environment container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --log-target=console
"""


@attrs.frozen
class BootedMachine:
    """Attributes: ``pid`` is systemd's, as seen from outside."""

    pid: int

    def try_to(self, *command: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command there, as root."""
        return subprocess.run(
            self.inside(*command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *command: str, timeout_s: float = 120.0) -> str:
        """Return the output of a command, which has to succeed."""
        ended = self.try_to(*command, timeout_s=timeout_s)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command whose standard output is read by the caller."""
        return subprocess.Popen(
            self.inside(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command there."""
        spaces = ["--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd"]
        environment = ["LC_ALL=C.UTF-8", "SYSTEMD_PAGER=cat", "DEBIAN_FRONTEND=noninteractive"]
        path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
        return [
            *("nsenter", f"--target={self.pid}", *spaces, "--"),
            *("env", "--ignore-environment", path, "HOME=/root", "TERM=dumb", *environment),
            *command,
        ]

    def show(self, unit: str, name: str) -> str:
        """Return one property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def wait_for(self, unit: str, name: str, value: str, *, within_s: float = 60.0) -> str:
        """Wait until a property of a unit has ``value`` in it, and return the property."""
        until_s = time.monotonic() + within_s
        while value not in (now := self.show(unit, name)):
            assert time.monotonic() < until_s, (
                f"{unit}: {name} is {now!r}, and not {value!r}\n{self.journal(unit)}"
            )
            time.sleep(0.1)
        return now

    def journal(self, unit: str, *options: str) -> str:
        """Return the messages of a unit."""
        return self.run("journalctl", "--unit", unit, "--output=cat", "--no-pager", *options)


def base_files() -> Path:
    """Return the files of a minimal Debian, made at the first call on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddler-trio"
    base = cache / f"systemd-{RELEASE}"
    if base.is_dir():
        return base
    for tool in ("debootstrap", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    making = base.with_name(f"{base.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    include = f"--include={','.join(PACKAGES)}"
    ended = subprocess.run(
        ["debootstrap", "--variant=minbase", include, RELEASE, str(making)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        shutil.rmtree(making, ignore_errors=True)
        pytest.skip(f"debootstrap made no Debian: {ended.stdout[-300:]}")
    making.rename(base)
    return base


@contextmanager
def open_booted_machine(folder: Path, given: Path) -> Iterator[BootedMachine]:
    """Boot a machine where ``given`` is /given. Skip the test where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("only root makes namespaces")
    base = base_files()
    spaces = ["--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--kill-child"]
    words = folder / "boot.log"
    with (
        words.open("wb") as log,
        subprocess.Popen(
            ["unshare", *spaces, "bash", "-c", INIT, "bash", str(folder), str(base), str(given)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as unshare,
    ):
        try:
            yield _booted(unshare, words)
        finally:
            unshare.send_signal(signal.SIGKILL)  # --kill-child: and systemd with all its children


def _booted(unshare: subprocess.Popen[bytes], words: Path) -> BootedMachine:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    until_s = time.monotonic() + BOOT_S
    while time.monotonic() < until_s:
        if unshare.poll() is not None:
            pytest.skip(f"no machine can be booted here: {words.read_text()[-300:]}")
        if pids := children.read_text().split():
            machine = BootedMachine(int(pids[0]))
            comm = Path(f"/proc/{pids[0]}/comm")
            if comm.read_text() == "systemd\n":
                state = machine.try_to("systemctl", "is-system-running").stdout.strip()
                if state in {"running", "degraded"}:
                    return machine
        time.sleep(0.1)
    raise AssertionError(f"systemd did not come up\n{words.read_text()[-2000:]}")
