"""For the tests of commands: their tree is built once, and not for each command that is run."""

from __future__ import annotations

import functools

import pytest
import typer.testing


@pytest.fixture(scope="package", autouse=True)
def commands_built_once() -> None:
    typer.testing._get_command = functools.cache(typer.main.get_command)
