"""A worker by itself; real ones with their limits are in ``tests/integration``."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from paddler_trio.language.model_language import Language
from paddler_trio.processes.preparation import worker
from paddler_trio.processes.preparation.worker import Worker


def test_a_client_that_left_before_its_worker_was_forked_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be a traceback in the log of the agent, of a client's making."""
    monkeypatch.setattr(worker, "limit_memory", lambda: None)  # of this process, for good
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        Worker(theirs, cast("Language", None), ()).run()
