"""Ask the hub for metadata of a file, once however many agents want it at the same time."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.models.hub.hub_cache import HubCache, size_of
from paddler_trio.models.hub.hub_client import HubFile, check_names, file_metadata, hub_subject
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    DownloadError,
    ServerFailedError,
    ServerUnreachableError,
)
from paddler_trio.net.client.http_client import open_client
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel

log = structlog.get_logger("store")

MAX_KNOWN: Final = 4096
FRESH_S: Final = 2.0
"""Agents that were sent a desired state at the same moment are answered alike."""
STEADY_S: Final = 60.0
"""While the parts of one file are fetched, a branch stays what it was."""


@attrs.define(eq=False)
class _Known:
    """One question; the answer is a value, also when it is an error."""

    asked_s: float
    answer: Future[HubFile | DownloadError] = attrs.field(factory=Future)

    @property
    def age_s(self) -> float:
        return trio.current_time() - self.asked_s

    @property
    def is_failure(self) -> bool:
        return isinstance(self.answer.value, DownloadError)


@attrs.define(eq=False)
class HubMetadata:
    """See the module docstring.

    Args:
      settings: of the hub; the cache is the store's.
      nursery: of the questions: one whose client leaves is asked to its end for the others.
    """

    settings: HubSettings
    nursery: trio.Nursery
    _known: OrderedDict[HuggingFaceModel, _Known] = attrs.field(factory=OrderedDict, init=False)

    async def of(self, model: HuggingFaceModel, *, max_age_s: float) -> HubFile:
        """Return the file's commit, hash and size; what is cached if the hub cannot be asked.
        DownloadError."""
        check_names(model)
        known = self._known.get(model)
        if known is None or known.age_s > (FRESH_S if known.is_failure else max_age_s):
            known = self._known[model] = _Known(trio.current_time())
            self._known.move_to_end(model)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            self.nursery.start_soon(self._ask, model, known, name=f"metadata {model.repo_id}")
        answer = await known.answer.wait()
        if isinstance(answer, DownloadError):
            raise answer.with_traceback(None)
        return answer

    async def _ask(self, model: HuggingFaceModel, known: _Known) -> None:
        began_s = time.monotonic()
        try:
            known.answer.set(await self._asked(model))
        except DownloadError as error:
            known.answer.set(error)
            log.warning("the hub has no answer", model=model.repo_id, reason=error.cause)
        except Exception as error:  # the disk, or a bug: waiting requests get an answer
            log.exception("the hub could not be asked", model=model.repo_id)
            cause = f"the store failed: {type(error).__name__}: {error}"
            known.answer.set(ServerFailedError(hub_subject(model), cause))
        log.debug("hub asked", model=model.repo_id, took_s=round(time.monotonic() - began_s, 3))

    async def _asked(self, model: HuggingFaceModel) -> HubFile:
        subject = hub_subject(model)
        cached = await trio.to_thread.run_sync(_cached, self.settings, model)
        if cached is not None and cached.commit == model.revision:
            return cached  # a commit never changes
        try:
            if self.settings.offline:
                raise ServerUnreachableError(
                    subject, "HF_HUB_OFFLINE is set and the store does not have it"
                )
            token = await trio.to_thread.run_sync(self.settings.token)
            async with open_client(self.settings.timeouts) as client:
                found = await file_metadata(client, self.settings.endpoint, model, token)
        except ConfigurationError as error:
            raise AccessDeniedError(subject, str(error)) from error
        except (ServerUnreachableError, ServerFailedError, AccessDeniedError) as error:
            if cached is None:
                raise
            log.warning("the stored file is used", file=subject.model_path, reason=error.cause)
            return cached
        await trio.to_thread.run_sync(_remember, self.settings, model, found.commit)
        return found


def _remember(settings: HubSettings, model: HuggingFaceModel, commit: str) -> None:
    """Remember what the branch is now, for when the hub cannot be asked. Blocking."""
    try:
        HubCache(settings.cache).repository(model.repo_id).remember(model.revision, commit)
    except OSError as error:
        log.warning("the ref is not written", model=model.repo_id, reason=error.strerror)


def _cached(settings: HubSettings, model: HuggingFaceModel) -> HubFile | None:
    """Return the file as it lies in the store for this revision. Blocking."""
    repository = HubCache(settings.cache).repository(model.repo_id)
    found = repository.cached(model.revision, model.filename)
    if found is None or not found[0].is_symlink():
        return None
    pointer, commit = found
    return HubFile(commit, pointer.readlink().name, size_of(pointer))
