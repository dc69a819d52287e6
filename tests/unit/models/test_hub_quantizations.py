"""The models of a repository, as they are offered to those who choose one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.hub.hub_choice import choose
from paddler_trio.models.hub.hub_client import HubListing
from paddler_trio.models.hub.hub_lookup import (
    MAX_QUANTIZATIONS,
    ListedFile,
    Quantization,
    models_in,
)

COMMIT = "0" * 40
names = st.text("abFQ48_KM0-./", min_size=1, max_size=24)
paths = st.lists(names.map(lambda name: f"{name}.gguf"), max_size=12, unique=True)


def listing(*files: str) -> HubListing:
    """Each file has as many bytes as its path has characters."""
    return HubListing(COMMIT, files, {path: len(path) for path in files})


def test_each_quantisation_has_its_files_and_its_size_and_one_is_the_default() -> None:
    found = models_in(
        listing("README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix.gguf")
    )
    assert found.commit == COMMIT
    assert found.quantizations == (
        Quantization("Q8_0", (ListedFile("m-Q8_0.gguf", 11),), is_default=False),
        Quantization("Q4_K_M", (ListedFile("m-Q4_K_M.gguf", 13),), is_default=True),
    )
    assert [each.size_bytes for each in found.quantizations] == [11, 13]
    assert found.projections == (ListedFile("mmproj-F16.gguf", 15),)


def test_the_parts_of_a_model_are_one_quantisation_in_order() -> None:
    second, first = (f"big/m-Q4_K_M-0000{n}-of-00002.gguf" for n in (2, 1))
    (model,) = models_in(listing(second, first)).quantizations
    assert [file.path for file in model.files] == [first, second]
    assert model.size_bytes == 2 * len(first)
    assert model.is_default


def test_a_model_without_all_its_parts_is_not_offered() -> None:
    found = models_in(listing("m-Q4_K_M-00001-of-00002.gguf", "m-Q8_0.gguf"))
    assert [each.name for each in found.quantizations] == ["Q8_0"]


def test_a_size_that_is_not_known_is_none() -> None:
    files = ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")
    (model,) = models_in(HubListing(COMMIT, files, {files[0]: 5})).quantizations
    assert model.size_bytes is None
    assert model.files[1] == ListedFile(files[1], None)


def test_a_file_whose_name_ends_with_no_quantisation_has_its_own_name() -> None:
    (model,) = models_in(listing("model.gguf")).quantizations
    assert (model.name, model.is_default) == ("model", True)


def test_a_name_that_is_the_end_of_another_one_keeps_its_own_file() -> None:
    found = models_in(listing("m-BF16.gguf", "m-F16.gguf"))
    assert [(each.name, each.files[0].path) for each in found.quantizations] == [
        ("BF16", "m-BF16.gguf"),
        ("F16", "m-F16.gguf"),
    ]


@pytest.mark.parametrize("files", [[], ["README.md"], ["mmproj-Q8_0.gguf"]])
def test_a_repository_without_models_offers_none(files: list[str]) -> None:
    assert models_in(listing(*files)).quantizations == ()


def test_what_one_repository_may_list_is_bounded() -> None:
    found = models_in(listing(*(f"m-Q{n}.gguf" for n in range(10 * MAX_QUANTIZATIONS))))
    assert len(found.quantizations) == MAX_QUANTIZATIONS


@given(paths)
def test_the_default_is_what_a_repository_without_a_name_resolves_to(files: list[str]) -> None:
    found = models_in(listing(*files))
    chosen = choose(files)
    defaults = [each for each in found.quantizations if each.is_default]
    if chosen is None:
        assert found.quantizations == ()
    elif set(chosen.parts) <= set(files):
        (default,) = defaults
        assert tuple(file.path for file in default.files) == chosen.parts
    else:
        assert defaults == []
