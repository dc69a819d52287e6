"""``hf:org/repo`` and ``hf:org/repo:QUANT``: which files these are now.

It is decided here, before the desired state is stored, and the commit is stored with it: every
agent loads the same file, a later push to the repository changes nothing by itself, and a Paddler
agent understands the state. The hub is asked from this machine, with its HF_TOKEN and HF_ENDPOINT;
without the hub, what this machine's Hugging Face cache has is chosen from.
"""

from __future__ import annotations

import trio
import typer

from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_choice import choose, quantisations
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import HubRepository
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, NoModel


def chosen_files(
    repository: HubRepository,
) -> tuple[HuggingFaceModel, HuggingFaceModel | NoModel]:
    """The model's file, the first if it has several, and the projection's.

    Errors:
      typer.BadParameter: the repository has no such quantisation, or no model.
      DownloadError: the hub cannot be asked, or refuses.
    """
    download = ModelDownload(HubSettings.from_environment(), lambda progress: None)
    listing = trio.run(download.listing, repository.repo_id, repository.revision)
    choice = choose(listing.files, repository.quantisation)
    if choice is None:
        found = ", ".join(quantisations(listing.files)[:40])
        wanted = repository.quantisation
        problem = "no GGUF model" if wanted is None else f"no quantisation {wanted}"
        raise typer.BadParameter(
            f"{repository.repo_id} has {problem}" + (f"; it has {found}" if found else "")
        )

    def file(name: str) -> HuggingFaceModel:
        return HuggingFaceModel(filename=name, repo_id=repository.repo_id, revision=listing.commit)

    return file(choice.model), NoModel() if choice.projection is None else file(choice.projection)
