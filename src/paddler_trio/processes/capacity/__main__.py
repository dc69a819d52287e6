"""Entry of the process: ``-m paddler_trio.processes.capacity SECONDS``.

Reads a question from standard input, and writes the answer, see ``capacity_question.py``. It gives
way to everything else on the machine.
"""

from __future__ import annotations

import os
import sys
import time

from paddler_trio.processes.capacity.capacity_question import answered


def main() -> None:
    """Answer one question."""
    if hasattr(os, "nice"):
        os.nice(19)
    limit_s = float(sys.argv[1])
    until_s = time.monotonic() + limit_s
    text = sys.stdin.buffer.read()
    status, said = answered(text, limit_s, lambda: time.monotonic() < until_s)
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
