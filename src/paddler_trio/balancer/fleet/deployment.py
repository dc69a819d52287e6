"""One deployment as a request sees it: its names in answers and lists, and the preset that is used.

The names of ``default`` are those of its model's file.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Final, NamedTuple, assert_never
from urllib.parse import urlsplit

import attrs

from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

LATEST: Final = ":latest"
"""The tag of a model that Ollama's programs name without one."""


@attrs.frozen(kw_only=True)
class Deployment:
    """One deployment as a request sees it.

    Args:
      name: of the deployment.
      id: its name in answers; of ``default`` its first alias, else the file's name without its
        ending; of a preset its own.
      aliases: other names of it, which neither show where agents keep the file nor the address it
        came from, which may hold a secret.
      state: what its agents are to serve; None while nothing is known of it.
    """

    name: str
    id: str
    aliases: tuple[str, ...] = ()
    state: AgentDesiredState | None = None
    extras: Extras = NO_EXTRAS
    digest: str = ""
    other_names: frozenset[str] = frozenset()
    """Names of the desired model and of others that answer, while this one is another of them:
    requests may use them."""
    answers_with: str = ""
    """The digest of what answers; empty if that is what is desired, or nothing does."""
    preset: Preset | None = None
    """Under which requests for it are answered."""

    def under(self, preset: Preset) -> Deployment:
        """Return the preset as a model of its own."""
        return attrs.evolve(self, id=preset.name, aliases=(), preset=preset)

    @property
    def shown_digest(self) -> str:
        """Return what names the model and all its settings, a preset included."""
        own = self.answers_with or self.digest
        if self.preset is None:
            return own
        return hashlib.sha256(own.encode() + self.preset.canonical).hexdigest()

    def is_allowed(self, allowed: frozenset[str] | None) -> bool:
        """Return whether a key for these deployments and presets may use it; None: it may use
        all."""
        names = {self.name} if self.preset is None else {self.name, self.id}
        return allowed is None or not names.isdisjoint(allowed)

    @property
    def is_empty(self) -> bool:
        """It has no model."""
        return self.state is not None and isinstance(self.state.model, NoModel)

    @property
    def is_served(self) -> bool:
        """It is one to choose: ``default`` is there without a model too, and then it is none."""
        if self.name == DEFAULT_DEPLOYMENT:
            return self.state is not None and not self.is_empty
        return not self.is_empty

    @property
    def generates_tokens(self) -> bool:
        """False while it makes embeddings."""
        return self.state is None or not self.state.inference_parameters.enable_embeddings

    def is_called(self, name: str) -> bool:
        if self.preset is not None:
            return name == self.id
        return name in (self.id, self.name) or name in self.aliases or name in self.other_names

    def name_for(self, asked: str | None) -> str:
        """Return the name of what answers: the one that was asked for, if it is one of its own, or
        none that is known."""
        return self.id if asked is None or asked in self.other_names else asked


class ChosenPreset(NamedTuple):
    """A preset that a request has named, and the deployment that it is of."""

    deployment: str
    preset: Preset


def names_of(model: DesiredModel) -> tuple[str, tuple[str, ...]]:
    """Return the name of ``default`` that has this model, and the other names of it."""
    match model:
        case NoModel():
            return "none", ()
        case LocalToAgent(path):
            return _names(path)
        case UrlModel(url):
            return _names(urlsplit(url).path)
        case HuggingFaceModel(filename, repo_id, _):
            return _names(filename, f"{repo_id}/{filename}", repo_id)
        case _:
            assert_never(model)


def _names(file: str, *others: str) -> tuple[str, tuple[str, ...]]:
    name = PurePosixPath(file).name
    own = name.removesuffix(".gguf") or name
    return own, tuple(dict.fromkeys(n for n in (name, *others) if n and n != own))
