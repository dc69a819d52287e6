"""Find the models of a cache that a source selects; nothing is read but links that are followed.

A source without ``@revision`` selects all revisions, a repository all of its files, with a
quantisation those of it. What ``model list`` prints as a source selects exactly that.
"""

from __future__ import annotations

import attrs

from paddler_trio.models.cache.cache_inventory import CachedModel, HubOrigin
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.hub.hub_choice import is_quantised, part_names
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import (
    DEFAULT_REVISION,
    HubRepository,
    UnknownSourceError,
    reference_of,
    text_of,
)
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)


@attrs.frozen
class SourcePattern:
    """A source that selects models. ``revision``: None selects all."""

    text: str
    reference: DesiredModel | HubRepository
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> SourcePattern:
        """Parse a source; UnknownSourceError if ``text`` names none."""
        reference = reference_of(text)
        if isinstance(reference, NoModel):
            raise UnknownSourceError(f"{text!r} is no model")
        revision = getattr(reference, "revision", None)
        is_named = not text.startswith("hf:") or "@" in text
        return cls(text, reference, revision if is_named else None)

    @classmethod
    def of(cls, model: DesiredModel) -> SourcePattern:
        """Return the pattern of exactly this model, at its revision."""
        return cls(text_of(model), model, getattr(model, "revision", DEFAULT_REVISION))

    def matches(self, model: CachedModel, settings: HubSettings) -> bool:
        """Return whether it selects ``model``."""
        if self.text == model.source:
            return True
        match self.reference:
            case HubRepository() | HuggingFaceModel():
                return model.origin is not None and self.selects_origin(model.origin)
            case UrlModel(url):
                return _is_at(model, settings, url)
            case LocalToAgent(path):
                return any(path in {str(p.path), str(p.path.resolve())} for p in model.places)
            case NoModel():
                return False

    def selects_origin(self, origin: HubOrigin) -> bool:
        """Return whether it selects the model of a hub whose first file this is."""
        if self.revision is not None and self.revision not in {origin.commit, *origin.revisions}:
            return False
        match self.reference:
            case HubRepository(repo_id, quantisation):
                return origin.repo_id == repo_id and (
                    quantisation is None or is_quantised(origin.filename, quantisation)
                )
            case HuggingFaceModel(filename, repo_id):
                return origin.repo_id == repo_id and origin.filename == part_names(filename)[0]
            case _:
                return False


def _is_at(model: CachedModel, settings: HubSettings, url: str) -> bool:
    try:
        path = UrlFile.of(settings.url_cache, url.partition("#")[0]).path
    except ValueError:
        return False
    return any(place.path == path for place in model.places)
