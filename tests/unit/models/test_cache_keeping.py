"""What lies in a cache, who needs it, and what may be removed from it."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.cache.cache_inventory import (
    CachedModel,
    HubOrigin,
    Inventory,
    Leftover,
    SourcePattern,
    cache_ids,
    take_inventory,
)
from paddler_trio.models.cache.cache_place import CachePlace, UseMark, place_of
from paddler_trio.models.cache.cache_prune import (
    PARTIAL_GRACE_S,
    InUseError,
    KeepRules,
    remove_leftover,
    remove_model,
    superfluous,
)
from paddler_trio.models.cache.cache_verification import verified
from paddler_trio.models.cache.content_hash import ContentHash
from paddler_trio.models.cache.url_cache import UrlFile, UrlRecord
from paddler_trio.models.download.partial_file import PartialFile
from paddler_trio.models.hub.hub_cache import HubCache
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

OLD, NEW = "a" * 40, "b" * 40
NOW_S = 2_000_000_000.0
URL = "https://host/dir/m.gguf?key=s3cr3t"


@pytest.fixture
def settings(tmp_path: Path) -> HubSettings:
    return HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls")


def put(
    settings: HubSettings, name: str, data: bytes = b"model", commit: str = OLD, repo: str = "o/r"
) -> CachePlace:
    """A file as a download leaves it."""
    repository = HubCache(settings.cache).repository(repo)
    digest = hashlib.sha256(data).hexdigest()
    repository.ours.mkdir(parents=True, exist_ok=True)
    partial = repository.ours / f"{digest}.partial"
    partial.write_bytes(data)
    repository.publish(partial, digest)
    place = place_of(repository.link(digest, commit, name), settings)
    assert place is not None
    return place


def put_url(settings: HubSettings, url: str = URL, data: bytes = b"from a url") -> CachePlace:
    file = UrlFile.of(settings.url_cache, url)
    file.ours.mkdir(parents=True)
    partial = file.ours / "partial"
    partial.write_bytes(data)
    digest = ContentHash("sha256", hashlib.sha256(data).hexdigest())
    file.publish(partial, UrlRecord(len(data), digest, "", "https://host/dir/m.gguf"))
    place = place_of(file.path, settings)
    assert place is not None
    return place


def used(place: CachePlace, at_s: float) -> None:
    mark = UseMark.hold(place)
    assert mark is not None
    mark.close()
    os.utime(place.use_path, (at_s, at_s))


def removed(settings: HubSettings, *desired: SourcePattern, **rules: object) -> list[str]:
    """The sources that the rules let go."""
    going = superfluous(
        take_inventory(settings),
        KeepRules(**rules),  # type: ignore[arg-type]
        list(desired),
        settings,
        NOW_S,
    )
    return [found.source for found in going]


def test_models_are_listed_with_their_parts_their_branches_and_what_is_known(
    settings: HubSettings,
) -> None:
    place = put(settings, "sub/m-00001-of-00002.gguf", b"one")
    put(settings, "sub/m-00002-of-00002.gguf", b"three")
    put(settings, "half-00001-of-00002.gguf", b"half", NEW)
    put(settings, "config.json", b"{}")
    put_url(settings)
    HubCache(settings.cache).repository("o/r").remember("main", OLD)
    used(place, NOW_S - 5)
    half, whole, url = sorted(take_inventory(settings).models, key=lambda model: model.size_bytes)
    assert whole.source == f"hf:o/r/sub/m-00001-of-00002.gguf@{OLD}"
    assert (whole.size_bytes, len(whole.places), whole.is_whole) == (8, 2, True)
    assert (whole.used_s, whole.verified_s, whole.in_use) == (NOW_S - 5, None, False)
    assert whole.origin is not None
    assert whole.origin.revisions == ("main",)
    assert not half.is_whole
    assert url.source == "https://host/dir/m.gguf", "what may be secret is not shown"
    assert whole.cache != url.cache
    assert cache_ids(settings)[:2] == (whole.cache, url.cache)


def test_a_verification_counts_until_the_file_changes(settings: HubSettings) -> None:
    place = put(settings, "m.gguf")
    assert verified(place.path, settings) is True
    assert place.verified_s() is not None
    blob = place.path.resolve()
    blob.write_bytes(b"altered")
    assert place.verified_s() is None
    assert verified(place.path, settings) is False
    (leftover,) = take_inventory(settings).leftovers
    assert (leftover.state, leftover.size_bytes > 0) == ("quarantined", True)
    assert take_inventory(settings).models == ()


def test_a_hash_can_be_stopped_between_two_pieces(settings: HubSettings) -> None:
    class StoppedError(Exception):
        pass

    place = put(settings, "m.gguf", random.Random(1).randbytes(9 << 20))
    seen: list[int] = []

    def stop(count: int) -> None:
        seen.append(count)
        raise StoppedError

    with pytest.raises(StoppedError):
        verified(place.path, settings, stop)
    assert seen == [4 << 20]
    assert place.path.is_file()


def test_what_is_marked_as_in_use_is_not_removed_whoever_marked_it(settings: HubSettings) -> None:
    place = put(settings, "m.gguf")
    used(place, NOW_S - 100)
    (model,) = take_inventory(settings).models
    mark = UseMark.hold(place)
    assert mark is not None
    assert place.is_in_use()
    assert removed(settings, newest=0) == []
    with pytest.raises(InUseError, match="needs it"):
        remove_model(model)
    assert place.path.read_bytes() == b"model"
    mark.close()
    assert not place.is_in_use()
    assert remove_model(model) == len(b"model")
    assert take_inventory(settings) == Inventory((), ())
    assert not list(settings.cache.rglob("*.use"))
    assert not (settings.cache / "models--o--r" / "snapshots" / OLD).exists()


def test_what_is_being_fetched_is_not_removed(settings: HubSettings) -> None:
    place = put(settings, "m.gguf")
    used(place, 0)
    (model,) = take_inventory(settings).models
    place.lock.parent.mkdir(parents=True)
    other = UseMark.hold(CachePlace(place.path, place.lock.parent, "x", place.lock))
    assert other is not None
    other.place.use_path.rename(place.lock)
    with pytest.raises(InUseError, match="being fetched"):
        remove_model(model)
    other.close()
    assert remove_model(model) > 0


def test_a_blob_with_another_link_stays_until_that_goes_too(settings: HubSettings) -> None:
    old, new = put(settings, "m.gguf"), put(settings, "m.gguf", commit=NEW)
    HubCache(settings.cache).repository("o/r").remember("main", OLD)
    used(old, NOW_S - 100)
    models = {m.origin.commit: m for m in take_inventory(settings).models if m.origin is not None}
    assert remove_model(models[OLD]) == 0
    assert new.path.read_bytes() == b"model"
    assert new.used_s() == NOW_S - 100, "it is the same blob"
    assert not (settings.cache / "models--o--r" / "refs" / "main").exists()
    assert remove_model(models[NEW]) == len(b"model")


def test_a_file_of_a_url_goes_with_its_record(settings: HubSettings) -> None:
    place = put_url(settings)
    used(place, NOW_S - 100)
    assert removed(settings, SourcePattern.of(UrlModel(URL)), newest=0) == []
    assert removed(settings, newest=0) == ["https://host/dir/m.gguf"]
    (model,) = take_inventory(settings).models
    assert remove_model(model) == len(b"from a url")
    assert UrlFile.of(settings.url_cache, URL).cached() is None
    assert take_inventory(settings) == Inventory((), ())


def test_what_no_agent_ever_used_belongs_to_other_programs(settings: HubSettings) -> None:
    put(settings, "theirs.gguf", b"theirs")
    used(put(settings, "ours.gguf", b"ours"), NOW_S - 100)
    assert removed(settings, newest=0) == [f"hf:o/r/ours.gguf@{OLD}"]


def test_rules_keep_by_number_age_and_source(settings: HubSettings) -> None:
    for age_s, name in ((10, "a-Q4_K_M.gguf"), (20, "b-Q8_0.gguf"), (30, "c.gguf")):
        used(put(settings, name, name.encode()), NOW_S - age_s)
    a, b, c = (f"hf:o/r/{name}@{OLD}" for name in ("a-Q4_K_M.gguf", "b-Q8_0.gguf", "c.gguf"))
    assert removed(settings, newest=0) == [c, b, a], "longest unused first"
    assert removed(settings, newest=2) == [c]
    assert removed(settings, used_within_s=15.0) == [c, b]
    for text, left in (("hf:o/r", []), ("hf:o/r:q8_0", [c, a]), (c, [b, a]), ("hf:o/x", [c, b, a])):
        assert removed(settings, sources=(SourcePattern.parse(text),)) == left, text
    assert removed(settings, sources=(SourcePattern.parse(f"hf:o/r@{NEW}"),)) == [c, b, a]
    desired = HuggingFaceModel(filename="c.gguf", repo_id="o/r", revision=OLD)
    assert removed(settings, SourcePattern.of(desired), newest=0) == [b, a]


def test_a_branch_selects_the_commit_that_it_was_last(settings: HubSettings) -> None:
    used(put(settings, "m.gguf", b"old", OLD), NOW_S - 1)
    used(put(settings, "m.gguf", b"new", NEW), NOW_S - 1)
    HubCache(settings.cache).repository("o/r").remember("main", NEW)
    desired = HuggingFaceModel(filename="m.gguf", repo_id="o/r", revision="main")
    assert removed(settings, SourcePattern.of(desired), newest=0) == [f"hf:o/r/m.gguf@{OLD}"]


@pytest.mark.parametrize("text", ["", "none", "ftp://x/y", "hf:norepo", "agent:relative"])
def test_what_is_no_source_selects_nothing(text: str) -> None:
    with pytest.raises(UnknownSourceError):
        SourcePattern.parse(text)


def test_partial_downloads_go_when_nobody_went_on_with_them_for_a_day(
    settings: HubSettings,
) -> None:
    ours = HubCache(settings.cache).repository("o/r").ours
    partial = PartialFile.open(ours, "f" * 64, knows_hash=True)
    partial.begin(5 << 20, "etag")
    partial.write(0, [bytes(1 << 20)], block=0)
    partial.close()
    (leftover,) = take_inventory(settings).leftovers
    assert (leftover.state, leftover.size_bytes, leftover.total_bytes) == (
        "partial",
        1 << 20,
        5 << 20,
    )
    os.utime(partial.path, (NOW_S - PARTIAL_GRACE_S + 1,) * 2)
    assert removed(settings, newest=0) == []
    os.utime(partial.path, (NOW_S - PARTIAL_GRACE_S - 1,) * 2)
    desired = HuggingFaceModel(filename="any.gguf", repo_id="o/r", revision=OLD)
    assert removed(settings, SourcePattern.of(desired), newest=0) == []
    assert removed(settings, newest=0) == [leftover.source]
    assert remove_leftover(leftover) == 1 << 20
    assert list(ours.iterdir()) == []


@pytest.mark.parametrize("names", [["models--a--b--c--d"], ["datasets--a--b", "models"], []])
def test_folders_of_other_programs_are_no_models(settings: HubSettings, names: list[str]) -> None:
    for name in names:
        (settings.cache / name / "snapshots" / OLD).mkdir(parents=True)
        (settings.cache / name / "snapshots" / OLD / "m.gguf").write_bytes(b"x")
    assert take_inventory(settings) == Inventory((), ())


def test_damaged_records_are_as_none(settings: HubSettings) -> None:
    place = put(settings, "m.gguf")
    for text in ("", "[]", "{}", json.dumps({"size_bytes": "x", "modified_ns": 1}), "\0"):
        place.verified_path.write_text(text)
        assert place.verified_s() is None


# ------------------------------------------------------------------------------ in general

SETTINGS = HubSettings(cache=Path("/nowhere/hub"), url_cache=Path("/nowhere/urls"))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    models = []
    for index in range(draw(st.integers(0, 6))):
        path = SETTINGS.cache / f"models--o--r{index % 2}/snapshots/{OLD}/{index}.gguf"
        place = CachePlace(path, path.parent, str(index), path)
        models.append(
            CachedModel(
                cache="c",
                source=f"hf:o/r{index % 2}/{index}.gguf@{OLD}",
                places=(place,),
                part_count=1,
                size_bytes=1,
                origin=HubOrigin(
                    repo_id=f"o/r{index % 2}", commit=OLD, filename=f"{index}.gguf", revisions=()
                ),
                used_s=draw(st.none() | st.floats(0, 2 * NOW_S)),
                verified_s=None,
                in_use=draw(st.booleans()),
            )
        )
    leftovers = [
        Leftover(
            cache="c",
            source=f"hf:o/r{index}: {index}",
            state=draw(st.sampled_from(["arriving", "partial", "quarantined"])),
            paths=(Path(f"/nowhere/{index}"),),
            lock=None,
            size_bytes=1,
            total_bytes=None,
            modified_s=draw(st.floats(0, 2 * NOW_S)),
        )
        for index in range(draw(st.integers(0, 3)))
    ]
    return Inventory(tuple(models), tuple(leftovers))


def patterns() -> st.SearchStrategy[list[SourcePattern]]:
    texts = ["hf:o/r0", "hf:o/r1/1.gguf", f"hf:o/r0/2.gguf@{OLD}"]
    return st.lists(st.sampled_from(texts).map(SourcePattern.parse), max_size=2)


@given(
    inventories(),
    patterns(),
    patterns(),
    st.integers(0, 4),
    st.floats(0, NOW_S),
)
def test_nothing_goes_that_is_needed_kept_unknown_or_on_its_way(
    inventory: Inventory,
    kept: list[SourcePattern],
    desired: list[SourcePattern],
    newest: int,
    age_s: float,
) -> None:
    rules = KeepRules(sources=tuple(kept), newest=newest, used_within_s=age_s)
    going = superfluous(inventory, rules, desired, SETTINGS, NOW_S)
    models = [found for found in going if isinstance(found, CachedModel)]
    for model in models:
        assert model.used_s is not None
        assert not model.in_use
        assert not any(p.matches(model, SETTINGS) for p in [*kept, *desired])
        assert NOW_S - model.used_s >= age_s
    stays = [m for m in inventory.models if m.used_s is not None and m not in models]
    assert len(stays) >= min(newest, sum(m.used_s is not None for m in inventory.models))
    for found in going:
        assert isinstance(found, CachedModel) or found.state != "arriving"
    more = superfluous(
        inventory, KeepRules(sources=tuple(kept), newest=newest + 1), desired, SETTINGS, NOW_S
    )
    fewer = KeepRules(sources=tuple(kept), newest=newest)
    assert {f.source for f in more} <= {
        f.source for f in superfluous(inventory, fewer, desired, SETTINGS, NOW_S)
    }, "who keeps more loses no more"


@pytest.fixture
def read_only(settings: HubSettings) -> Iterator[HubSettings]:
    """A cache in which there is a model, and nothing can be made."""
    import subprocess

    put(settings, "m.gguf")
    root = settings.cache.parent
    bound = subprocess.run(["mount", "--bind", root, root], capture_output=True)
    if bound.returncode == 0:
        subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    else:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555) if path.is_dir() else None
    yield settings
    if bound.returncode == 0:
        subprocess.run(["umount", root], check=True)
    else:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755) if path.is_dir() else None


def test_a_cache_that_cannot_be_written_to_is_listed_hashed_and_used(
    read_only: HubSettings,
) -> None:
    with pytest.raises(OSError, match=r"Read-only|Permission"):
        (read_only.cache / "x").write_text("it does refuse")
    (model,) = take_inventory(read_only).models
    assert UseMark.hold(model.places[0]) is None
    assert verified(model.path, read_only) is True
    assert (model.used_s, model.verified_s) == (None, None)
