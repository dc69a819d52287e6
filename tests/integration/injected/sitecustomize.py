"""On the path of a fleet's processes, this makes some requests deadly (``deadly.py`` says which),
and has a balancer tell what garbage it has, if ``GARBAGE_PROBE_FILE`` says where."""

from __future__ import annotations

import os
import sys

if "paddler_trio.engine" in sys.orig_argv:
    import deadly

    deadly.make_engine_vulnerable()
elif "agent" in sys.orig_argv:
    import deadly

    deadly.make_agent_vulnerable()
elif "balancer" in sys.orig_argv and "GARBAGE_PROBE_FILE" in os.environ:
    import garbage_probe

    garbage_probe.install()
