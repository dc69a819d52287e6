"""A class says what its flags are: their names, defaults, limits, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import pytest
import typer
from typer.testing import CliRunner

from paddler_trio.cli.flags import Given, with_flags
from paddler_trio.setting import MIB, MILLISECOND, Reading, Setting, within_limits


def digits(text: str) -> list[int]:
    return [int(each) for each in text]


@attrs.frozen(kw_only=True)
class Server:
    url: Annotated[str, Setting("Where it is.", flag="--server", unset="nowhere")]
    key_file: Annotated[Path | None, Setting("Its key.")] = None


@attrs.frozen(kw_only=True, field_transformer=within_limits)
class Example:
    wait_s: Annotated[float, Setting("Wait.", unit=MILLISECOND, min=100, max=9_000)] = 2.0
    room_bytes: Annotated[int, Setting("Room.", unit=MIB)] = 256 * 1024**2
    server: Server | None = None
    names: Annotated[tuple[str, ...], Setting("Names.", flag="--name")] = ()
    is_on: Annotated[bool, Setting("On.", flag="--on", words={"yes": True, "no": False})] = True
    mapped: Annotated[bool, Setting("Map.", flag="--map/--no-map")] = True
    parts: Annotated[
        list[int],
        Setting("Parts.", unset="", reading=Reading(make=digits, given=str)),
    ] = attrs.field(factory=list)
    shade: Annotated[str, typer.Option("--shade", help="Any option of typer's.")] = "blue"
    inner: int = 0


def run(*words: str) -> tuple[Example | None, str]:
    found: list[Example] = []
    app = typer.Typer()

    @app.command()
    @with_flags
    def command(
        context: typer.Context, *, first: str = "", given: Given[Example], last: int = 0
    ) -> None:
        found.append(given.read(inner=last))

    ended = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    return (found[0] if found else None), ended.output


def test_without_flags_it_is_the_class_with_its_defaults() -> None:
    assert run() == (Example(), "")


def test_values_are_made_as_the_fields_have_them() -> None:
    words = [
        *("--wait", "1500", "--room", "1", "--name", "a", "--name", "b", "--on", "no"),
        *("--no-map", "--parts", "12", "--shade", "red", "--last", "3"),
        *("--server", "here", "--key-file", "k"),
    ]
    assert run(*words)[0] == Example(
        wait_s=1.5,
        room_bytes=1024**2,
        server=Server(url="here", key_file=Path("k")),
        names=("a", "b"),
        is_on=False,
        mapped=False,
        parts=[1, 2],
        shade="red",
        inner=3,
    )


def test_flags_keep_the_place_of_their_class() -> None:
    shown = run("--help")[1]
    order = ["--first", "--wait", "--room", "--server", "--key-file", "--name", "--shade", "--last"]
    assert sorted(order, key=shown.index) == order
    assert "[default: 2000]" in shown
    assert "[default: (nowhere)]" in shown
    assert "[yes|no]" in shown or "<yes|no>" in shown


def test_limits_are_those_of_the_flag_and_of_the_field() -> None:
    assert run("--wait", "99")[0] is None
    assert run("--wait", "100")[0] is not None
    Example(wait_s=9.0)
    for wait_s in (0.0999, 9.1):
        with pytest.raises(ValueError, match="wait_s"):
            Example(wait_s=wait_s)


def test_flags_of_a_group_that_was_not_asked_for_are_refused() -> None:
    example, output = run("--key-file", "k")
    assert example is None
    assert "Invalid value for --key-file: makes sense with --server only" in output
