"""One worker: jobs for one agent, one after the other, each within its limits."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import attrs

from paddler_trio.language.model_language import Language
from paddler_trio.processes.preparation.job_limits import (
    RETIRED_ABOVE_BYTES,
    TooExpensiveError,
    cpu_limited,
    limit_memory,
)
from paddler_trio.processes.preparation.jobs import prepare
from paddler_trio.processes.preparation.preparation_messages import (
    GREETING,
    Job,
    JobDone,
    Prepared,
    frame_of,
    receive_frame,
    refused,
)
from paddler_trio.system.kernel.process_descriptors import own_process_descriptor
from paddler_trio.system.machine import resident_bytes


@attrs.define(eq=False)
class Worker:
    """See the module docstring; ``run`` returns when the agent closes the connection."""

    connection: socket.socket
    language: Language
    shared: Sequence[object]

    def run(self) -> None:
        """Send the process's descriptor, then do jobs until there are no more."""
        limit_memory()
        with suppress(ConnectionError):  # the client that it was forked for may have left by now
            self._do_jobs()

    def _do_jobs(self) -> None:
        own = own_process_descriptor()
        socket.send_fds(self.connection, [GREETING.pack(os.getpid())], [own])
        os.close(own)
        at_start_bytes = resident_bytes()
        is_last = False
        while not is_last and (body := receive_frame(self.connection)) is not None:
            job: Job = pickle.loads(body)  # noqa: S301  # from the agent
            prepared = self._do(job)
            is_last = resident_bytes() > at_start_bytes + RETIRED_ABOVE_BYTES
            self.connection.sendall(frame_of(JobDone(prepared, is_last), self.shared))

    def _do(self, job: Job) -> Prepared:
        try:
            with cpu_limited(len(job.frame.text)):
                return prepare(job, self.language)
        except TooExpensiveError as error:
            return refused(job, 400, str(error))
        except MemoryError:
            reason = "this request takes more memory to prepare than one may; send a smaller one"
            return refused(job, 400, reason)
        except RecursionError:
            return refused(job, 400, "this request is nested too deeply")
        except Exception as error:  # noqa: BLE001  # the boundary of a job
            sys.stderr.write(f"4\t{traceback.format_exc()}")
            return refused(job, 500, f"preparing this request failed: {type(error).__name__}")
