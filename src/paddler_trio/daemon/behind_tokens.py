"""The priority of processes that move bytes: model files, beside tokens that somebody waits for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger("priority")

AUTOGROUP: Final = Path("/proc/self/autogroup")
"""Of a session; see autogroup in sched(7)."""
SESSION_NICENESS: Final = 5
"""A third of the share of another session: running streams do not notice it, and who leads it
still answers where all processors are busy."""


def go_behind_tokens() -> None:
    """Tokens go before bytes: this process, and every thread that it will have, runs when nobody
    else on the machine wants the processor.

    That counts among the processes of a session; where Linux schedules sessions as groups, the one
    that this process leads is a light one.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:  # a sandbox
        log.warning("this process runs at normal priority", reason=error.strerror)
    if os.getsid(0) != os.getpid():
        return
    try:
        AUTOGROUP.write_text(str(SESSION_NICENESS))
    except FileNotFoundError:  # a kernel without groups of sessions
        return
    except OSError as error:  # a sandbox
        log.warning("this session has a share like any other", reason=error.strerror)
