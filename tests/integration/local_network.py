"""Machines on a network of their own, in namespaces of this kernel: for what uses multicast.

A process holds each namespace and ends when its standard input does, whatever becomes of the test.
Nothing that is sent in here gets out: the bridge has no other end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs
import pytest

MAY_S = 60.0


@attrs.frozen
class NetworkMachine:
    """A namespace with a loopback and one interface."""

    name: str
    address: str
    holder: int

    def command(self, *words: str) -> list[str]:
        """The words of a command that runs there."""
        enter = ("nsenter", f"--target={self.holder}", "--user", "--net", "--uts")
        return [*enter, "--preserve-credentials", *words]

    def paddler_trio(self, *arguments: str) -> list[str]:
        """The same for ``paddler-trio``."""
        return self.command(sys.executable, "-P", "-m", "paddler_trio", *arguments)

    def run(
        self, *arguments: str, stdin: str = "", code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """What a short command of ours printed there."""
        ran = subprocess.run(
            self.paddler_trio(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=MAY_S,
            env=clean_environment(),
            check=False,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran


def clean_environment() -> dict[str, str]:
    """This process' environment without its proxies."""
    return {key: each for key, each in os.environ.items() if "proxy" not in key.lower()}


@contextmanager
def local_network(*names: str) -> Iterator[Sequence[NetworkMachine]]:
    """Machines with these names on one bridge; skips the test where the kernel forbids it."""
    with ExitStack() as ends:
        switch = ends.enter_context(_held(["unshare", "--user", "--map-root-user", "--net"]))
        there = ["nsenter", f"--target={switch}", "--user", "--net", "--preserve-credentials"]
        _configure(
            there, "ip link add bridge0 type bridge mcast_snooping 0 && ip link set bridge0 up"
        )
        machines = []
        for number, name in enumerate(names, 1):
            holder = ends.enter_context(_held([*there, "unshare", "--net", "--uts"]))
            machine = NetworkMachine(name, f"10.7.0.{number}", holder)
            _configure(
                there,
                f"ip link add port{number} type veth peer name eth0 netns {holder} && "
                f"ip link set port{number} master bridge0 up",
            )
            _configure(
                machine.command(),
                f"hostname {name} && ip link set lo up && ip link set eth0 up && "
                f"ip address add {machine.address}/24 dev eth0",
            )
            machines.append(machine)
        yield machines


@contextmanager
def _held(unshare: Sequence[str]) -> Iterator[int]:
    """A process in a new namespace, by its id."""
    try:
        process = subprocess.Popen(
            [*unshare, "sh", "-c", "echo up; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError as error:
        pytest.skip(f"no local network can be made here: {error}")
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != b"up\n":
            pytest.skip(f"no local network can be made here: {process.stderr.read().decode()}")
        try:
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(MAY_S)


def _configure(there: Sequence[str], script: str) -> None:
    ran = subprocess.run(
        [*there, "sh", "-c", script], capture_output=True, text=True, timeout=MAY_S, check=False
    )
    if ran.returncode:
        pytest.skip(f"no local network can be made here: {ran.stderr}")
