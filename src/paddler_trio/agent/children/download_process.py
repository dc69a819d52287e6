"""Large files are fetched by a process of their own: tokens go before bytes.

Receiving, writing and hashing take two seconds of processor for a GB. In the agent's process that
would be at the engine's priority, and in the way of the links that carry its tokens. The child runs
behind all of them (see ``system/behind_tokens.py``), gets its job on standard input, and writes a
line of JSON for each step to standard output. It ends when standard input does.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from typing import Final

import structlog
import trio

from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.download.download_progress import ProgressMeter
from paddler_trio.models.download.model_download import TransferJob
from paddler_trio.models.download.transfer import Fetched
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    CacheBrokenError,
    CacheFullError,
    CacheNotWritableError,
    DownloadError,
    NotAModelError,
    RemoteFileChangedError,
    RequestRejectedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceMalformedError,
    SourceNotFoundError,
    StoreCannotError,
    Subject,
    TransferInterruptedError,
)
from paddler_trio.system.behind_tokens import go_behind_tokens

log = structlog.get_logger("download")

LENGTH_BYTES: Final = 4
"""The bytes of a job's length, in front of it."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_CAUSE_CHARS: Final = 4000
_ERRORS: Final[dict[str, type[DownloadError]]] = {
    each.__name__: each
    for each in (
        AccessDeniedError,
        CacheBrokenError,
        CacheFullError,
        CacheNotWritableError,
        NotAModelError,
        RemoteFileChangedError,
        RequestRejectedError,
        ServerFailedError,
        ServerUnreachableError,
        SourceMalformedError,
        SourceNotFoundError,
        StoreCannotError,
        TransferInterruptedError,
    )
}
"""The errors of a transfer."""
_COMMAND: Final = (sys.executable, "-P", "-m", "paddler_trio.agent.children.download_child")
_RECEIVE_BYTES: Final = 16 * 1024


async def fetch_apart(job: TransferJob, meter: ProgressMeter) -> Fetched:
    """Let a child process do ``job``; DownloadError. A ``CarryOut``.

    Cancellation: the child is killed. What is on its way is lost, at most 4 MiB of each request.
    """
    subject = job.remote.subject
    try:
        process = await trio.lowlevel.open_process(
            list(_COMMAND),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # which is made a light one
        )
    except OSError as error:  # no further process, or no descriptors
        reason = error.strerror or str(error)
        raise TransferInterruptedError(
            subject, f"the process that downloads cannot be started: {reason}"
        ) from error
    go_behind_tokens(process.pid)  # its start takes half a second of processor, too
    log.debug("downloading", pid=process.pid, file=subject.model_path)
    try:
        return await _result(process, job, meter)
    except (trio.BrokenResourceError, _NoResultError):
        process.kill()
        status = await process.wait()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):  # it was killed: it is gone in a moment
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await trio.aclose_forcefully(stream)
    how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    raise TransferInterruptedError(subject, f"the process that downloads ended ({how})")


class _NoResultError(Exception):
    """The child ended without one, or wrote what is none."""


async def _result(process: trio.Process, job: TransferJob, meter: ProgressMeter) -> Fetched:
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send_all(encoded(job))
    received_bytes, rest = 0, b""
    while piece := await process.stdout.receive_some(_RECEIVE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            match fields := _fields(line):
                case {"here": int(here), "total": int() | None as total, "received": int(received)}:
                    meter.set(here, total)
                    meter.received_bytes += received - received_bytes
                    received_bytes = received
                case {"size": int(size), "kind": str(kind), "hash": str(text), "etag": str(etag)}:
                    return Fetched(size, ContentHash(kind, text), etag)
                case {"error": str(name), "cause": str()} if name in _ERRORS:
                    raise error_of(fields, job.remote.subject)
                case _:
                    raise _NoResultError
        if len(rest) > MAX_LINE_BYTES:
            raise _NoResultError
    raise _NoResultError


def _fields(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise _NoResultError from error
    return fields if isinstance(fields, dict) else {}


def encoded(job: TransferJob) -> bytes:
    """Return a job as the child reads it."""
    data = pickle.dumps(job)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def fields_of(error: DownloadError) -> dict[str, object]:
    """Return the fields of which ``error_of`` makes the same error."""
    retry_after_s = error.retry_after_s if isinstance(error, ServerFailedError) else None
    return {
        "error": type(error).__name__,
        "cause": error.cause[:MAX_CAUSE_CHARS],
        "is_from_store": error.is_from_store,
        "retry_after_s": retry_after_s,
    }


def error_of(fields: dict[str, object], subject: Subject) -> DownloadError:
    """Return the error that the child met."""
    error = _ERRORS[str(fields["error"])](subject, str(fields["cause"]))
    error.is_from_store = fields["is_from_store"] is True
    retry_after_s = fields["retry_after_s"]
    if isinstance(error, ServerFailedError) and isinstance(retry_after_s, int | float):
        error.retry_after_s = retry_after_s
    return error
