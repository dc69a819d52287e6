"""The entry of the fork server, which only an agent starts. See ``fork_server.py``.

``python -m paddler_trio.processes.preparation FD [--give-way]``
"""

from __future__ import annotations

import sys

from paddler_trio.system.thread_priority import GIVE_WAY, imported


def main(arguments: list[str]) -> None:
    """Run :func:`paddler_trio.processes.preparation.fork_server.run_fork_server`."""
    gives_way = GIVE_WAY in arguments
    control_fd = next(int(each) for each in arguments if each != GIVE_WAY)
    fork_server = imported("paddler_trio.processes.preparation.fork_server", gives_way=gives_way)
    fork_server.run_fork_server(control_fd, gives_way=gives_way)


if __name__ == "__main__":
    main(sys.argv[1:])
