"""The work of ``paddler-trio fleet``, once the command line and the file are understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import attrs
from rich.console import Console
from rich.text import Text

from paddler_trio.balancer.fleet.fleet_diff import changes_between
from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.fleet.fleet_client import (
    CONFLICT,
    DeploymentChange,
    DeploymentView,
    FleetClient,
    FleetStateView,
    RevisionView,
)
from paddler_trio.cli.fleet.fleet_words import DeploymentDiff, diffs, state_in
from paddler_trio.cli.fleet.rollout_display import COLOURS, words_of
from paddler_trio.cli.fleet.rollout_progress import RolloutProgress
from paddler_trio.cli.fleet.rollout_run import Waited, wait_and_show
from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.cache_display import when_words
from paddler_trio.cli.swap.swap_rollout import preview
from paddler_trio.cli.terminal import (
    DONE,
    print_json,
    print_lines,
    printable,
    shown_width,
    stderr,
    stdout,
)
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState
from paddler_trio.wire.trio.default_deployment import desired_of
from paddler_trio.wire.trio.fit_messages import FitQuestion
from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec, FleetState
from paddler_trio.wire.trio.fleet_toml import FleetFile

NOTHING: Final = "nothing is deployed; `paddler-trio fleet apply FILE` or `model swap` changes that"


def apply_fleet(
    management: ManagementClient,
    wanted: FleetFile,
    *,
    note: str,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Store the fleet and, unless ``timeout_s`` is None, wait for it; returns the exit code."""
    client = FleetClient(management)
    before = client.state()
    plain = _plain(wanted.state)
    changes = client.changes(plain)
    different = diffs(changes, state_in(before.revision), wanted.state)
    console = stderr() if as_json else stdout()
    _print_diffs(console, different)
    revision = before.revision
    if changes:
        revision = _stored(client, plain, note=note, expected=before.revision.revision)
        console.print(f"stored as revision {revision.revision}")
    else:
        console.print(f"revision {revision.revision} is this already: nothing to do")
    specs = _waited_for(changes, wanted.state)
    if not changes and timeout_s is not None:
        specs = _under_way(client, wanted.state)
    told = {"stored": bool(changes), **_told(revision), "changes": _plain_diffs(different)}
    return _finish(
        client,
        revision,
        specs,
        told,
        unchanged=_unchanged(changes, specs),
        timeout_s=timeout_s,
        as_json=as_json,
    )


def diff_fleet(management: ManagementClient, wanted: FleetFile, *, as_json: bool) -> None:
    """Print what storing the fleet would change."""
    client = FleetClient(management)
    before = client.state()
    different = diffs(client.changes(_plain(wanted.state)), state_in(before.revision), wanted.state)
    if as_json:
        print_json({**_told(before.revision), "changes": _plain_diffs(different)})
    elif different:
        _print_diffs(stdout(), different)
    else:
        stdout().print(f"revision {before.revision.revision} is this already")


def preview_fleet(management: ManagementClient, wanted: FleetFile, *, as_json: bool) -> int:
    """Print what storing the fleet would change, and what that would do to each agent; returns the
    exit code: 1 unless all models fit. Each deployment is judged as if the others stayed."""
    client = FleetClient(management)
    before = client.state()
    different = diffs(client.changes(_plain(wanted.state)), state_in(before.revision), wanted.state)
    told: list[dict[str, object]] = []
    code = DONE
    if not different and not as_json:
        stdout().print(f"revision {before.revision.revision} is this already: nothing to do")
    for each, plain in zip(different, _plain_diffs(different), strict=True):
        spec = wanted.state.find(each.name)
        if not as_json:
            _print_diffs(stdout(), [each])
        if spec is None:
            told.append(plain)
            continue
        made = preview(
            management,
            FitQuestion(state=_desired(spec), extras=spec.extras, slots=spec.slots),
            deployment=each.name,
            change=each.change,
            where=spec.where,
            rolls=True,
            max_unavailable=spec.rollout.max_unavailable,
        )
        code = max(code, made.exit_code)
        told.append({**plain, **made.plain()})
        if not as_json:
            made.show()
    if as_json:
        print_json({**_told(before.revision), "changes": told})
    return code


