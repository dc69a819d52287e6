"""The order of a command about models: its model, its settings, and how to answer.

Inference parameters from flags and from a file, checked and laid over those in force.

What is given nowhere keeps the value that the desired state has now. Two of them may be ``auto``:
then each agent chooses, and the number in the desired state stays for those that cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import attrs
import typer

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.model.given_file import text_of_file
from paddler_trio.cli.model.model_extras import (
    extras_in,
)
from paddler_trio.errors import WireError
from paddler_trio.models.model_reference import HubRepository, UnknownSourceError, reference_of
from paddler_trio.wire import toml_text
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    InferenceParameters,
    LocalToAgent,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import NOTHING_AUTOMATIC, Extras

FORMS = "a path on the agents, https://..., hf:org/repo[:QUANT], hf:org/repo/file@revision, or none"


def model_of(source: str) -> DesiredModel | HubRepository:
    """Return the model that ``source`` names; typer.BadParameter says what is wrong with it.

    A path is one on the agents: an absolute one as it is, a relative one only if it exists here,
    because an agent runs in a directory of its own.
    """
    try:
        model = reference_of(source)
    except UnknownSourceError as error:
        hint = "" if source else f": write {FORMS}"
        raise typer.BadParameter(f"{error}{hint}") from error
    if not isinstance(model, LocalToAgent):
        return model
    path = Path(model.path)
    if path.is_absolute():
        return model
    if not path.exists():
        raise typer.BadParameter(
            f"{source!r} is not here, and an agent would look for it in a directory of its own: "
            "write the absolute path that the file has on the agents"
        )
    if path.is_dir():
        raise typer.BadParameter(f"{source!r} is a folder: name the .gguf file in it")
    return LocalToAgent(str(path.resolve()))


AUTO: Final = "auto"
AUTOMATIC: Final = ("context_size", "n_gpu_layers")
"""What agents can choose by themselves."""


def given_parameters(flags: Mapping[str, object], file: Path | None) -> Mapping[str, object]:
    """The parameters of the file with those of the flags over them, checked.

    Args:
      flags: by field name; None where a flag was not given.

    Returns:
      By field name; ``AUTO`` where agents shall choose.

    Raises:
      typer.BadParameter: a file that cannot be read, a key that is no parameter, or a value
        outside its range.
    """
    in_file = {} if file is None else parameters_of_file(file)
    in_flags = {
        name: _number(name, value) if name in AUTOMATIC else value
        for name, value in flags.items()
        if value is not None
    }
    # judged one by one, before anything is asked of a balancer: a refusal names the culprit
    for name, value in in_file.items():
        _judge(name, value, hint="--file", label=f"{file}: {name}: ")
    for name, value in in_flags.items():
        _judge(name, value, hint=f"--{name.replace('_', '-')}")
    return in_file | in_flags


def changed_parameters(
    current: InferenceParameters, given: Mapping[str, object]
) -> InferenceParameters:
    """``current`` with what was given and judged; what is automatic keeps its number."""
    fields = unstructure(current)
    assert isinstance(fields, dict)
    numbers = {name: value for name, value in given.items() if not _is_auto(name, value)}
    return structure({**fields, **numbers}, InferenceParameters)


def changed_extras(current: Extras, given: Mapping[str, object]) -> Extras:
    """``current`` with what was given as ``auto``; a number takes that back."""
    asked = {name: given[name] == AUTO for name in AUTOMATIC if name in given}
    automatic = attrs.evolve(current.automatic, **asked)
    return attrs.evolve(current, auto=None if automatic == NOTHING_AUTOMATIC else automatic)


def _is_auto(name: str, value: object) -> bool:
    return name in AUTOMATIC and value == AUTO


def _number(name: str, text: object) -> object:
    """Return what stands behind a flag that takes a number or ``auto``."""
    if text == AUTO or not isinstance(text, str):
        return text
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor auto",
            param_hint=f"--{name.replace('_', '-')}",
        ) from error


def _judge(name: str, value: object, *, hint: str, label: str = "") -> None:
    if _is_auto(name, value):
        return
    try:
        changed_parameters(InferenceParameters(), {name: value})
    except WireError as error:
        problem = str(error).removesuffix(f" @ $.{name}")
        raise typer.BadParameter(f"{label}{problem}", param_hint=hint) from error


def parameters_of_file(file: Path) -> dict[str, object]:
    """Read a ``.toml`` or ``.json`` file; typer.BadParameter names what is wrong with it."""
    hint = "--file"
    text = text_of_file(file, hint)
    try:
        if file.suffix == ".toml":
            given: object = toml_text.loads(text)
        elif file.suffix == ".json":
            given = json.loads(text)
        else:
            raise typer.BadParameter(f"{file} is neither .toml nor .json", param_hint=hint)
    except RecursionError as error:
        raise typer.BadParameter(f"{file} is nested too deeply", param_hint=hint) from error
    except ValueError as error:  # of both parsers
        raise typer.BadParameter(f"{file}: {error}", param_hint=hint) from error
    if not isinstance(given, dict):
        raise typer.BadParameter(f"{file} holds no parameters by name", param_hint=hint)
    known = parameter_names()
    for key in given:
        if key not in known:
            raise typer.BadParameter(
                f"{file}: {key!r} is no parameter; there are {', '.join(sorted(known))}",
                param_hint=hint,
            )
    return given


def parameter_names() -> list[str]:
    """The fields of the inference parameters."""
    return [field.name for field in attrs.fields(InferenceParameters)]


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
