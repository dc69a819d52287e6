"""The wheel that the tests here install, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_tree import ROOT, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source as it is now."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))[0]
