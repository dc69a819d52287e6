"""The entry of the engine process, which only an agent starts. See ``engine_main.py``.

``python -m paddler_trio.processes.engine [RECORD] [--give-way]``
"""

from __future__ import annotations

import os
import sys
import traceback

from paddler_trio.system.thread_priority import GIVE_WAY, imported


def main(arguments: list[str]) -> None:
    """Run :func:`paddler_trio.processes.engine.engine_main.run_engine`."""
    gives_way = GIVE_WAY in arguments
    records = [int(each) for each in arguments if each != GIVE_WAY]
    engine_main = imported("paddler_trio.processes.engine.engine_main", gives_way=gives_way)
    engine_main.run_engine(records[0] if records else None, gives_way=gives_way)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (BrokenPipeError, KeyboardInterrupt):  # the agent went away first
        os._exit(1)
    except Exception:  # noqa: BLE001  # Python cannot end while the other thread reads the pipe
        traceback.print_exc()
        os._exit(1)
