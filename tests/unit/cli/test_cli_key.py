"""Keys that are limited to deployments, as the command makes and lists them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paddler_trio.balancer.keys.api_keys import read_key_file
from paddler_trio.cli.commands import command_line


def run(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command_line(["key"]), ["key", *arguments, "--file", str(file)])


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
        (["--model", "a b"], "'a b' names no deployment and no preset"),
        (["--model", "coder", "--scope", "management"], "needs the scope inference"),
        (["--max-concurrent", "1", "--scope", "management"], "they need the scope inference"),
        (["--ttl", "soon"], "--ttl is 'soon', must be a number with its unit"),
        (["--expires", "tomorrow"], "--expires is 'tomorrow', must be a moment such as"),
        (["--expires", "2020-01-01T00:00:00Z"], "2020-01-01T00:00:00Z, which is over"),
    ],
)
def test_a_limit_that_cannot_be_makes_no_key(tmp_path: Path, options: list[str], why: str) -> None:
    file = tmp_path / "keys.json"
    refused = run(file, "new", "shop", *options)
    assert refused.exit_code == 1
    assert why in refused.stderr
    assert not file.exists()


def test_a_key_is_made_with_an_end_and_limits_and_listed_with_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    options = ["--requests-per-minute", "60", "--max-concurrent", "4", "--tokens-per-day", "1000"]
    made = run(file, "new", "shop", "--ttl", "30d", *options)
    assert made.exit_code == 0, made.output
    assert "60 requests a minute, 4 at once, 1000 tokens a day" in made.stderr
    assert run(file, "new", "mayfly", "--expires", "2099-01-01T00:00:00+01:00").exit_code == 0
    shop, mayfly = read_key_file(file).keys
    assert shop.terms.expires is not None
    left = shop.terms.expires - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left <= timedelta(days=30)
    assert mayfly.terms.expires_text == "2098-12-31T23:00:00Z"
    listed = run(file, "list").stdout.splitlines()
    assert "60 requests a minute, 4 at once, 1000 tokens a day" in listed[0]
    assert listed[1].endswith("until 2098-12-31T23:00:00Z")
    as_json = json.loads(run(file, "list", "--json").stdout)["keys"][0]
    assert as_json["requests_per_minute"] == 60
    assert as_json["expired"] is False


def test_a_lifetime_is_given_in_one_way(tmp_path: Path) -> None:
    refused = run(tmp_path / "keys.json", "new", "a", "--ttl=1h", "--expires=2099-01-01T00:00:00Z")
    assert refused.exit_code == 2
    assert "not both" in refused.stderr
