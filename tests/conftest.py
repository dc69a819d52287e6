"""For every test: Hypothesis without deadlines, and signals as on a terminal."""

from __future__ import annotations

import gc
import signal
import ssl
import sys
from collections.abc import Iterator
from functools import cache

import certifi
import pytest
from hypothesis import settings

settings.register_profile("full", deadline=None, print_blob=True)  # a busy machine keeps none
settings.register_profile("usual", settings.get_profile("full"), max_examples=30)
settings.register_profile("quick", settings.get_profile("full"), max_examples=5)
settings.load_profile("usual")  # unless --hypothesis-profile names another

# A runner in the background is started with Ctrl-C ignored, and what we start would inherit that:
# no test could interrupt anything.
signal.signal(signal.SIGINT, signal.default_int_handler)
# One that nohup(1) started would hand on that hangups are ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Who ends the runner politely wants everything to end that it started.
signal.signal(signal.SIGTERM, signal.default_int_handler)

create_context = ssl.create_default_context


@cache
def context_of_certifi() -> ssl.SSLContext:
    return create_context(cafile=certifi.where())


def create_context_once(*args: object, **given: object) -> ssl.SSLContext:
    """Each client of httpx, OpenAI's and Anthropic's among them, reads the same certificates, which
    takes 30 ms of processor time: once a run will do."""
    if args or given != {"cafile": certifi.where()}:
        return create_context(*args, **given)
    return context_of_certifi()


ssl.create_default_context = create_context_once


def pytest_unconfigure() -> None:
    """llama-cpp-python opens two files and leaves closing them to an interpreter that complains."""
    utils = sys.modules.get("llama_cpp._utils")
    if utils is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()


gc.disable()  # while some hundred modules are imported, whose objects all stay


def pytest_collection_finish() -> None:
    """No collection in a test walks what collecting the tests has left: it is for good."""
    gc.freeze()
    gc.enable()


WAITING = frozenset({"browser", "conformance", "integration", "packages", "real_models"})
"""Folders whose tests wait for processes most of their time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files of tests that wait with those that compute: side by side they take the time of
    the longer ones, one after the other that of both."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups: tuple[list[str], list[str]] = ([], [])
    for file in files:
        groups[file.split("/")[1] not in WAITING].append(file)

    def place(group: list[str]) -> Iterator[tuple[float, str]]:
        return (((number + 0.5) / len(group), file) for number, file in enumerate(group))

    mixed = sorted([*place(groups[0]), *place(groups[1])])
    items[:] = [item for _, file in mixed for item in files[file]]
