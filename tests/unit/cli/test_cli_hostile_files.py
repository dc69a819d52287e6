"""Files that a command is given and that no person wrote: refused in words, and no crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from paddler_trio.cli.fleet_file import read_fleet_file
from paddler_trio.cli.model_parameters import parameters_of_file


def test_a_template_is_in_no_file_whose_name_has_a_nul(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[deployments]]\nname='a'\nmodel='/m'\ntemplate = { file = \"a\\u0000b\" }\n")
    with pytest.raises(typer.BadParameter, match=r"is no path: .* @ \$\.deployments\[0\]"):
        read_fleet_file(fleet)


@pytest.mark.parametrize("name", ["deep.json", "deep.toml"])
def test_parameters_are_not_nested_without_end(name: str, tmp_path: Path) -> None:
    parameters = tmp_path / name
    parameters.write_text(("a = " if name == "deep.toml" else "") + "[" * 100_000)
    with pytest.raises(typer.BadParameter, match="nested too deeply"):
        parameters_of_file(parameters)
