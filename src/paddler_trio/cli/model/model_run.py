"""The work of ``model show``, ``set`` and ``swap``, once the command line is understood."""

from __future__ import annotations

import time

import attrs
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.fleet.fleet_client import FleetClient
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.model_extras import (
    Change,
    changes,
    described,
    described_extras,
    extras_changes,
    extras_of,
    plain_extras,
)
from paddler_trio.cli.model.model_order import ModelRunOptions, state_of
from paddler_trio.cli.swap.swap_display import (
    AgentSwapState,
    Outcome,
    SwapProgress,
    SwapResult,
    by_id,
    wait_for_fleet,
)
from paddler_trio.cli.terminal import DONE, FAILED, TIMED_OUT, print_json, printable, stderr, stdout
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    NoModel,
    applicable_state,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest

SHORT_DIGEST = 12
CODES = {Outcome.ALL_SERVE: DONE, Outcome.TIMEOUT: TIMED_OUT}


def show_desired_state(client: ManagementClient, *, as_json: bool) -> None:
    """Print the stored desired state, and beside it the extras if there are any."""
    raw, raw_extras = client.extended_state()
    extras = NO_EXTRAS if raw_extras is None else extras_of(raw_extras)
    if as_json:
        print_json(raw if extras.is_empty else {**raw, "extras": raw_extras})
        return
    table = Table.grid(padding=(0, 2))
    for field, value in {**described(state_of(raw)), **described_extras(extras)}.items():
        table.add_row(field, Text(printable(value)))
    stdout().print(table)


def store_desired_state(
    client: ManagementClient,
    wish: ModelRunOptions,
    *,
    timeout_s: float | None,
    dry_run: bool = False,
    as_json: bool,
) -> int:
    """Store what is wished, and wait for the fleet unless ``timeout_s`` is None; in a ``dry_run``
    only show what it would do.

    Returns:
      The exit code: 0, or another one if it was waited for and not everybody serves.
    """
    desired, extras, current_extras, different = _compared(client, wish)
    console = stderr() if as_json else stdout()
    for change in different:
        console.print(Text(printable(f"{change.field}: {change.old} -> {change.new}")))
    if dry_run:
        from paddler_trio.cli.swap.swap_rollout import preview_swap

        return preview_swap(client, desired, extras, different, as_json=as_json)

    before = {} if timeout_s is None or not different else by_id(client.fleet().agents)
    stored_at_s = time.monotonic()
    digest = extended_digest(applicable_state(desired), extras)
    if different:
        told_extras = None if extras == current_extras else plain_extras(extras)
        digest = client.store(_plain(desired), told_extras) or digest
    console.print(_what_happens(different, desired, _stored_as(client, digest)))

    told = _told_storing(desired, extras, digest, different)
    code = DONE
    if timeout_s is not None and not isinstance(desired.model, NoModel):
        from paddler_trio.cli.swap.swap_rollout import wait_for_swap

        code = wait_for_swap(
            FleetClient(client),
            desired,
            extras,
            digest,
            is_new=bool(different),
            timeout_s=timeout_s,
            told=told,
            as_json=as_json,
        )
    elif timeout_s is not None:
        # to give up a model is no rollout: it is over for the balancer when all have been told
        progress = SwapProgress(digest, before=before, stored_at_s=stored_at_s)
        code = _wait(client, progress, desired, timeout_s=timeout_s, told=told, as_json=as_json)
    if as_json:
        print_json(told)
    return code


def _compared(
    client: ManagementClient, wish: ModelRunOptions
) -> tuple[BalancerDesiredState, Extras, Extras, list[Change]]:
    """Return the new state and extras, the extras before, and all that differs."""
    raw, raw_extras = client.extended_state()
    current = state_of(raw)
    current_extras = NO_EXTRAS if raw_extras is None else extras_of(raw_extras)
    desired = wish.applied_to(current)
    extras = wish.extras_over(current_extras)
    if raw_extras is None and (wish.extras is not None or not extras.is_empty):
        raise BalancerRefusedError(404, "the balancer knows no extras: leave --extras and auto out")
    different = [*changes(current, desired), *extras_changes(current_extras, extras)]
    return desired, extras, current_extras, different


def _told_storing(
    desired: BalancerDesiredState, extras: Extras, digest: str, different: list[Change]
) -> dict[str, object]:
    return {
        "stored": bool(different),
        "digest": digest,
        "changes": [attrs.asdict(change) for change in different],
        "needs_reload": any(change.needs_reload for change in different),
        "state": _plain(desired),
        "extras": plain_extras(extras),
    }


def _wait(
    client: ManagementClient,
    progress: SwapProgress,
    desired: BalancerDesiredState,
    *,
    timeout_s: float,
    told: dict[str, object],
    as_json: bool,
) -> int:
    """Wait until all agents serve it or have failed, and add to what is told of it."""
    outcome = wait_for_fleet(client, progress, timeout_s=timeout_s, console=stderr())
    told["outcome"] = outcome.value
    told["agents"] = [_told(standing) for standing in progress.standings]
    code = CODES.get(outcome, FAILED)
    if not as_json:
        words = _result(outcome, progress.standings, desired, timeout_s)
        (stdout() if code == DONE else stderr()).print(Text(printable(words)))
    return code


def _plain(state: BalancerDesiredState) -> dict[str, object]:
    plain = unstructure(state)
    assert isinstance(plain, dict)
    return plain


def _stored_as(client: ManagementClient, digest: str) -> str:
    """Return the revision in force in words; a balancer without revisions has a digest only."""
    try:
        revision = client.ask("GET", "/api/v2/fleet").get("revision")
    except BalancerRefusedError:
        revision = None
    number = revision.get("revision") if isinstance(revision, dict) else None
    return digest[:SHORT_DIGEST] if number is None else f"revision {number}"


def _what_happens(different: list[Change], desired: BalancerDesiredState, name: str) -> str:
    if not different:
        return "already desired: nothing to do"
    stored = f"stored as {name}: "
    if isinstance(desired.model, NoModel):
        return stored + "agents give up their model, once running answers have finished"
    if any(change.needs_reload for change in different):
        return stored + "agents load the model anew; running answers finish on the old one first"
    return stored + "applied in place, nothing is loaded anew"


def _result(
    outcome: Outcome,
    standings: list[AgentSwapState],
    desired: BalancerDesiredState,
    timeout_s: float,
) -> str:
    """The last line."""
    names = {
        result: ", ".join(s.agent.label for s in standings if s.result is result)
        for result in SwapResult
    }
    match outcome:
        case Outcome.ALL_SERVE:
            return f"served by {names[SwapResult.SERVING]}: {text_of(desired.model)}"
        case Outcome.SOME_FAILED:
            return "\n".join(
                f"failed on {standing.agent.label}: {standing.reason}"
                for standing in standings
                if standing.result is SwapResult.FAILED
            )
        case Outcome.NO_AGENT:
            return (
                "no agent is connected: it is stored, and nobody serves it yet; "
                "start one with `paddler-trio agent`"
            )
        case Outcome.SUPERSEDED:
            return f"{outcome.value}: nobody waits for this one any more"
        case Outcome.TIMEOUT:
            return (
                f"not ready after {timeout_s:g} s: {names[SwapResult.PENDING] or 'nobody answered'}"
            )


def _told(standing: AgentSwapState) -> dict[str, object]:
    return {
        **attrs.asdict(standing.agent),
        "verdict": standing.result.value,
        "reason": standing.reason or None,
    }
