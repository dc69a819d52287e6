"""Choose the models of a store that go when an operator prunes it, and answer.

As with agents' caches: a model stays if one rule keeps it. One that has a file which is desired,
pinned, in use or arriving stays whatever the rules say, with all of its files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from paddler_trio.processes.model_store.inventory import StoredFile, stored_files
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.stored_models import StoredModel, select, stored_models
from paddler_trio.wire.trio.cache_commands import Prune

LEFT_GRACE_S: Final = 86_400.0
"""The leftovers of a download or an upload stay for a day: somebody may be about to go on with
it."""


@attrs.frozen
class PrunePlan:
    """The models that go, and how many stay."""

    going: tuple[StoredModel, ...]
    num_kept: int

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files that go, each once."""
        return tuple({file.key: file for model in self.going for file in model.files}.values())


def planned(layout: StoreLayout, rules: Prune, is_kept: Callable[[str], bool]) -> PrunePlan:
    """Return what ``rules`` do not keep, longest unused first. Blocking; UnknownSourceError."""
    models = stored_models(stored_files(layout))
    named = {m.source for text in rules.sources for m in select(layout, models, text)}
    return prune_plan(models, rules, named, is_kept, time.time())


def prune_plan(
    models: Sequence[StoredModel],
    rules: Prune,
    named: set[str],
    is_kept: Callable[[str], bool],
    now_s: float,
) -> PrunePlan:
    """Return the decision. Pure.

    Args:
      named: sources of the models that the rules name.
      is_kept: whether the file of a key must not go now.
    """
    by_use = sorted(models, key=lambda model: (model.last_use_s, model.source), reverse=True)
    whole = [model for model in by_use if model.is_whole]
    newest = {model.source for model in whole[: rules.newest or 0]}

    def stays(model: StoredModel) -> bool:
        least_s = float(rules.used_within_s or 0)
        if not model.is_whole:
            least_s = max(least_s, LEFT_GRACE_S)
        return (
            model.source in newest
            or model.source in named
            or now_s - model.last_use_s < least_s
            or any(is_kept(file.key) for file in model.files)
        )

    staying = [model for model in by_use if stays(model)]
    needed = {file.key for model in staying for file in model.files}
    going = [
        attrs.evolve(model, files=files)
        for model in reversed(by_use)
        if model not in staying
        and (files := tuple(file for file in model.files if file.key not in needed))
    ]
    return PrunePlan(tuple(going), len(staying))
