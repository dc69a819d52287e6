"""What ``paddler-trio key`` does, once the command line is understood."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from paddler_trio.cli.terminal import print_json, stderr, stdout
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

RELOAD: Final = "tell a running balancer with SIGHUP (systemctl reload paddler-trio-balancer)"


def make_key(
    name: str, file: Path, *, scope: Sequence[str] | None, model: Sequence[str] | None
) -> None:
    """Print a new key and store its hash; ConfigurationError."""
    scopes = _scopes(scope)
    deployments = check_deployments(model or None, "--model")
    if deployments and KeyScope.INFERENCE not in scopes:
        raise ConfigurationError("--model limits requests: it needs the scope inference")
    secret = new_secret()
    today = datetime.now(UTC).date().isoformat()
    stored = StoredKey.of(
        secret, name=check_name(name), scopes=scopes, created=today, deployments=deployments
    )
    with changing(file):
        content = read_key_file(file) if file.exists() else KeyFile()
        write_key_file(file, content.having(stored))
    print(secret)
    words = " and ".join(sorted(scopes))
    if deployments:
        words += f" on {' and '.join(sorted(deployments))}"
    stderr().print(f"{name} is for {words}; the key is not shown again; {RELOAD}")


def list_keys(file: Path, *, as_json: bool) -> None:
    """Print what is stored about the keys; ConfigurationError."""
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


def revoke_key(name: str, file: Path) -> None:
    """Remove a key; ConfigurationError."""
    with changing(file):
        write_key_file(file, read_key_file(file).without(name))
    stderr().print(f"{name} is revoked; {RELOAD}")


def _scopes(texts: Sequence[str] | None) -> frozenset[KeyScope]:
    """From ``--scope a,b`` or ``--scope a --scope b``."""
    words = ["inference"] if not texts else [word for text in texts for word in text.split(",")]
    try:
        return frozenset(KeyScope(word.strip()) for word in words)
    except ValueError as error:
        known = " and ".join(KeyScope)
        raise typer.BadParameter(f"{error}: there are {known}", param_hint="--scope") from error
