"""The status of an agent: one value, changed in place, published by the link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from paddler_trio.models.download.download_progress import WAITING, DownloadProgress
from paddler_trio.system.synchronization import Changes
from paddler_trio.wire.engine.engine_pipe import EngineStats
from paddler_trio.wire.paddler.agent_issue import AgentIssue
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.scalars import float32
from paddler_trio.wire.trio.fit_messages import DeviceRoom, MemoryInForce
from paddler_trio.wire.trio.trio_link import RESTARTS, Download, Report


@attrs.define(eq=False)
class AgentStatus:
    """Change it through :meth:`set`, so that the version grows and the link publishes it.

    Args:
      slots: how many requests this agent may run at once, >= 1.
    """

    slots: int
    changes: Changes = attrs.field(factory=Changes, init=False)
    is_leaving: bool = attrs.field(default=False, init=False)
    """The daemon is stopping: no slots are offered any more, whatever the model does."""
    is_serving: bool = attrs.field(default=False, init=False)
    application: AgentStateApplicationStatus = attrs.field(
        default=AgentStateApplicationStatus.FRESH, init=False
    )
    issues: frozenset[AgentIssue] = attrs.field(default=frozenset(), init=False)
    model_path: str | None = attrs.field(default=None, init=False)
    uses_chat_template_override: bool = attrs.field(default=False, init=False)
    phase: str = attrs.field(default="waiting", init=False)
    wanted_state: str | None = attrs.field(default=None, init=False)
    served_state: str | None = attrs.field(default=None, init=False)
    model_fingerprint: str | None = attrs.field(default=None, init=False)
    adapters: tuple[str, ...] = attrs.field(default=(), init=False)
    """The names of those that requests can choose."""
    progress: float | None = attrs.field(default=None, init=False)
    detail: str | None = attrs.field(default=None, init=False)
    download: DownloadProgress | None = attrs.field(default=None, init=False)
    """The download of the state that is followed."""
    pull: DownloadProgress | None = attrs.field(default=None, init=False)
    """The download of files that are fetched beside it, as before a rollout begins."""
    pull_issue: AgentIssue | None = attrs.field(default=None, init=False)
    """Why the last of them could not be fetched."""
    memory: MemoryInForce | None = attrs.field(default=None, init=False)
    load_s: float | None = attrs.field(default=None, init=False)
    room: tuple[DeviceRoom, ...] = attrs.field(default=(), init=False)
    generations_running: int = attrs.field(default=0, init=False)
    embeddings_running: int = attrs.field(default=0, init=False)

    engine_restarts: int = attrs.field(default=0, init=False)
    """The number of times that an engine crashed and was started again, since this daemon began."""
    downloaded_bytes: int = attrs.field(default=0, init=False)
    """The bytes of all files, since this daemon began, as its downloads report their progress."""
    restart_kinds: Counter[str] = attrs.field(factory=Counter, init=False)
    """The same number by the kind of its death."""
    stats: EngineStats | None = attrs.field(default=None, init=False)
    """The counts of the engine; published with the next status, at least once a second."""

    def set(self, **fields: object) -> None:
        """Set several fields as one change."""
        before = self.shown_download
        for name, value in fields.items():
            assert hasattr(self, name), f"an agent's status has no {name}"
            setattr(self, name, value)
        after = self.shown_download
        if before is not None and after is not None:
            self.downloaded_bytes += _received(before, after)
        self.changes.notify()

    def set_running(self, *, generations: int | None = None, embeddings: int | None = None) -> None:
        """Set how many requests run now; what is not given stays."""
        if generations is not None:
            self.generations_running = generations
        if embeddings is not None:
            self.embeddings_running = embeddings

    @property
    def requests_running(self) -> int:
        return self.generations_running + self.embeddings_running

    @property
    def slots_total(self) -> int:
        """The number of slots that may be used now."""
        return self.slots if self.is_serving and not self.is_leaving else 0

    @property
    def shown_download(self) -> DownloadProgress | None:
        """The download to report: what is fetched to be served counts before what is fetched beside
        it, unless it waits for just that."""
        if self.download is None or (self.pull is not None and self.download.phase == WAITING):
            return self.pull
        return self.download

    def snapshot(self) -> SlotAggregatedStatusSnapshot:
        download = self.shown_download
        issues = self.issues if self.pull_issue is None else self.issues | {self.pull_issue}
        total_bytes = None if download is None else download.total_bytes
        return SlotAggregatedStatusSnapshot(
            desired_slots_total=self.slots,
            download_current=0 if download is None else download.current_bytes,
            download_filename=None if download is None else download.filename,
            download_indeterminate=total_bytes is None,
            download_total=total_bytes or 0,
            issues=tuple(issues),
            model_path=self.model_path,
            slots_processing=self.requests_running,
            slots_total=self.slots_total,
            state_application_status=self.application,
            uses_chat_template_override=self.uses_chat_template_override,
            version=self.changes.ordinal,
        )

    def report(self) -> Report:
        download = self.shown_download
        return Report(
            phase="leaving" if self.is_leaving else self.phase,
            wanted_state=self.wanted_state,
            served_state=None if self.is_leaving else self.served_state,
            model=self.model_fingerprint,
            progress=self.progress,
            detail=self.detail,
            engine=self._engine(),
            download=None if download is None else _wire_download(download),
            memory=self.memory,
            load_s=None if self.load_s is None else float32(self.load_s),
            room=self.room,
            adapters=self.adapters,
        )

    def _engine(self) -> Mapping[str, object] | None:
        if self.stats is None and not self.engine_restarts:
            return None
        counts = {} if self.stats is None else attrs.asdict(self.stats)
        kinds = {f"{RESTARTS}_{kind}": number for kind, number in self.restart_kinds.items()}
        return {**counts, RESTARTS: self.engine_restarts, **kinds}


def _received(before: DownloadProgress, after: DownloadProgress) -> int:
    """Return how many bytes of one file came between two reports."""
    is_same = (before.filename, before.file_index) == (after.filename, after.file_index)
    return max(0, after.current_bytes - before.current_bytes) if is_same else 0


def _wire_download(progress: DownloadProgress) -> Download:
    speed, left_s = progress.bytes_per_s, progress.remaining_s
    return Download(
        source=progress.source,
        phase=progress.phase,
        file_index=progress.file_index,
        file_count=progress.file_count,
        bytes_per_s=None if speed is None else int(speed),
        remaining_s=None if left_s is None else min(int(left_s), 2**32 - 1),
    )
