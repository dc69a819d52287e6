"""Show the model that an agent follows: phase, issues, what it serves and why not."""

from __future__ import annotations

import attrs
import structlog

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.loaded_model import LoadedModel
from paddler_trio.agent.model.model_errors import ModelNotServableError
from paddler_trio.agent.model.model_file import ModelSourceError
from paddler_trio.models.download.download_progress import DownloadProgress
from paddler_trio.wire.paddler.agent_issue import AgentIssue, ModelCannotBeLoaded
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus

log = structlog.get_logger("model")

_TRIED = (
    AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
    AgentStateApplicationStatus.STUCK,
)


@attrs.frozen(eq=False)
class ModelShown:
    """Sets the status; decides nothing."""

    status: AgentStatus

    def wanted(self, *, kept: str | None) -> None:
        """Note that another state is to be served; ``kept`` is what is served until then."""
        self.status.set(
            served_state=kept,
            application=AgentStateApplicationStatus.FRESH,
            phase="resolving",
            detail=None,
            progress=None,
            pull_issue=None,
        )

    def download(self, download: DownloadProgress | None) -> None:
        if download is not None:
            self.status.set(download=download, phase="downloading")
        elif self.status.download is not None:
            self.status.set(download=None, phase="resolving")

    def draining(self) -> None:
        """Show that nothing is offered any more."""
        is_unloading = self.status.phase == "unloading"
        phase = "unloading" if is_unloading else "draining"
        self.status.set(is_serving=False, served_state=None, phase=phase, memory=None)

    def unloaded(self, since: str) -> None:
        """Show that an operator has unloaded the model, and when."""
        self.status.set(
            phase="unloaded",
            detail=f"an operator unloaded it at {since}",
            progress=None,
            issues=frozenset(),
            application=AgentStateApplicationStatus.FRESH,
            model_path=None,
        )

    def loading(self, *, beside: bool) -> None:
        """Note that an engine starts; ``beside``: the model before it goes on serving."""
        self.status.set(phase="loading", progress=0.0)
        if not beside:
            self.status.set(model_path=None)
        if self.status.application is AgentStateApplicationStatus.FRESH:
            self.status.set(issues=frozenset())  # they were another state's

    def crashed(self, reason: str) -> None:
        """Note that the engine died and will be started again."""
        self.status.set(phase="loading", detail=reason, progress=0.0)

    def restarting(self) -> None:
        """Note that an operator lets another engine take the place of this one."""
        detail = "an operator restarts the engine"
        self.status.set(phase="restarting", detail=detail, progress=0.0)

    def language_crashed(self, model: LoadedModel, reason: str) -> None:
        """Show that what reads the language died before it had read it, and will be started
        again."""
        self.status.set(
            detail=reason,
            issues=frozenset({ModelCannotBeLoaded(model.load.model_path)}),
            application=AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
        )

    def failed(self, error: ModelSourceError | ModelNotServableError, *, has_engine: bool) -> None:
        """Note that the desired state cannot be served (yet)."""
        issues = (
            error.issues if isinstance(error, ModelNotServableError) else frozenset({error.issue})
        )
        log.error("the model is not served", reason=str(error))
        self.status.set(
            phase="failed",
            model_path=self.status.model_path if has_engine else None,
            detail=str(error),
            progress=None,
            issues=issues,
            application=AgentStateApplicationStatus.STUCK
            if self.status.application in _TRIED
            else AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING,
        )

    def nothing(self, desired: AgentDesiredState, digest: str) -> None:
        """Note that no model is wanted, and none is there."""
        self.status.set(
            phase="waiting",
            detail=None,
            issues=frozenset(),
            application=AgentStateApplicationStatus.APPLIED,
            served_state=digest,
            adapters=(),
            model_path=None,
            uses_chat_template_override=desired.chat_template_override is not None,
        )

    def in_force(
        self,
        model: LoadedModel,
        desired: AgentDesiredState,
        issues: frozenset[AgentIssue],
        fingerprint: str,
        adapters: tuple[str, ...],
    ) -> None:
        """Note that the desired state is applied; whether it answers now is shown by
        :meth:`serving`."""
        self.status.model_fingerprint, self.status.adapters = fingerprint, adapters
        self.status.set(
            issues=issues,
            application=AgentStateApplicationStatus.APPLIED,
            model_path=model.load.model_path,
            uses_chat_template_override=desired.chat_template_override is not None,
        )
        log.info("model in force", model=model.load.model_path)

    def serving(self, model: LoadedModel | None, *, is_wanted: bool, kept: str | None) -> None:
        """Note that requests go to ``model``, if it answers; None for none."""
        if model is None or model.serving is None:
            self.status.set(is_serving=False, served_state=None)
            return
        self.status.load_s, self.status.memory = model.keeper.load_s, model.memory
        if not is_wanted:
            self.status.set(is_serving=True, served_state=kept)
            return
        assert model.in_force is not None, "it answers in a language that was read"
        self.status.set(
            is_serving=True,
            phase="serving",
            progress=None,
            detail=model.projection_problem or None,
            served_state=model.in_force.digest,
        )
