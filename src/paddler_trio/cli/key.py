"""``paddler-trio key``: make, list and revoke the API keys a balancer asks for."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.options import JsonOption
from paddler_trio.cli.terminal import one_line_errors, print_json, stderr, stdout
from paddler_trio.errors import ConfigurationError
from paddler_trio.http.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    changing,
    check_deployments,
    check_name,
    new_secret,
    read_key_file,
    write_key_file,
)

key = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke the API keys of a balancer's --api-key-file.",
)

FileOption = Annotated[
    Path,
    typer.Option(
        "--file", help="The balancer's --api-key-file; `key new` makes it if there is none."
    ),
]
RELOAD = "tell a running balancer with SIGHUP (systemctl reload paddler-trio-balancer)"


@key.command()
def new(
    name: Annotated[str, typer.Argument(help="What logs and metrics call the key.")],
    file: FileOption,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", help="inference, management, or both with a comma.", show_default="inference"
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Only this deployment, and others for which the option is repeated; without it "
            "all, also those that come later.",
        ),
    ] = None,
) -> None:
    """Make a key and print it, this once; the file keeps only a salted hash of it."""
    with one_line_errors():
        scopes = _scopes(scope)
        deployments = check_deployments(model or None, "--model")
        if deployments and KeyScope.INFERENCE not in scopes:
            raise ConfigurationError("--model limits requests: it needs the scope inference")
        secret = new_secret()
        today = datetime.now(UTC).date().isoformat()
        stored = StoredKey.of(
            secret,
            name=check_name(name),
            scopes=scopes,
            created=today,
            deployments=deployments,
        )
        with changing(file):
            content = read_key_file(file) if file.exists() else KeyFile()
            write_key_file(file, content.having(stored))
        print(secret)
        words = " and ".join(sorted(scopes))
        if deployments:
            words += f" on {' and '.join(sorted(deployments))}"
        stderr().print(f"{name} is for {words}; the key is not shown again; {RELOAD}")


@key.command("list")
def list_keys(file: FileOption, as_json: JsonOption = False) -> None:
    """List the keys by name: scopes and age; the keys themselves are written nowhere."""
    with one_line_errors():
        content = read_key_file(file)
        if as_json:
            keys = [
                {
                    "name": each.name,
                    "scopes": sorted(each.scopes),
                    "created": each.created,
                    "deployments": sorted(each.deployments) or None,
                }
                for each in content.keys
            ]
            print_json({"guarded": sorted(content.guarded), "keys": keys})
            return
        for each in content.keys:
            words = ",".join(sorted(each.scopes))
            limits = f"  only {','.join(sorted(each.deployments))}" if each.deployments else ""
            stdout().print(f"{each.name}  {words}  since {each.created}{limits}")
        guarded = ", ".join(sorted(content.guarded)) or "nothing"
        print(f"keys are asked for: {guarded}", file=sys.stderr)


@key.command()
def revoke(name: Annotated[str, typer.Argument(help="Name of the key.")], file: FileOption) -> None:
    """Make a key worthless; what it was for goes on asking for a key."""
    with one_line_errors():
        with changing(file):
            write_key_file(file, read_key_file(file).without(name))
        stderr().print(f"{name} is revoked; {RELOAD}")


def _scopes(texts: list[str] | None) -> frozenset[KeyScope]:
    """From ``--scope a,b`` or ``--scope a --scope b``."""
    words = ["inference"] if not texts else [word for text in texts for word in text.split(",")]
    try:
        return frozenset(KeyScope(word.strip()) for word in words)
    except ValueError as error:
        known = " and ".join(KeyScope)
        raise typer.BadParameter(f"{error}: there are {known}", param_hint="--scope") from error
