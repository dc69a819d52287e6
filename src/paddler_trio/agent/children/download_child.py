"""Entry of the process that fetches one large file: an agent's child; see ``download_process.py``.

Standard error is the log.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from contextlib import suppress

import trio

from paddler_trio.agent.children.download_process import LENGTH_BYTES, fields_of
from paddler_trio.models.download.download_progress import MIN_INTERVAL_S
from paddler_trio.models.download.model_download import ModelDownload, TransferJob
from paddler_trio.net.client.download_errors import DownloadError
from paddler_trio.system.logs.logs import configure_logs

_END_BYTES = 16


def main() -> None:
    """Do the one job that comes on standard input."""
    configure_logs(level="warning")
    prefix = sys.stdin.buffer.read(LENGTH_BYTES)
    data = sys.stdin.buffer.read(int.from_bytes(prefix, "big"))
    if not data:
        return  # the agent is gone already
    job = pickle.loads(data)  # noqa: S301  # of the agent that started this process
    trio.run(_work, job)


async def _work(job: TransferJob) -> None:
    download = ModelDownload(job.settings, lambda progress: None, job.limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_with_agent, nursery.cancel_scope)
        nursery.start_soon(_report, download)
        try:
            fetched = await download.carry_out(job.remote, job.folder, job.key)
        except DownloadError as error:
            _say(fields_of(error))
        else:
            _say(_progress(download))
            _say(
                {
                    "size": fetched.size_bytes,
                    "kind": fetched.hash.kind,
                    "hash": fetched.hash.hex,
                    "etag": fetched.etag,
                }
            )
        nursery.cancel_scope.cancel(reason="the job is done")


async def _end_with_agent(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
        while await stdin.receive_some(_END_BYTES):
            pass
    scope.cancel(reason="the agent is gone")


async def _report(download: ModelDownload) -> None:
    told: dict[str, object] = {}
    while True:
        now = _progress(download)
        if now != told:
            told = now
            _say(now)
        await trio.sleep(MIN_INTERVAL_S)


def _progress(download: ModelDownload) -> dict[str, object]:
    here_bytes, total_bytes = download.here
    return {"here": here_bytes, "total": total_bytes, "received": download.received_bytes}


def _say(fields: dict[str, object]) -> None:
    with suppress(BrokenPipeError):  # the agent is gone: standard input tells it too
        os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
