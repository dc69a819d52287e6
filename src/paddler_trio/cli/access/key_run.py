"""The work of ``paddler-trio key``, once the command line is understood."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from paddler_trio.balancer.keys.api_keys import (
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
from paddler_trio.balancer.keys.key_terms import (
    NO_TERMS,
    KeyTerms,
    after,
    check_expires,
    duration_s,
)
from paddler_trio.cli.terminal import print_json, stderr, stdout
from paddler_trio.errors import ConfigurationError
from paddler_trio.scheduler.limits.key_limits import NO_LIMITS, KeyLimits
from paddler_trio.wire.scalars import rfc3339

RELOAD: Final = "tell a running balancer with SIGHUP (systemctl reload paddler-trio-balancer)"


def make_key(
    name: str,
    file: Path,
    *,
    scope: Sequence[str] | None,
    model: Sequence[str] | None,
    ttl: str | None = None,
    expires: str | None = None,
    limits: KeyLimits = NO_LIMITS,
) -> None:
    """Print a new key and store its hash; ConfigurationError."""
    scopes = _scopes(scope)
    deployments = check_deployments(model or None, "--model")
    if deployments and KeyScope.INFERENCE not in scopes:
        raise ConfigurationError("--model limits requests: it needs the scope inference")
    now = datetime.now(UTC)
    terms = KeyTerms(_end(ttl, expires, now), limits)
    if limits and KeyScope.INFERENCE not in scopes:
        raise ConfigurationError("limits are for requests: they need the scope inference")
    secret = new_secret()
    stored = StoredKey.of(
        secret,
        name=check_name(name),
        scopes=scopes,
        created=now.date().isoformat(),
        deployments=deployments,
        terms=terms,
    )
    with changing(file):
        content = read_key_file(file) if file.exists() else KeyFile()
        write_key_file(file, content.having(stored))
        try:
            print(secret, flush=True)
        except OSError:  # a key that nobody has seen is of no use
            write_key_file(file, content)
            raise
    words = " and ".join(sorted(scopes))
    if deployments:
        words += f" on {' and '.join(sorted(deployments))}"
    if terms != NO_TERMS:
        words += f", {_terms_in_words(terms, now)}"
    stderr().print(f"{name} is for {words}; the key is not shown again; {RELOAD}")


def list_keys(file: Path, *, as_json: bool) -> None:
    """Print what is stored about the keys; ConfigurationError."""
    content, now = read_key_file(file), datetime.now(UTC)
    if as_json:
        keys = [
            {
                "name": each.name,
                "scopes": sorted(each.scopes),
                "created": each.created,
                "deployments": sorted(each.deployments) or None,
                **each.terms.all_fields(),
                "expired": each.terms.has_expired(now),
            }
            for each in content.keys
        ]
        print_json({"guarded": sorted(content.guarded), "keys": keys})
        return
    for each in content.keys:
        words = ",".join(sorted(each.scopes))
        limits = f"  only {','.join(sorted(each.deployments))}" if each.deployments else ""
        terms = "" if each.terms == NO_TERMS else f"  {_terms_in_words(each.terms, now)}"
        stdout().print(f"{each.name}  {words}  since {each.created}{limits}{terms}", soft_wrap=True)
    guarded = ", ".join(sorted(content.guarded)) or "nothing"
    print(f"keys are asked for: {guarded}", file=sys.stderr)


def revoke_key(name: str, file: Path) -> None:
    """Remove a key; ConfigurationError."""
    with changing(file):
        write_key_file(file, read_key_file(file).without(name))
    stderr().print(f"{name} is revoked; {RELOAD}")


def _end(ttl: str | None, expires: str | None, now: datetime) -> datetime | None:
    """Return the end that --ttl or --expires gives; None without both."""
    if ttl is not None and expires is not None:
        raise typer.BadParameter("give --ttl or --expires, not both", param_hint="--ttl")
    if ttl is not None:
        return after(duration_s(ttl, "--ttl"), "--ttl", now)
    if expires is None:
        return None
    end = check_expires(expires, "--expires")
    if end <= now:
        raise ConfigurationError(f"--expires is {rfc3339(end)}, which is over")
    return end


def _terms_in_words(terms: KeyTerms, now: datetime) -> str:
    parts = []
    if terms.expires is not None:
        word = "expired at" if terms.has_expired(now) else "until"
        parts.append(f"{word} {terms.expires_text}")
    for most, what in (
        (terms.limits.requests_per_minute, "requests a minute"),
        (terms.limits.max_concurrent, "at once"),
        (terms.limits.tokens_per_day, "tokens a day"),
        (terms.limits.tokens_per_month, "tokens a month"),
    ):
        if most is not None:
            parts.append(f"{most} {what}")
    return ", ".join(parts)


def _scopes(texts: Sequence[str] | None) -> frozenset[KeyScope]:
    """Return the scopes of ``--scope a,b`` or ``--scope a --scope b``."""
    words = ["inference"] if not texts else [word for text in texts for word in text.split(",")]
    try:
        return frozenset(KeyScope(word.strip()) for word in words)
    except ValueError as error:
        known = " and ".join(KeyScope)
        raise typer.BadParameter(f"{error}: there are {known}", param_hint="--scope") from error
