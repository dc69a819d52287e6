"""Run a program with a bound on its address space, and until its parent ends at the latest.

    python benchmarks/attack_bounded.py BYTES PROGRAM [ARGUMENT ...]

It becomes the program, under the same process id.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    limit_bytes, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (int(limit_bytes), int(limit_bytes)))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
