"""A repository on the command line becomes a file at a commit before it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from hub_server import HubServer, Repository, hub_server
from paddler_trio.cli.model.model_order import ModelRunOptions
from paddler_trio.net.client.download_errors import SourceNotFoundError
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, NoModel

FILES = {
    name: name.encode()
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", "text/README.md")
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    repositories = {
        "org/vision": Repository(FILES),
        "org/text": Repository({"a-Q8_0-00001-of-00002.gguf": b"1", "README.md": b""}),
    }
    with hub_server(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.hub_url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


def read(source: str, projection: str | None = None) -> ModelRunOptions:
    return ModelRunOptions.read(
        source=source,
        projection=projection,
        flags={},
        file=None,
        template_file=None,
        no_template=False,
    )


def test_a_repository_becomes_its_file_its_projection_and_its_commit(hub: HubServer) -> None:
    commit = hub.repositories["org/vision"].commit
    options = read("hf:org/vision")
    assert options.model == HuggingFaceModel("m-Q4_K_M.gguf", "org/vision", commit)
    assert options.projection == HuggingFaceModel("mmproj-F16.gguf", "org/vision", commit)
    assert read("hf:org/vision:q8_0@main").model == HuggingFaceModel(
        "m-Q8_0.gguf", "org/vision", commit
    )
    assert read("hf:org/vision", "none").projection == NoModel()


def test_a_repository_without_a_projection_ends_the_old_one(hub: HubServer) -> None:
    options = read("hf:org/text")
    assert isinstance(options.model, HuggingFaceModel)
    assert options.model.filename == "a-Q8_0-00001-of-00002.gguf"
    assert options.projection == NoModel()


def test_what_names_a_file_asks_no_hub_and_keeps_the_projection(hub: HubServer) -> None:
    options = read("hf:org/vision/m-Q4_K_M.gguf")
    assert options.model == HuggingFaceModel("m-Q4_K_M.gguf", "org/vision", "main")
    assert options.projection is None
    assert hub.seen == []


def test_a_quantisation_that_is_not_there_names_those_that_are(hub: HubServer) -> None:
    with pytest.raises(typer.BadParameter, match="no quantisation Q5_0; it has Q4_K_M, Q8_0"):
        read("hf:org/vision:Q5_0")
    with pytest.raises(typer.BadParameter, match="names no file"):
        read("none", "hf:org/vision")
    with pytest.raises(SourceNotFoundError, match="no such repository"):
        read("hf:org/none")
