"""The priority of processes that move bytes: model files, beside tokens that somebody waits for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import structlog

from paddler_trio.system.thread_priority import LOWEST

log = structlog.get_logger("priority")

SESSION_NICENESS: Final = 5
"""The niceness of its group; see autogroup in sched(7). It has a third of the share of another
session: running streams do not notice it, and who leads it still answers where all processors are
busy."""


def go_behind_tokens(pid: int | None = None) -> None:
    """Let tokens go before bytes: this process, or a child with ``pid`` that has just begun, runs
    when nobody else on the machine wants the processor; so does every thread that it will have.
    Elsewhere than on Linux it has the lowest of the ordinary priorities.

    That counts among the processes of a session; where Linux schedules sessions as groups, the one
    that the process leads is made a light one.
    """
    pid = os.getpid() if pid is None else pid
    try:
        if sys.platform == "linux":
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, LOWEST)
    except OSError as error:  # a sandbox
        log.warning("a process runs at normal priority", pid=pid, reason=error.strerror)
    try:
        if os.getsid(pid) == pid:
            Path(f"/proc/{pid}/autogroup").write_text(str(SESSION_NICENESS))
    except (FileNotFoundError, ProcessLookupError):
        return  # a kernel without groups of sessions; or the child has ended
    except OSError as error:  # a sandbox
        log.warning("a session has a share like any other", pid=pid, reason=error.strerror)