def undo_fleet(
    management: ManagementClient, *, to: int | None, timeout_s: float | None, as_json: bool
) -> int:
    """Go back to the revision ``to``, None for the one before, and wait unless ``timeout_s`` is
    None; returns the exit code."""
    client = FleetClient(management)
    before = client.state()
    revision = client.undo(to=to, expected_revision=before.revision.revision)
    old, new = state_in(before.revision), _state_of(client, revision)
    changes = [
        DeploymentChange(deployment=each.deployment, change=each.change, fields=list(each.fields))
        for each in changes_between(old, new)
    ]
    different = diffs(changes, old, new)
    console = stderr() if as_json else stdout()
    _print_diffs(console, different)
    is_new = revision.revision != before.revision.revision  # an equal state keeps its revision
    if is_new:
        console.print(f"stored as revision {revision.revision}: {revision.note}".removesuffix(": "))
    else:
        console.print(f"revision {revision.revision} is this already: nothing to do")
    told = {"stored": is_new, **_told(revision), "changes": _plain_diffs(different)}
    specs = _waited_for(changes, new)
    return _finish(
        client,
        revision,
        specs,
        told,
        unchanged=_unchanged(changes, specs),
        timeout_s=timeout_s,
        as_json=as_json,
    )


def show_fleet(management: ManagementClient, *, wide: bool, as_json: bool) -> None:
    """Print the revision in force and its deployments."""
    view = FleetClient(management).state()
    if as_json:
        print_json(view.raw)
        return
    console = stdout()
    console.print(Text(printable(_revision_words(view.revision))))
    specs = state_in(view.revision).deployments
    if not specs:
        console.print(NOTHING)
        return
    print_lines(table(_deployment_columns(view, specs), specs, shown_width(wide=wide)))


def _deployment_columns(
    view: FleetStateView, specs: Sequence[DeploymentSpec]
) -> list[Column[DeploymentSpec]]:
    """Return the columns of deployments; wishes that none of them has need none."""

    def phase(spec: DeploymentSpec) -> Text:
        return _phase(view.deployment(spec.name))

    def wish(
        title: str, importance: int, text: Callable[[DeploymentSpec], str]
    ) -> list[Column[DeploymentSpec]]:
        if not any(text(spec) for spec in specs):
            return []
        return [Column(title, 0, lambda spec: text(spec) or "-", importance=importance)]

    return [
        Column("deployment", 0, lambda spec: spec.name),
        Column("model", 24, lambda spec: text_of(spec.model), importance=1, keeps_end=True),
        Column(
            "replicas", 0, lambda spec: _replicas(view.deployment(spec.name), spec), is_right=True
        ),
        Column("phase", 20, lambda spec: phase(spec).plain, style=lambda s: str(phase(s).style)),
        *wish("aliases", 4, lambda spec: ", ".join(spec.aliases)),
        *wish("where", 3, lambda spec: ", ".join(spec.where)),
        *wish("slots", 2, lambda spec: "" if spec.slots is None else str(spec.slots)),
        *wish("idle ttl", 5, lambda s: "" if s.idle_ttl is None else f"{s.idle_ttl:g} s"),
        *wish("priority", 5, lambda spec: str(spec.priority or "")),
    ]


def show_history(management: ManagementClient, *, wide: bool, as_json: bool) -> None:
    """Print the revisions that are kept, the newest first."""
    revisions, raw = FleetClient(management).history()
    if as_json:
        print_json(raw)
        return
    columns: list[Column[RevisionView]] = [
        Column("revision", 0, lambda each: str(each.revision), is_right=True),
        Column("when", 0, lambda each: _when(each.time)),
        Column("author", 0, lambda each: each.author or "-", importance=1),
        Column(
            "deployments",
            20,
            lambda each: ", ".join(str(spec.get("name")) for spec in each.specs) or "none",
            importance=2,
        ),
        Column("note", 20, lambda each: each.note or "-", importance=1),
    ]
    if any(each.failed for each in revisions):
        failed: Column[RevisionView] = Column(
            "failed",
            0,
            lambda each: ", ".join(each.failed) or "-",
            style=lambda each: COLOURS["failed"] if each.failed else "",
        )
        columns.insert(4, failed)
    print_lines(table(columns, revisions, shown_width(wide=wide)))


# ------------------------------------------------------------------ applying


def _stored(
    client: FleetClient, plain: Mapping[str, object], *, note: str, expected: int
) -> RevisionView:
    try:
        return client.apply(plain, note=note, expected_revision=expected)
    except BalancerRefusedError as error:
        if error.status != CONFLICT:
            raise
        raise BalancerRefusedError(
            error.status,
            f"{error}; look at `paddler-trio fleet diff FILE`, and apply again",
        ) from error


