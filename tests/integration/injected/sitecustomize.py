"""On the path of a fleet's processes, this makes some requests deadly (``deadly.py`` says which),
or has daemons tell what garbage they have, if ``GARBAGE_PROBE_FOLDER`` says where."""

from __future__ import annotations

import os
import sys

if "GARBAGE_PROBE_FOLDER" in os.environ:
    if {"agent", "balancer"} & {*sys.orig_argv}:
        import garbage_probe

        garbage_probe.install()
elif "paddler_trio.processes.engine" in sys.orig_argv:
    import deadly

    deadly.make_engine_vulnerable()
elif "agent" in sys.orig_argv:
    import deadly

    deadly.make_agent_vulnerable()
