"""Entry of the store's process: ``-m paddler_trio.processes.model_store N``, a balancer's child.

The argument is the descriptor of the control socket. Standard error is the log, JSON lines.
"""

from __future__ import annotations

import socket
import sys

import trio

from paddler_trio.processes.model_store.store_process import run_store


def main() -> None:
    """Serve until the balancer is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    trio.run(run_store, control, strict_exception_groups=True)


if __name__ == "__main__":
    main()
