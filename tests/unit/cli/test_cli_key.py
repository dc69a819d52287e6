"""Keys that are limited to deployments, as the command makes and lists them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paddler_trio.cli import app
from paddler_trio.http.api_keys import read_key_file


def run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["key", *arguments, "--file", str(file)])


def test_a_key_is_made_for_deployments_and_listed_with_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    made = run(file, "new", "shop", "--model", "coder", "--model", "embedder")
    assert made.exit_code == 0, made.output
    assert "shop is for inference on coder and embedder" in made.stderr
    assert run(file, "new", "all").exit_code == 0
    shop, everything = read_key_file(file).keys
    assert (shop.deployments, everything.deployments) == ({"coder", "embedder"}, frozenset())
    listed = run(file, "list").stdout
    assert "only coder,embedder" in listed
    as_json = json.loads(run(file, "list", "--json").stdout)
    assert [each["deployments"] for each in as_json["keys"]] == [["coder", "embedder"], None]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--model", "Coder"], "'Coder' is no name of a deployment"),
        (["--model", "coder", "--scope", "management"], "needs the scope inference"),
    ],
)
def test_a_limit_that_cannot_be_makes_no_key(tmp_path: Path, options: list[str], why: str) -> None:
    file = tmp_path / "keys.json"
    refused = run(file, "new", "shop", *options)
    assert refused.exit_code == 1
    assert why in refused.stderr
    assert not file.exists()
