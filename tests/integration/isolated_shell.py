"""A shell in a network of its own, in which the documented ports are free and no other is reached.

``192.0.2.0/24``, the addresses that documentation uses, are this machine's there. Processes end
with the shell, since it is the first one of its process namespace.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
IFF_UP = 0x1

_NAMESPACES = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def unshare() -> list[str] | None:
    """The words before a command that give it its namespaces; None where that is not permitted."""
    program = shutil.which("unshare")
    if program is None:
        return None
    for words in ([program, *_NAMESPACES], [program, "--map-root-user", *_NAMESPACES]):
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    return None


def run(words: list[str], script: Path, environment: dict[str, str], log: Path) -> int:
    """Run a script of bash to its end, what it writes into ``log``; its exit status."""
    with log.open("wb") as output:
        return subprocess.run(
            [*words, sys.executable, __file__, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        ).returncode


def bring_up_loopback() -> None:
    """Inside: ``lo`` is up, and all of 192.0.2.0/24 is this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, address, mask in (
            (b"lo", "127.0.0.1", "255.0.0.0"),
            (b"lo:1", "192.0.2.1", "255.255.255.0"),
        ):
            for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, mask)):
                where = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, struct.pack("16s16s", name, where))
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack("16xH14x", answer)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


if __name__ == "__main__":
    bring_up_loopback()
    os.execvp("bash", ["bash", sys.argv[1]])
