"""Which files of a repository are a model: llama.cpp's ``-hf`` rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.hub.hub_choice import (
    HubChoice,
    choose,
    named_models,
    part_names,
    projection_for,
    quantisations,
    split_name,
    tag_of,
)

REPOSITORY = [
    ".gitattributes",
    "README.md",
    "m-BF16.gguf",
    "m-IQ2_XXS.gguf",
    "m-Q4_K_M.gguf",
    "m-Q8_0.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F32.gguf",
    "imatrix-Q4_K_M.gguf",
]
names = st.text("abcQ48_KM0-./", min_size=1, max_size=24)
paths = st.lists(names.map(lambda name: f"{name}.gguf"), max_size=12)


@pytest.mark.parametrize(
    ("quantisation", "model"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("q8_0", "m-Q8_0.gguf"),
        ("BF16", "m-BF16.gguf"),
        ("IQ2_XXS", "m-IQ2_XXS.gguf"),
    ],
)
def test_a_quantisation_is_found_in_any_case(quantisation: str | None, model: str) -> None:
    choice = choose(REPOSITORY, quantisation)
    assert choice is not None
    assert choice.model == model


def test_without_a_quantisation_the_order_is_q4_then_q8_then_the_first() -> None:
    without_q4 = [path for path in REPOSITORY if "Q4" not in path]
    first, second = choose(without_q4), choose([p for p in without_q4 if "Q8" not in p])
    assert first is not None
    assert second is not None
    assert (first.model, second.model) == ("m-Q8_0.gguf", "m-BF16.gguf")


def test_a_quantisation_that_is_not_there_is_no_choice() -> None:
    assert choose(REPOSITORY, "Q5_K_S") is None
    assert choose(["README.md"]) is None
    assert choose(["mmproj-Q4_K_M.gguf", "imatrix.gguf", "mtp-Q4_K_M.gguf"]) is None
    assert quantisations(REPOSITORY) == ("BF16", "IQ2_XXS", "Q4_K_M", "Q8_0")


def test_a_quantisation_is_text_and_no_pattern() -> None:
    assert choose(REPOSITORY, ".*") is None


@pytest.mark.parametrize(
    ("files", "quantisation", "model"),
    [
        (["n-BF16.gguf", "n-F16.gguf"], "F16", "n-F16.gguf"),
        (["n-F16.gguf", "n-BF16.gguf"], "bf16", "n-BF16.gguf"),
        (["n-BF16.gguf"], "F16", None),
        (["n-IQ4_XS.gguf", "n_q4_xs.gguf"], "Q4_XS", "n_q4_xs.gguf"),
        (["n-UD-Q5_K_XL.gguf", "n-Q5_K_XL.gguf"], "Q5_K_XL", "n-Q5_K_XL.gguf"),
        (["n-Q5_K_XL.gguf", "n-UD-Q5_K_XL.gguf"], "UD-Q5_K_XL", "n-UD-Q5_K_XL.gguf"),
        (["n-UD-Q5_K_XL.gguf"], "Q5_K_XL", "n-UD-Q5_K_XL.gguf"),
        (["n-UD-Q4_K_M.gguf", "n-Q4_K_M.gguf"], None, "n-Q4_K_M.gguf"),
        (["n-Q4_0-vision.gguf", "n-Q4_0.gguf"], "Q4_0", "n-Q4_0.gguf"),
        (["n-X-Tiny.gguf", "n-Tiny.gguf"], "tiny", "n-Tiny.gguf"),
        (["n-X-Tiny.gguf", "n-Tiny.gguf"], "X-Tiny", "n-X-Tiny.gguf"),
    ],
)
def test_what_was_asked_for_is_served_and_nothing_whose_name_ends_alike(
    files: list[str], quantisation: str | None, model: str | None
) -> None:
    choice = choose(files, quantisation)
    assert (None if choice is None else choice.model) == model


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["n-Tiny.gguf", "n-X-Tiny.gguf"], ["TINY", "X-TINY"]),
        (["n-UD-Q5_K_XL.gguf", "n-Q5_K_XL.gguf"], ["UD-Q5_K_XL", "Q5_K_XL"]),
        (["m-8B-Q4_0.gguf", "m-70B-Q4_0.gguf"], ["8B-Q4_0", "70B-Q4_0"]),
        (["m-Q4_0.gguf", "m-q4_0.gguf"], ["Q4_0", "m-q4_0.gguf"]),
        (["Q4_0/m-Q4_0-00001-of-00002.gguf", "Q4_0/m-Q4_0-00002-of-00002.gguf"], ["Q4_0"]),
    ],
)
def test_no_model_hides_another_one(files: list[str], names: list[str]) -> None:
    assert list(named_models(files)) == names


@pytest.mark.parametrize(
    ("path", "is_model"),
    [
        ("smtp-helper-Q4_0.gguf", True),
        ("Qwen3-MTP-Q4_0.gguf", True),
        ("n-mtp-Q4_0.gguf", True),
        ("n-imatrix-Q4_0.gguf", True),
        ("n-Q4_0-imatrix.gguf", True),
        ("imatrixed-7b.gguf", True),
        ("n-mmproj-merged-Q4_0.gguf", True),
        ("ammproject-7b-Q4_0.gguf", True),
        ("mmproj/n-Q4_0.gguf", True),
        ("mtp-n-Q4_0.gguf", False),
        ("imatrix.gguf", False),
        ("imatrix_unsloth.gguf", False),
        ("n.imatrix.gguf", False),
        ("n-mmproj.gguf", False),
        ("mmproj-n-Q4_0.gguf", False),
        ("n.mmproj-fp16.gguf", False),
        ("n-mmproj-model-F16.gguf", False),
    ],
)
def test_a_word_inside_its_name_does_not_hide_a_model(path: str, is_model: bool) -> None:
    choice = choose([path])
    assert (choice is not None) is is_model
    other = choose([path, "o-Q4_K_M.gguf"])
    assert other is not None
    assert (other.projection == path) is (not is_model and "mmproj" in path)


@given(paths)
def test_each_name_chooses_its_own_file(files: list[str]) -> None:
    for name, path in named_models(files).items():
        if tag_of(path):
            choice = choose(files, name)
            assert choice is not None
            assert choice.model == path


def test_a_split_model_is_named_by_its_first_part() -> None:
    parts = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert choose([*reversed(parts), "mmproj.gguf"]) == HubChoice(
        parts[0], tuple(parts), "mmproj.gguf"
    )


def test_the_projection_is_in_the_deepest_folder_above_and_has_the_closest_bits() -> None:
    assert projection_for("m-Q4_K_M.gguf", REPOSITORY) == "mmproj-BF16.gguf"
    assert projection_for("m-F32.gguf", REPOSITORY) == "mmproj-F32.gguf"
    files = ["mmproj-Q4_0.gguf", "a/mmproj-F32.gguf", "b/mmproj-Q4_0.gguf", "a/b/mmproj-Q4_0.gguf"]
    assert projection_for("a/m-Q4_0.gguf", files) == "a/mmproj-F32.gguf"
    assert projection_for("c/m-Q4_0.gguf", files) == "mmproj-Q4_0.gguf"
    assert projection_for("m.gguf", ["a/mmproj.gguf"]) is None


def test_a_name_may_not_claim_a_million_parts() -> None:
    assert part_names("m-00001-of-99999.gguf") == ("m-00001-of-99999.gguf",)


@given(paths, st.none() | st.sampled_from(["Q4_K_M", "Q8_0", "a", "-"]))
def test_a_choice_is_a_first_part_of_the_repository(
    files: list[str], quantisation: str | None
) -> None:
    choice = choose(files, quantisation)
    if choice is None:
        return
    assert choice.model in files
    assert choice.parts[0].lower() == choice.model.lower() or len(choice.parts) == 1
    split = split_name(choice.model)
    assert split is not None
    assert split.count <= 1 or split.index == 1
    assert choice.projection is None or choice.projection in files
    assert choice.projection != choice.model


@given(st.text("ab-.", min_size=1), st.integers(2, 999), st.data())
def test_every_part_names_all_parts(prefix: str, count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(1, count))
    parts = part_names(f"{prefix}-{index:05}-of-{count:05}.gguf")
    assert len(parts) == len(set(parts)) == count
    assert part_names(parts[index - 1]) == parts
    assert [split.index for part in parts if (split := split_name(part))] == [*range(1, count + 1)]


@given(paths)
def test_what_fits_no_quantisation_is_still_found_without_one(files: list[str]) -> None:
    if quantisations(files):
        assert choose(files) is not None