def _finish(
    client: FleetClient,
    revision: RevisionView,
    specs: Mapping[str, DeploymentSpec | None],
    told: dict[str, object],
    *,
    unchanged: frozenset[str],
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Wait for ``specs`` unless ``timeout_s`` is None, and print what there is to tell."""
    waited = Waited([], [])
    if timeout_s is not None:
        progress = RolloutProgress(
            revision.revision,
            {name: None if spec is None else _plain(spec) for name, spec in specs.items()},
            unchanged=unchanged,
        )
        waited = wait_and_show(
            client,
            progress,
            timeout_s=timeout_s,
            needs_agents=any(spec is not None and _needs_agents(spec) for spec in specs.values()),
        )
        told |= waited.plain()
        waited.tell()
    if as_json:
        print_json(told)
    elif timeout_s is not None and specs and waited.exit_code == DONE:
        stdout().print(Text(printable(f"complete: {', '.join(specs)}")))
    return waited.exit_code


def _waited_for(
    changes: Sequence[DeploymentChange], state: FleetState
) -> dict[str, DeploymentSpec | None]:
    return {each.deployment: state.find(each.deployment) for each in changes if each.takes_time}


def _unchanged(changes: Sequence[DeploymentChange], names: Iterable[str]) -> frozenset[str]:
    """Deployments that serve what they did before."""
    return frozenset(names) - {each.deployment for each in changes if each.change != "none"}


def _under_way(client: FleetClient, state: FleetState) -> dict[str, DeploymentSpec | None]:
    """Return what an earlier command stored and is not there yet."""
    live = {each.deployment for each in client.rollouts().rollouts if each.is_live}
    return {spec.name: spec for spec in state.deployments if spec.name in live}


def _needs_agents(spec: DeploymentSpec) -> bool:
    return not spec.is_empty and (spec.replicas.is_all or spec.replicas.least > 0)


def _state_of(client: FleetClient, revision: RevisionView) -> FleetState:
    """Return the state of the revision that the balancer answered with, which may leave it out."""
    if revision.state:
        return state_in(revision)
    return state_in(client.state().revision)


# ------------------------------------------------------------------- showing


def _print_diffs(console: Console, different: Sequence[DeploymentDiff]) -> None:
    for each in different:
        console.print(Text(printable(each.headline), style="bold"))
        for field in each.fields:
            console.print(Text(printable(f"  {field.field}: {field.old} -> {field.new}")))


def _plain_diffs(different: Sequence[DeploymentDiff]) -> list[dict[str, object]]:
    return [
        {
            "deployment": each.name,
            "change": each.change,
            "fields": [attrs.asdict(field) for field in each.fields],
        }
        for each in different
    ]


def _told(revision: RevisionView) -> dict[str, object]:
    return {"revision": revision.revision}


def _revision_words(revision: RevisionView) -> str:
    words = f"revision {revision.revision}"
    if revision.time:
        words += f", {_when(revision.time)}"
    if revision.author:
        words += f", by {revision.author}"
    return f"{words}: {revision.note}" if revision.note else words


def _replicas(shown: DeploymentView | None, spec: DeploymentSpec) -> str:
    """``2/3 (1..3)``: serving, wanted now, and what the file says if that is another number."""
    if shown is None:
        return str(spec.replicas)
    wanted = "?" if shown.replicas.wanted is None else shown.replicas.wanted
    words = f"{shown.replicas.serving}/{wanted}"
    return words if str(wanted) == str(spec.replicas) else f"{words} ({spec.replicas})"


def _phase(shown: DeploymentView | None) -> Text:
    if shown is None:
        return Text("-")
    rollout = shown.rollout
    phase = rollout.phase if rollout is not None and rollout.is_live else shown.phase or "-"
    words = words_of(phase)
    if rollout is not None and rollout.is_live and rollout.reason:
        words += f": {rollout.reason}"
    return Text(printable(words), style=COLOURS.get(phase, ""))


def _when(time: str) -> str:
    try:
        return when_words(int(datetime.fromisoformat(time).timestamp()))
    except ValueError:
        return time or "?"


def _desired(spec: DeploymentSpec) -> BalancerDesiredState:
    """Return the desired state as agents are asked about it."""
    alone = attrs.evolve(spec, name=DEFAULT, aliases=())
    return desired_of(FleetState((alone,)), BalancerDesiredState.default())


def _plain(value: FleetState | DeploymentSpec) -> dict[str, object]:
    plain = unstructure(value)
    assert isinstance(plain, dict)
    return plain
