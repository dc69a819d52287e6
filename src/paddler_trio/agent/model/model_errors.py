"""Describe why a model is not served: what operators see of it, and what is done about it."""

from __future__ import annotations

from collections.abc import Iterable

from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.model.model_fit import Judged
from paddler_trio.errors import PaddlerError
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ModelCannotBeLoaded,
    SlotCannotStart,
    UnableToFindChatTemplate,
)

MAX_SLOT_ISSUES = 256
"""All slots fail alike, and every status carries every issue."""


class ModelNotServableError(PaddlerError):
    """The model is not served; ``issues`` are what operators see. ``refused`` is the path of a file
    that would not load. ``is_permanent``: trying again soon is of no use."""

    def __init__(
        self,
        issues: Iterable[AgentIssue],
        message: str,
        refused: str | None = None,
        *,
        is_permanent: bool = False,
    ) -> None:
        super().__init__(message)
        self.issues = frozenset(issues)
        self.refused = refused
        self.is_permanent = is_permanent


class DoesNotFitError(ModelNotServableError):
    """There is too little memory for the model, even when the one in force is gone."""

    def __init__(self, issues: Iterable[AgentIssue], message: str, judged: Judged) -> None:
        super().__init__(issues, message)
        self.judged = judged


def load_issues(
    failure: LoadFailedError, load: LoadModel, *, has_override: bool
) -> list[AgentIssue]:
    """Return the issues of a load that an engine refused. ``has_override``: a chat template is
    stored with it."""
    if failure.stage == "context":
        return slot_issues(load, failure.reason)
    if failure.stage == "encoder" and not has_override:
        return [UnableToFindChatTemplate(load.model_path)]
    return [ModelCannotBeLoaded(load.model_path)]


def slot_issues(load: LoadModel, reason: str) -> list[AgentIssue]:
    """Return the issues of slots that cannot start."""
    return [SlotCannotStart(reason, slot) for slot in range(min(load.slots, MAX_SLOT_ISSUES))]
