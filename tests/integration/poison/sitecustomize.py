"""On the path of a fleet's processes, this makes some requests deadly: ``deadly.py`` says which."""

from __future__ import annotations

import sys

if "paddler_trio.engine" in sys.orig_argv:
    import deadly

    deadly.make_engine_vulnerable()
elif "agent" in sys.orig_argv:
    import deadly

    deadly.make_agent_vulnerable()
