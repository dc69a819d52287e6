"""The commands about the models that this agent keeps: one task each, beside serving.

    model cache
    ├─ pull 3           fetches files, serves nothing
    ├─ verify 4, …      in a thread: hashes, lists, removes
    └─ use marks        once an hour: what is served is in use still

A command belongs to its sender: it ends with its answer, with a stop, with the link it came on,
and with the agent's stop. What is here of a file stays, so the same command goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

import attrs
import structlog
import trio

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.cache_answers import (
    list_answer,
    prune_answer,
    pull_answer,
    verify_answer,
)
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.store_first import StoreFirst
from paddler_trio.errors import leaves, one_line
from paddler_trio.models.download.download_progress import (
    MIN_INTERVAL_S,
    DownloadProgress,
    RetryDelay,
)
from paddler_trio.models.download.model_download import FetchedModel
from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    CacheFullError,
    DownloadError,
    PushedModelMissingError,
    RequestRejectedError,
    SourceMalformedError,
    SourceNotFoundError,
)
from paddler_trio.wire.paddler.agent_issue import AgentIssue
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel
from paddler_trio.wire.trio.cache_commands import (
    CacheProgress,
    CacheRequest,
    ListCache,
    Prune,
    Pull,
    Verify,
)
from paddler_trio.wire.trio.trio_link import Answer, Cache, render_extension

log = structlog.get_logger("cache")

MAX_COMMANDS: Final = 16
MAX_PULLS: Final = 4
MAX_HASHING: Final = 1
"""Commands that read whole files; a second one would only make both slower."""
PULL_RETRIES: Final = 5
"""The retries after errors that pass; a download has retries of its own for each part besides."""
MARK_INTERVAL_S: Final = 3600.0
ISSUE_S: Final = 120.0
"""The time for which it is shown that files could not be fetched; before a rollout that is tried
again once a minute."""
_CODES: Final = (
    (SourceMalformedError, 400),
    (AccessDeniedError, 403),
    (SourceNotFoundError, 404),
    (PushedModelMissingError, 404),
    (RequestRejectedError, 400),
    (CacheFullError, 507),
)


class CommandReply(Protocol):
    """The connection that a command came in on, where the answers go."""

    def answer(self, answer: Answer) -> None: ...

    def progress(self, progress: CacheProgress) -> None: ...

    async def send_large(self, frame: bytes) -> None:
        """Send, waiting for those before; trio.BrokenResourceError if the connection has ended."""
        ...


@attrs.frozen(eq=False)
class _Running:
    request: CacheRequest
    reply: CommandReply
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class CacheTasks:
    """All commands of all connections. Those that come before :meth:`run` are refused."""

    _models: ModelServer | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _running: dict[tuple[int, str], _Running] = attrs.field(factory=dict, init=False)
    """The commands by the identity of the connection and the command's id on it."""
    _pulls: list[object] = attrs.field(factory=list, init=False)
    """Those that fetch, oldest first."""
    _issue_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _issue_of: tuple[DesiredModel, ...] = attrs.field(default=(), init=False)

    def __repr__(self) -> str:
        return f"<CacheTasks: {len(self._running)} commands>"

    async def run(self, models: ModelServer) -> None:
        """Own the commands until cancelled."""
        self._models = models
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._mark_uses, models, name="use marks")

    def start(self, command: Cache, reply: CommandReply) -> None:
        """Work on a command; every failure is answered on ``reply``."""
        request = command.request
        kind = type(request).__name__
        alike = sum(type(each.request) is type(request) for each in self._running.values())
        problem, code = "", 503
        if self._nursery is None or self._models is None:
            problem = "this agent is starting or leaving"
        elif (id(reply), command.id) in self._running:
            problem, code = f"command id {command.id!r} is in use already", 400
        elif len(self._running) >= MAX_COMMANDS:
            problem = f"this agent works on {MAX_COMMANDS} commands already; try again later"
        elif isinstance(request, Pull) and alike >= MAX_PULLS:
            problem = f"this agent fetches {MAX_PULLS} models already; try again later"
        elif isinstance(request, Verify) and alike >= MAX_HASHING:
            problem = "this agent hashes its models already; try again when it is done"
        if problem or self._nursery is None:
            reply.answer(Answer(command.id, None, problem, code))
            return
        running = self._running[id(reply), command.id] = _Running(request, reply)
        self._nursery.start_soon(self._serve, command, running, name=f"{kind.lower()} {command.id}")

    def stop(self, wire_id: str, reply: object) -> None:
        """End the command; nothing more is sent for it. Unknown ids are ignored."""
        found = self._running.get((id(reply), wire_id))
        if found is not None:
            found.scope.cancel(reason="the balancer asked to stop")

    def stop_all_of(self, reply: object) -> None:
        """Stop the commands of a connection that has ended: they have nobody to answer to."""
        for running in self._running.values():
            if running.reply is reply:
                running.scope.cancel(reason="the link is gone")

    def leave(self) -> None:
        """End all commands, since the agent is leaving, with an answer, which is queued when this
        returns."""
        nursery, self._nursery = self._nursery, None
        for (_, wire_id), running in self._running.items():
            running.reply.answer(Answer(wire_id, None, "this agent is leaving", 503))
        if nursery is not None:
            nursery.cancel_scope.cancel(reason="this agent is leaving")

    # ---------------------------------------------------------------- one command

    async def _serve(self, command: Cache, running: _Running) -> None:
        reply = running.reply
        try:
            with running.scope:
                reply.progress(
                    CacheProgress(id=command.id, phase="starting", source="", filename="")
                )
                answer = await self._answer(command, reply)
                if isinstance(answer, Answer):
                    reply.answer(answer)
                else:
                    await reply.send_large(answer)
        except trio.BrokenResourceError:
            log.debug("the link ended before it had its answer", id=command.id)
        finally:
            del self._running[id(reply), command.id]

    async def _answer(self, command: Cache, reply: CommandReply) -> bytes | Answer:
        """Return the frame of the answer, or why there is none."""
        try:
            value = await self._value(command, reply)
            return await trio.to_thread.run_sync(
                lambda: render_extension(Answer(command.id, value, None, 200))
            )
        except Exception as error:
            causes = list(leaves(error))
            match causes[0]:
                case DownloadError() as failed:
                    code = next((code for kind, code in _CODES if isinstance(failed, kind)), 502)
                    return Answer(command.id, None, failed.cause, code)
                case UnknownSourceError() as unknown:
                    return Answer(command.id, None, str(unknown), 400)
                case OSError() as broken:
                    where = f" ({broken.filename})" if broken.filename else ""
                    problem = f"{broken.strerror or broken}{where}"
                    return Answer(command.id, None, problem, 500)
            # a bug: the agent serves on
            log.exception("a command about the cache failed", id=command.id)
            return Answer(command.id, None, one_line(error), 500)

    async def _value(self, command: Cache, reply: CommandReply) -> object:
        models = self._models
        assert models is not None
        request = command.request
        match request:
            case Pull():
                return await self._pull(command.id, request, models, reply)
            case ListCache():
                return await _in_thread(lambda: list_answer(models.cache_view(), _check))
            case Verify():
                return await self._hash(command.id, request, models, reply)
            case Prune():
                return await _in_thread(lambda: prune_answer(request, models.cache_view(), _check))

    async def _hash(
        self, wire_id: str, request: Verify, models: ModelServer, reply: CommandReply
    ) -> object:
        shown: list[CacheProgress] = []
        """The newest alone; the thread writes, the event loop reads."""

        def show(progress: CacheProgress) -> None:
            shown[:] = [attrs.evolve(progress, id=wire_id)]

        async def publish() -> None:
            sent = None
            while True:
                await trio.sleep(MIN_INTERVAL_S)
                newest = shown[0] if shown else None
                if newest is not None and newest is not sent:
                    reply.progress(newest)
                    sent = newest

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, name="progress")
            value = await _in_thread(
                lambda: verify_answer(request, models.cache_view(), _check, show)
            )
            nursery.cancel_scope.cancel(reason="all is hashed")
        return value

    async def _pull(
        self, wire_id: str, request: Pull, models: ModelServer, reply: CommandReply
    ) -> object:
        status, me = models.status, object()
        if request.models != self._issue_of:
            self._issue_scope.cancel(reason="another model is fetched")

        def show(progress: DownloadProgress | None) -> None:
            if self._pulls[0] is me:  # the oldest of several
                status.set(pull=progress)

        self._pulls.append(me)
        try:
            fetched = await self._fetched(wire_id, request, models, reply, show)
        except DownloadError as error:
            if self._nursery is not None:
                self._nursery.start_soon(
                    self._show_issue, status, request, error.issue, name="issue of a pull"
                )
            raise
        finally:
            show(None)
            self._pulls.remove(me)
        self._issue_scope.cancel(reason="the files are here")
        return await _in_thread(lambda: pull_answer(request, fetched, models.hub))

    async def _show_issue(self, status: AgentStatus, request: Pull, issue: AgentIssue) -> None:
        """Show an issue for a while, one at a time."""
        self._issue_scope.cancel(reason="there is a newer one")
        with trio.move_on_after(ISSUE_S) as self._issue_scope:
            self._issue_of = request.models
            status.set(pull_issue=issue)
            await trio.sleep_forever()
        if status.pull_issue is issue:
            status.set(pull_issue=None)

    async def _fetched(
        self,
        wire_id: str,
        request: Pull,
        models: ModelServer,
        reply: CommandReply,
        show: Callable[[DownloadProgress | None], None],
    ) -> list[FetchedModel]:
        fetched: list[FetchedModel] = []
        last: list[DownloadProgress] = []

        def publish(progress: DownloadProgress | None) -> None:
            if progress is not None:
                last[:] = [progress]
                reply.progress(_wire_progress(wire_id, progress))
            show(progress)

        download = StoreFirst(models.hub, models.store, publish)
        for model in request.models:
            assert isinstance(model, UrlModel | HuggingFaceModel), "the request holds no others"
            retry, failures = RetryDelay(), 0
            while True:
                try:
                    fetched.append(await download.fetch(model))
                    break
                except DownloadError as error:
                    failures += 1
                    if error.is_permanent or failures > PULL_RETRIES:
                        raise
                    delay_s = retry.after(error, random.random())  # noqa: S311  # jitter
                    if last:
                        phase = f"{error.cause}; next attempt in {delay_s:.0f} s"
                        publish(attrs.evolve(last[0], phase=phase, bytes_per_s=None))
                    await trio.sleep(delay_s)
        return fetched

    async def _mark_uses(self, models: ModelServer) -> None:
        while True:
            await trio.sleep(MARK_INTERVAL_S)
            await models.touch_uses()


def _check() -> None:
    """Raise Cancelled in a worker thread when its command has been stopped."""
    trio.from_thread.check_cancelled()


async def _in_thread(work: Callable[[], object]) -> object:
    """Run ``work`` in a thread that looks at every file whether it is still wanted."""
    return await trio.to_thread.run_sync(work)


def _wire_progress(wire_id: str, progress: DownloadProgress) -> CacheProgress:
    speed, left_s = progress.bytes_per_s, progress.remaining_s
    return CacheProgress(
        id=wire_id,
        phase=progress.phase,
        source=progress.source,
        filename=progress.filename,
        file_index=progress.file_index,
        file_count=progress.file_count,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_s=None if speed is None else int(speed),
        remaining_s=None if left_s is None else min(int(left_s), 2**32 - 1),
    )
