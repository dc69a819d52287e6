"""The first step of ``make setup``: llama.cpp, before anything else is installed.

It is what ``paddler-trio setup`` does, from the source tree and with the bare standard library; see
``src/paddler_trio/llama_setup``. With ``--plan``, print what would be tried and change nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from paddler_trio.processes.llama_setup.set_up import SetupRequest, main

if __name__ == "__main__":
    sys.exit(
        main(SetupRequest("make setup", plan_only="--plan" in sys.argv[1:], quiet_if_proven=True))
    )
