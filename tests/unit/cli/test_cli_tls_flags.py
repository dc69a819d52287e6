"""Every command that shows a key to a balancer can verify it; mistakes are named before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from paddler_trio.cli.client_flags import checked_address
from paddler_trio.cli.commands import command_line
from paddler_trio.net.tls.client_tls import ClientTls

FLAGS = {"--tls-ca", "--tls-fingerprint", "--tls-client-cert", "--tls-client-key"}
PIN = "ab" * 32


def commands(group: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """All of them by name, with their flags."""
    flags = {each for parameter in group.params for each in parameter.opts}
    yield " ".join(words), flags
    for name, each in getattr(group, "commands", {}).items():
        yield from commands(each, (*words, name))


def test_no_command_with_a_key_is_without_the_flags() -> None:
    clients = {
        name: flags
        for name, flags in commands(typer.main.get_command(command_line()))
        if flags & {"--key-file", "--token-file"}
    }
    assert len(clients) > 30
    assert {"agent", "top", "chat", "model push", "fleet apply", "audit"} <= clients.keys()
    lacking = {name for name, flags in clients.items() if not flags >= FLAGS}
    assert lacking <= {"join"}, "the token says what to trust"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--tls-ca", "ca.pem"], "has no TLS, and --tls-ca is for TLS: write https://"),
        (["--tls-fingerprint", PIN], "write https://127.0.0.1:8060"),
        (["--tls-fingerprint", "abc"], "64 hexadecimal digits"),
        (["--tls-client-key", "k.pem"], "needs --tls-client-cert FILE"),
        (["--management-addr", "https://host"], "is not an address"),
        (["--management-addr", "https://host:1/path"], "is not an address"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(options: list[str], text: str) -> None:
    ended = CliRunner(env={"COLUMNS": "500"}).invoke(command_line(), ["agents", *options])
    assert ended.exit_code == 2
    assert text in " ".join(ended.output.replace("│", " ").split())


def test_a_file_that_is_not_there_is_one_line() -> None:
    words = ["agents", "--management-addr", "https://127.0.0.1:1", "--tls-ca", "/nowhere/ca.pem"]
    ended = CliRunner().invoke(command_line(), words)
    assert ended.exit_code == 1
    assert ended.stderr == (
        "paddler-trio: cannot read --tls-ca /nowhere/ca.pem: No such file or directory\n"
    )


def test_what_is_read_of_flags() -> None:
    tls = ClientTls(Path("ca"), PIN.upper(), Path("c"), Path("k"))
    assert tls == ClientTls(Path("ca"), PIN, Path("c"), Path("k"))
    assert checked_address("https://h:1", tls, option="--management-addr").is_tls
    with pytest.raises(typer.BadParameter, match="--tls-ca, --tls-fingerprint, --tls-client-cert"):
        checked_address("h:1", tls, option="--management-addr")
