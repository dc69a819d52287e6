"""Which files of a store must stay: names that lead nowhere are no files, and no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddler_trio.models.hub.hub_cache import HubCache
from paddler_trio.models.pushed.pushed_model import Manifest, PushedFile
from paddler_trio.processes.model_store.store_layout import StoreLayout, desired_files
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel

COMMIT, SHA256 = "a" * 40, "b" * 64


def test_a_file_of_the_hub_and_one_that_was_pushed_are_found(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path)
    repository = HubCache(layout.hub).repository("org/repo")
    pointer = repository.pointer(COMMIT, "m.gguf")
    pointer.parent.mkdir(parents=True)
    pointer.symlink_to(os.path.relpath(repository.blob(SHA256), pointer.parent))
    manifest = Manifest((PushedFile("m.gguf", 7, SHA256),), None)
    layout.manifest(manifest.sha256).parent.mkdir(parents=True)
    layout.manifest(manifest.sha256).write_bytes(manifest.text)
    models: list[DesiredModel] = [
        HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision=COMMIT),
        UrlModel(manifest.source(manifest.files[0])),
    ]
    assert desired_files(layout, models) == {
        f"hub/models--org--repo/blobs/{SHA256}",
        f"pushed/manifests/{manifest.sha256}",
        f"pushed/blobs/{SHA256}",
    }


@pytest.mark.parametrize(
    "model",
    [
        UrlModel("store://sha256/."),
        UrlModel("store://sha256/./"),
        UrlModel("store://sha256/"),
        UrlModel("store:"),
        UrlModel("https://[::1/m.gguf"),
        HuggingFaceModel(
            filename="/".join(["d" * 250] * 20) + "/m.gguf", repo_id="org/repo", revision=COMMIT
        ),
    ],
)
def test_what_cannot_lie_in_a_store_is_no_error(tmp_path: Path, model: DesiredModel) -> None:
    assert desired_files(StoreLayout(tmp_path), [model]) == frozenset()


@pytest.mark.parametrize("text", [b"", b"null", b"{}", b'{"files":[{}],"projection":null}'])
def test_of_a_damaged_manifest_the_manifest_alone_is_known(tmp_path: Path, text: bytes) -> None:
    layout = StoreLayout(tmp_path)
    layout.manifest(SHA256).parent.mkdir(parents=True)
    layout.manifest(SHA256).write_bytes(text)
    found = desired_files(layout, [UrlModel(f"store://sha256/{SHA256}/m.gguf")])
    assert found == {f"pushed/manifests/{SHA256}"}
