"""For every test: Hypothesis without deadlines, and signals as on a terminal."""

from __future__ import annotations

import signal
import sys

from hypothesis import settings

settings.register_profile("full", deadline=None, print_blob=True)  # a busy machine keeps none
settings.register_profile("usual", settings.get_profile("full"), max_examples=50)
settings.register_profile("quick", settings.get_profile("full"), max_examples=10)
settings.load_profile("usual")  # unless --hypothesis-profile names another

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
