"""Fetch a model at the balancer's model store, else at the source itself.

store answers                           it is fetched there
store starts, is gone, or is full of    asked again for a while, then the source
  other connections
store has no room, or cannot reach      the source; if that cannot be reached from here either,
  the source                            the store's error counts
source refuses the store                that is the answer, unless this agent has a token of its
                                        own to try
it was pushed, and is not there         that is the answer
the source fails, the file changes,     that is the answer; the next attempt begins with the
  this machine's disk is full           store again
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.agent.children.download_process import fetch_apart
from paddler_trio.errors import ConfigurationError
from paddler_trio.models.download.download_progress import DownloadProgress
from paddler_trio.models.download.model_download import FetchedModel, ModelDownload
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.pushed.pushed_model import is_pushed
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    CacheBrokenError,
    CacheFullError,
    CacheNotWritableError,
    DownloadError,
    LockHeldError,
    PushedModelMissingError,
    RemoteFileChangedError,
    ServerFailedError,
    ServerUnreachableError,
    SourceNotFoundError,
    StoreCannotError,
    TransferInterruptedError,
)
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

log = structlog.get_logger("model")

PATIENCE_S: Final = 15.0
"""The patience with a store that does not answer; a restart takes it one or two seconds."""
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 4.0
_HERE = (CacheFullError, CacheNotWritableError, CacheBrokenError, LockHeldError)
_PASSING = (ServerFailedError, ServerUnreachableError, TransferInterruptedError)


@attrs.frozen
class StoreAddress:
    """A balancer's model store.

    Args:
      url: without a slash at the end.
      key_file: holds the API key for it; None if it asks for none.
      tls: how it is verified, if ``url`` begins with ``https:``.
    """

    url: str
    key_file: Path | None
    tls: ClientTls = SYSTEM_TRUST


@attrs.frozen(eq=False)
class StoreFirst:
    """Fetches models; see the module docstring.

    Args:
      hub: of the source; its cache is filled either way.
      store: None fetches from the source.
    """

    hub: HubSettings
    store: StoreAddress | None
    publish: Callable[[DownloadProgress | None], None]

    async def fetch(self, model: HuggingFaceModel | UrlModel) -> FetchedModel:
        """Return the model's files; DownloadError. Cancellation: as :meth:`ModelDownload.fetch`."""
        if self.store is None:
            return await self._download(self.hub).fetch(model)
        settings = self.hub.through_store(self.store.url, self.store.key_file, self.store.tls)
        try:
            return await self._from_store(self._download(settings), model)
        except DownloadError as error:
            is_nowhere_else = isinstance(model, UrlModel) and is_pushed(model.url)
            if is_nowhere_else or not may_try_source(error, has_token=await self._has_token()):
                raise
            refusal = error
        log.warning("not from the balancer's model store: asking the source", reason=refusal.cause)
        try:
            return await self._download(self.hub).fetch(model)
        except ServerUnreachableError as error:
            log.warning("the source cannot be reached from here either", reason=error.cause)
            raise refusal from error

    def _download(self, settings: HubSettings) -> ModelDownload:
        return ModelDownload(settings, self.publish, elsewhere=fetch_apart)

    async def _from_store(
        self, download: ModelDownload, model: HuggingFaceModel | UrlModel
    ) -> FetchedModel:
        """Fetch from the store, as often as it takes, while that is away for a moment."""
        pause_s = FIRST_PAUSE_S
        give_up_s: float | None = None
        while True:
            try:
                return await download.fetch(model)
            except _PASSING as error:
                now_s = trio.current_time()
                give_up_s = now_s + PATIENCE_S if give_up_s is None else give_up_s
                if error.is_from_store or now_s + pause_s > give_up_s:
                    raise
                log.info("the model store is asked again", reason=error.cause, in_s=pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _has_token(self) -> bool:
        try:
            return await trio.to_thread.run_sync(self.hub.token) is not None
        except ConfigurationError:
            return False


def may_try_source(error: DownloadError, *, has_token: bool) -> bool:
    """Return whether the source may give what the store did not."""
    if isinstance(error, (*_HERE, RemoteFileChangedError, PushedModelMissingError)):
        return False
    if not error.is_from_store:
        return True
    if isinstance(error, AccessDeniedError | SourceNotFoundError):
        return has_token and error.subject.is_hub
    return isinstance(error, StoreCannotError | ServerUnreachableError)
