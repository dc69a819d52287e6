"""The endings of requests that are not prepared."""

from __future__ import annotations

from paddler_trio.processes.preparation.preparation_messages import Answered, Job, Prepared, Refused
from paddler_trio.wire.trio.trio_link import Answer, render_extension


def refused(job: Job, code: int, problem: str) -> Prepared:
    """The ending of a request that cannot be prepared; ``code`` mirrors HTTP status numbers."""
    frame = job.frame
    if frame.kind == "question":
        return Answered(render_extension(Answer(frame.id, None, problem, code)))
    if frame.kind == "embedding":
        return Refused({"Error": problem})
    if frame.is_extended and code < 500:
        return Refused({"BadRequest": {"field": "prompt", "message": problem}})
    return Refused({"SamplerError": problem})
