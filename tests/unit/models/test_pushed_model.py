"""The names of pushed models: what a manifest may hold, and what it is called."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.models.pushed.pushed_model import (
    Manifest,
    PushedFile,
    PushedSource,
    pushed_source,
    read_manifest,
)

ONE, TWO = "1" * 64, "2" * 64
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
files = st.builds(
    PushedFile,
    name=names,
    size=st.integers(1, 2**50),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
)
manifests = st.builds(
    Manifest,
    files=st.lists(files, min_size=1, max_size=4, unique_by=lambda file: file.name).map(tuple),
    projection=st.none(),
)


@given(manifests)
def test_a_manifest_is_named_by_its_own_text(manifest: Manifest) -> None:
    assert hashlib.sha256(manifest.text).hexdigest() == manifest.sha256
    assert read_manifest(manifest.text) == manifest
    first = manifest.files[0]
    assert pushed_source(manifest.source(first)) == PushedSource(manifest.sha256, first.name)
    assert manifest.wanted(first.name) == manifest.files
    assert json.loads(manifest.text) == {
        "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in manifest.files],
        "projection": None,
    }


def test_a_projection_is_wanted_by_itself() -> None:
    model, projection = PushedFile("m.gguf", 1, ONE), PushedFile("mmproj.gguf", 2, TWO)
    manifest = Manifest((model,), projection)
    assert manifest.wanted("mmproj.gguf") == (projection,)
    assert manifest.wanted("m.gguf") == (model,)
    assert manifest.wanted("other") == ()
    assert manifest.all_files == (model, projection)
    assert read_manifest(manifest.text) == manifest


@given(st.binary(max_size=200))
def test_what_is_no_manifest_is_a_wire_error(text: bytes) -> None:
    with pytest.raises(WireError):
        read_manifest(text)


def fields(**changes: object) -> bytes:
    file = {"name": "m.gguf", "size": 1, "sha256": ONE}
    return json.dumps({"files": [file | changes], "projection": None}).encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (fields(name="../m"), "no name of a pushed file.*name"),
        (fields(name=".hidden"), "no name"),
        (fields(name=""), "no name"),
        (fields(name="a/b"), "no name"),
        (fields(name="x" * 201), "201 characters, the limit is 200"),
        (
            fields(size=0),
            r"expected an integer in 1\.\.1125899906842624, got 0 @ \$\.files\[0\]\.size",
        ),
        (fields(size=2**50 + 1), "expected an integer"),
        (fields(sha256="A" * 64), "no SHA-256"),
        (b'{"files":[],"projection":null}', "0 files, must be 1 to 999"),
        (fields(), "not in canonical form"),
        (b"[" * 2_000_000, "the limit is 1048576"),
    ],
)
def test_a_wrong_manifest_is_refused_with_what_is_wrong(text: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        read_manifest(text)


def test_two_files_of_one_name_are_refused() -> None:
    file = PushedFile("m.gguf", 1, ONE)
    with pytest.raises(WireError, match="one name"):
        Manifest((file, file), None)
    with pytest.raises(WireError, match="one name"):
        Manifest((file,), file)


@pytest.mark.parametrize(
    "url",
    [
        "store://sha256/x/m.gguf",
        f"store://sha256/{ONE}",
        f"store://sha256/{ONE}/",
        f"store://sha256/{ONE}/a/b",
        f"store://sha256/{ONE}/..",
        f"store://sha256/{ONE.upper()[:-1]}G/m.gguf",
        f"https://sha256/{ONE}/m.gguf",
    ],
)
def test_what_has_another_form_names_no_pushed_model(url: str) -> None:
    assert pushed_source(url) is None
