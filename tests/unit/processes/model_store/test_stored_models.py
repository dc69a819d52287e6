"""Which files make up a model of the store, and which models go when it is pruned."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.processes.model_store.inventory import StoredFile, StoredModel, stored_models
from paddler_trio.processes.model_store.retention import LEFT_GRACE_S, prune_plan
from paddler_trio.wire.trio.cache_commands import Prune

COMMIT, OTHER, HEX = "a" * 40, "b" * 40, "c" * 64
NOW_S = 2_000_000_000.0


def file(key: str, *names: str, used_ago_s: float = 0.0, is_whole: bool = True) -> StoredFile:
    return StoredFile(key, names, 10, None, True, is_whole, NOW_S - used_ago_s)


def sources(models: list[StoredModel]) -> dict[str, list[str]]:
    return {model.source: [each.key for each in model.files] for model in models}


def test_parts_are_one_model_and_commits_that_share_a_file_are_two() -> None:
    part = "hf:org/repo/q/m-0000{}-of-00002.gguf@{}".format
    files = [
        file("one", part(1, COMMIT), part(1, OTHER)),
        file("two", part(2, COMMIT)),
        file("two, changed", part(2, OTHER)),
    ]
    assert sources(stored_models(files)) == {
        part(1, COMMIT): ["one", "two"],
        part(1, OTHER): ["one", "two, changed"],
    }


def test_a_pushed_model_has_its_manifest_and_its_projection() -> None:
    pushed = f"store://sha256/{HEX}"
    files = [
        file("pushed/blobs/2", f"{pushed}/m-mmproj.gguf"),
        file("pushed/blobs/1", f"{pushed}/model.gguf"),
        file(f"pushed/manifests/{HEX}"),
    ]
    (model,) = stored_models(files)
    assert model.source == f"{pushed}/model.gguf"
    assert len(model.files) == 3
    assert model.is_called(f"{pushed}/m-mmproj.gguf")
    assert model.is_called("pushed/blobs/2")
    assert model.origin is None


def test_parts_of_a_url_are_one_model_and_what_nobody_names_is_called_by_its_key() -> None:
    files = [
        file("urls/h/1/m-00002-of-00002.gguf", "https://h/d/m-00002-of-00002.gguf"),
        file("urls/h/1/m-00001-of-00002.gguf", "https://h/d/m-00001-of-00002.gguf"),
        file("hub/models--o--r/blobs/orphan"),
        file("hub/models--o--r/blobs/left", "hf:o/r/left.gguf@main", is_whole=False),
    ]
    found = sources(stored_models(files))
    assert found.keys() == {
        "https://h/d/m-00001-of-00002.gguf",
        "hub/models--o--r/blobs/orphan",
        "hub/models--o--r/blobs/left",
    }


def test_a_repository_without_an_organisation_is_no_reason_to_refuse_the_others() -> None:
    """As old caches have them; a store may be filled with a copy of one."""
    old, other = f"hf:gpt2/model.safetensors@{COMMIT}", f"hf:gpt2/gpt2-q8_0.gguf@{COMMIT}"
    named = f"hf:o/r/m.gguf@{COMMIT}"
    found = stored_models([file("one", old), file("two", other), file("three", named)])
    assert sources(found) == {old: ["one"], other: ["two"], named: ["three"]}
    assert [model.source for model in found if model.origin is not None] == [named]


FILES = st.lists(
    st.builds(
        lambda number, commits, ago_s, is_whole: file(
            f"blob {number}",
            *(f"hf:o/r/{name}.gguf@{commit}" for name, commit in commits),
            used_ago_s=ago_s,
            is_whole=is_whole,
        ),
        st.integers(0, 1000),
        st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from([COMMIT, OTHER])), max_size=3),
        st.floats(0, 3 * LEFT_GRACE_S),
        st.booleans(),
    ),
    max_size=10,
    unique_by=lambda each: each.key,
)
RULES = st.builds(
    lambda newest, ago_s: Prune(newest=newest, used_within_s=ago_s),
    st.integers(0, 5),
    st.none() | st.integers(0, int(3 * LEFT_GRACE_S)),
)


@given(FILES, RULES, st.sets(st.integers(0, 1000)), st.sets(st.sampled_from("abc")))
def test_what_goes_is_needed_by_no_model_that_stays_and_all_else_goes(
    files: list[StoredFile], rules: Prune, kept: set[int], named: set[str]
) -> None:
    models = stored_models(files)
    names = {f"hf:o/r/{name}.gguf@{commit}" for name in named for commit in (COMMIT, OTHER)}

    def is_kept(key: str) -> bool:
        return int(key.removeprefix("blob ")) in kept

    plan = prune_plan(models, rules, names, is_kept, NOW_S)
    gone = {each.key for each in plan.files}
    assert not any(is_kept(key) for key in gone), "desired, pinned or in use, and went"
    whole = sorted((m.last_use_s for m in models if m.is_whole), reverse=True)
    newest = whole[: rules.newest or 0]
    for model in models:
        keys = {each.key for each in model.files}
        ago_s = NOW_S - model.last_use_s
        must_stay = (
            any(map(is_kept, keys))
            or model.source in names
            or ago_s < (rules.used_within_s or 0)
            or (not model.is_whole and ago_s < LEFT_GRACE_S)
            or (model.is_whole and bool(newest) and model.last_use_s > newest[-1])
        )
        if must_stay:
            assert not keys & gone, f"{model.source} lost a file"
    staying = [m for m in models if not {each.key for each in m.files} & gone]
    assert plan.num_kept <= len(staying)
    for each in files:
        if each.key not in gone:
            assert any(each in model.files for model in staying), "it is of no model that stays"


def test_nothing_is_planned_twice() -> None:
    shared = file("blob 1", f"hf:o/r/a.gguf@{COMMIT}", f"hf:o/r/a.gguf@{OTHER}", used_ago_s=10)
    plan = prune_plan(stored_models([shared]), Prune(newest=0), set(), lambda key: False, NOW_S)
    assert [each.key for each in plan.files] == ["blob 1"]
    assert len(plan.going) == 2
    assert attrs.asdict(plan)["num_kept"] == 0
