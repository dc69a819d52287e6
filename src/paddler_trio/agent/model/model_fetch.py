"""The desired model's files on this machine: found, or fetched; and when to try again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import attrs
import structlog
import trio

from paddler_trio.agent.model.model_file import ModelFile, ModelSourceError, file_at, local_file
from paddler_trio.agent.model.model_uses import ModelUses
from paddler_trio.agent.model.store_first import StoreAddress, StoreFirst
from paddler_trio.models.cache.cache_verification import verified
from paddler_trio.models.download.download_progress import DownloadProgress, RetryDelay
from paddler_trio.models.download.model_download import wait_for_retry
from paddler_trio.models.hub.hub_choice import part_names
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import DownloadError
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ModelFileDoesNotExist,
    MultimodalProjectionCannotBeLoaded,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.trio.desired_state_extras import Extras

log = structlog.get_logger("model")


class ModelFetchError(ModelSourceError):
    """A download failed and is tried again after ``retry_s`` seconds, or when the token changes."""

    def __init__(self, error: DownloadError, retry_s: float, token_fingerprint: str) -> None:
        super().__init__(error.issue, f"{error.cause}; next attempt in {retry_s:.0f} s")
        self.retry_s = retry_s
        self.token_fingerprint = token_fingerprint


@attrs.define(eq=False)
class ModelFetch:
    """Finds and fetches what one agent serves.

    Args:
      publish: gets the progress of downloads, at most four times a second; None when there is none.
    """

    hub: HubSettings
    publish: Callable[[DownloadProgress | None], None]
    uses: ModelUses = attrs.field(init=False)
    store: StoreAddress | None = attrs.field(default=None, init=False)
    """The store of the balancer that this agent is linked to, or was last; None if it has none."""
    _retry: RetryDelay = attrs.field(factory=RetryDelay, init=False)
    _hashed: ModelFile | None = attrs.field(default=None, init=False)
    """The file that was hashed last because it would not load."""

    def __attrs_post_init__(self) -> None:
        self.uses = ModelUses(self.hub)

    async def model(self, state: AgentDesiredState) -> ModelFile | None:
        """Return the model's file, the first of several; None when no model is desired.
        ModelSourceError."""
        return await self._file(state.model, ModelFileDoesNotExist)

    async def projection(
        self, state: AgentDesiredState
    ) -> tuple[ModelFile | None, ModelSourceError | None]:
        """Return the projection's file, or its problem: without it the model still serves text."""
        try:
            return (
                await self._file(state.multimodal_projection, MultimodalProjectionCannotBeLoaded),
                None,
            )
        except ModelSourceError as error:
            return None, error

    async def adapters(self, extras: Extras) -> tuple[ModelFile, ...]:
        """Return the files of all adapters; ModelSourceError: without one of them the answers of
        those that choose it would be another model's."""
        files = [await self._file(each, ModelFileDoesNotExist) for each in extras.sources]
        return tuple(file for file in files if file is not None)

    async def wait_retry(self, error: ModelFetchError) -> None:
        """Return when the download should be tried again."""
        await wait_for_retry(self.hub, error.retry_s, error.token_fingerprint)

    async def is_refused_as_announced(self, path: str) -> bool:
        """Hash a file again that would not load, once. Return True if its content is what its
        source announced, so that fetching it anew would not help; False if it was quarantined."""
        file = await trio.to_thread.run_sync(file_at, path)
        if file is None or file == self._hashed:
            return True
        self._hashed = file
        parts = [Path(path).with_name(name) for name in part_names(Path(path).name)]

        def hash_all() -> bool:
            return [verified(part, self.hub) for part in parts].count(False) == 0  # each is hashed

        try:
            is_right = await trio.to_thread.run_sync(hash_all, abandon_on_cancel=True)
        except OSError as error:
            log.warning("the model's file cannot be hashed", reason=error.strerror)
            return True
        log.warning("a model that would not load was hashed again", path=path, matches=is_right)
        return is_right

    async def _file(
        self, model: DesiredModel, missing: Callable[[str], AgentIssue]
    ) -> ModelFile | None:
        match model:
            case NoModel():
                return None
            case LocalToAgent():
                await self.uses.hold(Path(model.path))  # it may lie in a cache
                return await trio.to_thread.run_sync(local_file, model.path, missing)
        token = await trio.to_thread.run_sync(self.hub.token_fingerprint)
        try:
            fetched = await StoreFirst(self.hub, self.store, self.publish).fetch(model)
        except DownloadError as error:
            delay_s = self._retry.after(error, random.random())  # noqa: S311  # jitter
            raise ModelFetchError(error, delay_s, token) from error
        self._retry.reset()
        await self.uses.hold(fetched.path)  # before it is looked at: another agent may remove it
        return await trio.to_thread.run_sync(local_file, str(fetched.path), missing)
