"""Tell what a new fleet state changes, and what that costs the agents. Pure.

A change is of the dearest class that any of its fields has:

* ``none``: agents are sent nothing (replicas, aliases, presets, rules);
* ``in_place``: sampling, template, markers; nothing is loaded;
* ``context``: the engine starts anew, over the same weights;
* ``weights``: another model, projection or adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from paddler_trio.balancer.fleet.stored_fleet import (
    ROLLOUT,
    StoredFleet,
)
from paddler_trio.errors import PaddlerError
from paddler_trio.scheduler.fleet.fleet_values import Change
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.trio.fleet_state import (
    DeploymentSpec,
    FleetRevision,
    FleetState,
)

ADDED: Final = "added"
REMOVED: Final = "removed"

_CLASSES: Final = tuple(Change)
"""The cheapest first."""
_LOADED: Final = frozenset(
    {
        "n_batch",
        "context_size",
        "n_gpu_layers",
        "k_cache_dtype",
        "v_cache_dtype",
        "enable_embeddings",
    }
)
"""Parameters that an engine is started with."""
_POOLING: Final = "pooling_type"
"""Likewise, where it embeds."""
_WEIGHTS: Final = frozenset({"model", "projection", "extras.engine.lora"})
_ADAPTERS: Final = "extras.adapters"
"""Their names and scales are no part of what is loaded."""


@attrs.frozen
class DeploymentChange:
    """``change``: a class, or ``added`` or ``removed``; ``fields``: names of what differs, such as
    ``parameters.context_size``."""

    deployment: str
    change: str
    fields: tuple[str, ...] = ()


def changes_between(before: FleetState, after: FleetState) -> tuple[DeploymentChange, ...]:
    """Return every deployment that differs: in the order of ``after``, then those that are gone."""
    old, new = before.by_name, after.by_name
    found: list[DeploymentChange] = []
    for name, spec in new.items():
        known = old.get(name)
        if known is None:
            found.append(DeploymentChange(name, ADDED))
        elif known != spec:
            fields = tuple(different_fields(known, spec))
            found.append(DeploymentChange(name, change_between(known, spec).value, fields))
    found += [DeploymentChange(name, REMOVED) for name in old if name not in new]
    return tuple(found)


def change_between(before: DeploymentSpec, after: DeploymentSpec) -> Change:
    """Return what it costs an agent with ``before`` to serve ``after``; NONE only if their digests
    are equal, since that is what agents compare."""
    classes = [_class_of(field, before, after) for field in different_fields(before, after)]
    classes.append(Change.NONE if before.digest == after.digest else Change.IN_PLACE)
    return max(classes, key=_CLASSES.index)


def different_fields(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Names of the fields that differ, those of a section behind its name and a point."""
    for field in attrs.fields(DeploymentSpec):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        if field.name in ("parameters", "extras", "rollout"):
            yield from _different(field.name, unstructure(old), unstructure(new))
        elif field.name == "presets":
            yield from list(_different_presets(before, after)) or [field.name]  # or their order
        else:
            yield field.name


def _different_presets(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Return the names of what differs in presets that both have, and of the others."""
    old, new = ({each.name: each for each in spec.presets} for spec in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new:
            yield from _different(f"presets.{name}", unstructure(old[name]), unstructure(new[name]))
        else:
            yield f"presets.{name}"


def _different(name: str, old: object, new: object) -> Iterator[str]:
    """Return the names of the members that differ, in objects; of the whole, in anything else."""
    before = {} if old is None else old
    after = {} if new is None else new
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield name
        return
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key), after.get(key)
        if isinstance(one, dict) or isinstance(other, dict):
            yield from _different(f"{name}.{key}", one, other)
        elif one != other:
            yield f"{name}.{key}"


def _class_of(field: str, before: DeploymentSpec, after: DeploymentSpec) -> Change:
    section, _, name = field.partition(".")
    if field in _WEIGHTS:
        return Change.WEIGHTS
    if field == _ADAPTERS:
        is_loaded = before.extras.sources != after.extras.sources
        return Change.WEIGHTS if is_loaded else Change.IN_PLACE
    if section == "parameters":
        embeds = after.parameters.enable_embeddings or before.parameters.enable_embeddings
        is_loaded = name in _LOADED or (name == _POOLING and embeds)
        return Change.CONTEXT if is_loaded else Change.IN_PLACE
    if section == "extras":
        return Change.IN_PLACE if name.startswith("markers.") else Change.CONTEXT
    if field == "slots":
        return Change.CONTEXT
    return Change.IN_PLACE if field == "template" else Change.NONE


class NoEarlierRevisionError(PaddlerError):
    """There is no such revision to go back to."""


def earlier_revision(fleet: StoredFleet, revision: int | None) -> FleetRevision:
    """Return what an undo to ``revision`` goes back to, as ``FleetKeeper.undo`` says.

    Errors:
      NoEarlierRevisionError: there is none.
    """
    if revision is None:
        if len(fleet.history) < 2:
            raise NoEarlierRevisionError(
                f"no revision before {fleet.current.revision} is kept: there is nothing to undo"
            )
        current, before = fleet.history[:2]
        if current.author == ROLLOUT:  # what it went back from is what failed
            raise NoEarlierRevisionError(
                f"revision {before.revision} is undone already by revision {current.revision} "
                f"({current.note}): say which revision to go back to (`paddler-trio fleet undo "
                "--to-revision`)"
            )
        worked = [each for each in fleet.history[1:] if not each.failed]
        earlier = next(
            (each for each in worked if _is_as_served(fleet, each)), next(iter(worked), None)
        )
        if earlier is None:
            raise NoEarlierRevisionError(
                f"every revision before {current.revision} that is kept has failed: there is "
                "nothing to undo"
            )
        if earlier.state.serves_the_same(current.state):
            raise NoEarlierRevisionError(
                f"revision {before.revision} failed ({', '.join(before.failed)}) and is undone "
                f"already by revision {current.revision}: say which revision to go back to "
                "(`paddler-trio fleet undo --to-revision`)"
            )
        return earlier
    found = next((each for each in fleet.history if each.revision == revision), None)
    if found is None:
        raise NoEarlierRevisionError(
            f"revision {revision} is not kept: there are {fleet.history[-1].revision} to "
            f"{fleet.current.revision}"
        )
    return found


def _is_as_served(fleet: StoredFleet, earlier: FleetRevision) -> bool:
    """Return whether it has what was last served, of each deployment whose present state was
    not. Of one that never was served nothing is known."""
    for spec in fleet.current.state.deployments:
        good, before = fleet.good.get(spec.name), earlier.state.find(spec.name)
        if good is None or good.digest == spec.digest:
            continue
        if before is None or before.digest != good.digest:
            return False
    return True
