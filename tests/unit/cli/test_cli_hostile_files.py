"""Files that a command is given and that no person wrote: refused in words, and no crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import typer

from paddler_trio.cli.fleet.fleet_file import read_fleet_file
from paddler_trio.cli.model.model_extras import extras_in
from paddler_trio.cli.model.model_order import parameters_of_file, template_in

READERS: Final[dict[str, Callable[[Path], object]]] = {
    "extras": extras_in,
    "parameters": parameters_of_file,
    "template": template_in,
}


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


@pytest.mark.parametrize("reader", READERS)
def test_no_more_of_a_file_is_read_than_it_may_have(reader: str, tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)  # takes no room on the disk
    with pytest.raises(typer.BadParameter, match="is too large, the limit is 67108864 bytes"):
        READERS[reader](large)


def test_line_ends_of_a_template_stay_as_they_are(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_bytes(b"{{ x }}\r\n")
    assert template_in(template).content == "{{ x }}\r\n"
