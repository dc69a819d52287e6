"""The order of a command about models: its model, its settings, and how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs
import typer

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.cli.model.model_extras import (
    extras_in,
)
from paddler_trio.cli.model.model_parameters import (
    changed_extras,
    changed_parameters,
    given_parameters,
)
from paddler_trio.cli.model.model_source import model_of
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import HubRepository
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import Extras


@attrs.frozen(kw_only=True)
class ModelRunOptions:
    """The order of a command line; None keeps what is desired now.

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
    """Read the state that a balancer stores; BalancerRefusedError if it is of another version."""
    try:
        return structure(raw, BalancerDesiredState)
    except WireError as error:
        raise BalancerRefusedError(
            200, f"the balancer's desired state is of another version: {error}"
        ) from error
