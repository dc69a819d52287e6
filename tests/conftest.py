"""For every test: Hypothesis without deadlines, and signals as on a terminal."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)  # a shared machine keeps none
settings.load_profile("here")

# A runner in the background is started with Ctrl-C ignored, and what we start would inherit that:
# no test could interrupt anything.
signal.signal(signal.SIGINT, signal.default_int_handler)
