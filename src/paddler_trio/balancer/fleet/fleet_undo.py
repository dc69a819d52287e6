"""Choose the revision that an undo goes back to. Pure."""

from __future__ import annotations

from paddler_trio.balancer.fleet.stored_fleet import (
    ROLLOUT,
    StoredFleet,
)
from paddler_trio.errors import PaddlerError
from paddler_trio.wire.trio.fleet_state import (
    FleetRevision,
)


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
