"""The guide says which versions of which clients were tried: those that are installed."""

from __future__ import annotations

from pathlib import Path

from installed_clients import NPM, PYPI

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "clients.md"


def test_the_guide_names_the_versions_that_are_installed() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ")]
    for packages in (*NPM.values(), *PYPI.values()):
        version = packages[0].replace("==", "@").rpartition("@")[2]
        assert any(f"| {version} |" in row for row in rows), packages[0]
