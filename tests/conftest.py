"""For every test: Hypothesis without deadlines, and signals as on a terminal."""

from __future__ import annotations

import signal
import sys

from hypothesis import settings

settings.register_profile("here", deadline=None, print_blob=True)  # a shared machine keeps none
settings.load_profile("here")

# A runner in the background is started with Ctrl-C ignored, and what we start would inherit that:
# no test could interrupt anything.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Who ends the runner politely wants everything to end that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """llama-cpp-python opens two files and leaves closing them to an interpreter that complains."""
    utils = sys.modules.get("llama_cpp._utils")
    if utils is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
