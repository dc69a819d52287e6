"""The vocabulary of the bundled model, opened once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import paddler_trio.models
from paddler_trio.language.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    return Path(paddler_trio.models.__file__).with_name("paddler-demo.gguf")


@pytest.fixture(scope="session")
def vocabulary(demo_model_path: Path) -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(demo_model_path)
    yield vocabulary
    vocabulary.close()
