"""What ``model show``, ``model set`` and ``model swap`` do, once the command line is understood."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs
import typer
from rich.table import Table
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.exit_codes import DONE, FAILED, TIMED_OUT
from paddler_trio.cli.fleet.fleet_client import FleetClient
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.cli.model.memory_words import chosen_words
from paddler_trio.cli.model.model_change import Change, changes, described
from paddler_trio.cli.model.model_extras import (
    described_extras,
    extras_changes,
    extras_in,
    extras_of,
    plain_extras,
)
from paddler_trio.cli.model.model_parameters import (
    changed_extras,
    changed_parameters,
    given_parameters,
)
from paddler_trio.cli.model.model_source import model_of
from paddler_trio.cli.swap.swap_display import wait_for_fleet
from paddler_trio.cli.swap.swap_progress import (
    AgentSwapState,
    Outcome,
    SwapProgress,
    SwapResult,
    by_id,
)
from paddler_trio.cli.terminal import print_json, printable, stderr, stdout
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import HubRepository, text_of
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    NoModel,
    applicable_state,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras, extended_digest

SHORT_DIGEST = 12
CODES = {Outcome.ALL_SERVE: DONE, Outcome.TIMEOUT: TIMED_OUT}


@attrs.frozen(kw_only=True)
class ModelRunOptions:
    """What the command line asks for; None keeps what is desired now.

    ``template``: a chat template to use, or False for the model's own.
    """

    model: DesiredModel | None
    projection: DesiredModel | None
    parameters: Mapping[str, object]
    template: ChatTemplate | Literal[False] | None
    extras: Extras | None = None

    @classmethod
    def read(
        cls,
        *,
        source: str,
        projection: str | None,
        flags: Mapping[str, object],
        file: Path | None,
        template_file: Path | None,
        no_template: bool,
        extras_file: Path | None = None,
    ) -> ModelRunOptions:
        """Understand the command line; typer.BadParameter for whatever is wrong with it."""
        if template_file is not None and no_template:
            raise typer.BadParameter(
                "give one of them", param_hint="--chat-template / --no-chat-template"
            )
        template: ChatTemplate | Literal[False] | None = None
        if template_file is not None:
            template = template_in(template_file)
        elif no_template:
            template = False
        model, projection_model = sources_of(source, projection)
        return cls(
            model=model,
            projection=projection_model,
            parameters=given_parameters(flags, file),
            template=template,
            extras=None if extras_file is None else extras_in(extras_file),
        )

    def extras_over(self, current: Extras) -> Extras:
        """The new extras."""
        given = current if self.extras is None else self.extras
        return changed_extras(given, self.parameters)

    def applied_to(self, current: BalancerDesiredState) -> BalancerDesiredState:
        """The new desired state."""
        new = attrs.evolve(
            current,
            model=current.model if self.model is None else self.model,
            multimodal_projection=(
                current.multimodal_projection if self.projection is None else self.projection
            ),
            inference_parameters=changed_parameters(current.inference_parameters, self.parameters),
        )
        match self.template:
            case ChatTemplate():
                return attrs.evolve(
                    new, chat_template_override=self.template, use_chat_template_override=True
                )
            case False:
                return attrs.evolve(new, use_chat_template_override=False)
            case _:
                return new


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
    console.print(_what_happens(different, desired, digest))

    told = _told_storing(desired, extras, digest, different)
    code = DONE
    fleet = FleetClient(client)
    # to give up a model is no rollout: it is over for the balancer when all have been told
    is_rolled_out = timeout_s is not None and not isinstance(desired.model, NoModel)
    if timeout_s is not None and is_rolled_out and fleet.shows_rollout("default"):
        from paddler_trio.cli.swap.swap_rollout import wait_for_swap

        code = wait_for_swap(
            fleet,
            desired,
            extras,
            digest,
            is_new=bool(different),
            timeout_s=timeout_s,
            told=told,
            as_json=as_json,
        )
    elif timeout_s is not None:
        progress = SwapProgress(
            digest,
            wants_model=not isinstance(desired.model, NoModel),
            before=before,
            stored_at_s=stored_at_s,
        )
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


def sources_of(source: str, projection: str | None) -> tuple[DesiredModel, DesiredModel | None]:
    """The model and its projection; None keeps the projection that is desired now.

    A repository brings its own projection, or none, unless one is named.
    """
    named = None if projection is None else _named("--projection", projection)
    if isinstance(named, HubRepository):
        raise typer.BadParameter(
            f"{projection!r} names no file: write hf:org/repo/file", param_hint="--projection"
        )
    model = _named("SOURCE", source)
    if not isinstance(model, HubRepository):
        return model, named
    from paddler_trio.cli.model.hub_resolution import chosen_files

    try:
        chosen, its_projection = chosen_files(model)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="SOURCE") from error
    return chosen, its_projection if named is None else named


def _named(hint: str, source: str) -> DesiredModel | HubRepository:
    try:
        return model_of(source)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint=hint) from error


def template_in(file: Path) -> ChatTemplate:
    """The template in a file, as it stands; typer.BadParameter."""
    return ChatTemplate(text_of_file(file, "--chat-template"))


def state_of(raw: Mapping[str, object]) -> BalancerDesiredState:
    """What a balancer stores; BalancerRefusedError if it is of another version."""
    try:
        return structure(raw, BalancerDesiredState)
    except WireError as error:
        raise BalancerRefusedError(
            200, f"the balancer's desired state is of another version: {error}"
        ) from error


def _plain(state: BalancerDesiredState) -> dict[str, object]:
    plain = unstructure(state)
    assert isinstance(plain, dict)
    return plain


def _what_happens(different: list[Change], desired: BalancerDesiredState, digest: str) -> str:
    if not different:
        return "already desired: nothing to do"
    stored = f"stored as {digest[:SHORT_DIGEST]}: "
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
    source = text_of(desired.model)
    names = {
        result: ", ".join(s.agent.label for s in standings if s.result is result)
        for result in SwapResult
    }
    match outcome:
        case Outcome.ALL_SERVE:
            chosen = "".join(
                f"\n{standing.agent.label} chose {words}"
                for standing in standings
                if (words := chosen_words(standing.agent))
            )
            return f"served by {names[SwapResult.SERVING]}: {source}{chosen}"
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
