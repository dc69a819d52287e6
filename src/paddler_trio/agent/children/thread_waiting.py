"""Variables that say how threads of an engine wait for each other."""

from __future__ import annotations

import os

from paddler_trio.wire.engine.engine_pipe import LoadModel

THREAD_WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
"""The way in which threads that compute wait for each other, unless the operator's environment sets
it: a little spinning, then sleep. See docs/decisions/0008-prefill-budget.md for what was
measured."""
PATIENT_WAITING = THREAD_WAITING | {"GOMP_SPINCOUNT": "100000"}
"""The way of an engine that computes on the CPU alone and gives way to busy programs: it spins for
some milliseconds, in which an event loop has had its turn on the core of another thread."""


def thread_waiting(load: LoadModel) -> dict[str, str]:
    """Return the variables for the process of an engine; none where the operator set them."""
    if os.environ.keys() & THREAD_WAITING.keys():
        return {}
    return THREAD_WAITING if load.n_gpu_layers else PATIENT_WAITING
