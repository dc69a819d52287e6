"""What SOURCE may be, and what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.models.model_reference import (
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

PAGE = "https://huggingface.co/org/repo/blob/main/m.gguf"
RESOLVE = "https://huggingface.co/org/repo/resolve/main/m.gguf?download=true"
MIRROR = "https://hf-mirror.com/org/repo/resolve/main/m.gguf"


def file(filename: str, revision: str = "main") -> HuggingFaceModel:
    return HuggingFaceModel(filename, "org/repo", revision)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("none", NoModel()),
        ("/models/m.gguf", LocalToAgent("/models/m.gguf")),
        ("agent:/models/m%20n.gguf", LocalToAgent("/models/m n.gguf")),
        ("agent:///models/m.gguf", LocalToAgent("/models/m.gguf")),
        ("HTTPS://host/m.gguf", UrlModel("HTTPS://host/m.gguf")),
        ("hf:org/repo/sub/m.gguf@refs/pr/3", file("sub/m.gguf", "refs/pr/3")),
        ("hf:org/repo", HubRepository("org/repo", None, "main")),
        ("hf:org/repo:Q4_K_M", HubRepository("org/repo", "Q4_K_M", "main")),
        ("hf:org/repo:Q4_K_M@v1", HubRepository("org/repo", "Q4_K_M", "v1")),
        (PAGE, file("m.gguf")),
        (RESOLVE, file("m.gguf")),
        (PAGE.replace("m.gguf", "a/b%20c.gguf"), file("a/b c.gguf")),
        ("https://huggingface.co/org/repo", UrlModel("https://huggingface.co/org/repo")),
        (MIRROR, UrlModel(MIRROR)),
    ],
)
def test_a_source_names_a_model(text: str, model: DesiredModel | HubRepository) -> None:
    assert reference_of(text) == model


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("s3://bucket/m", "no way to get files"),
        ("https:///m", "names no host"),
        ("https://h:port/m", "no URL"),
        ("hf:org", "is not hf:"),
        ("hf:org/repo:", "is not hf:"),
        ("hf:org/repo/", "is not hf:"),
        ("hf:repo/m.gguf", "is not hf:"),
        ("hf:org/repo@", "is not hf:"),
        ("agent://models/m.gguf", "write agent:/models/m.gguf"),
        ("agent:models/m.gguf", "no absolute path"),
    ],
)
def test_what_names_nothing_is_refused_with_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(UnknownSourceError, match=problem):
        reference_of(text)


@given(st.text() | st.text("hf:/@agent.-", max_size=20).map(lambda text: f"hf:{text}"))
def test_every_text_names_something_or_is_refused(text: str) -> None:
    try:
        model = reference_of(text)
    except UnknownSourceError:
        return
    assert reference_of(text_of(model)) == model
