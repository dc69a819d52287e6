"""What ``paddler-trio bench`` was asked to do, checked."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.cli.bench.conditions import Condition
from paddler_trio.cli.bench.plan import BenchPlan
from paddler_trio.cli.bench.target_address import BaseUrl, parse_base_url
from paddler_trio.cli.bench.workloads import Workload
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import ClientTls

STANDARD_OUTPUT: Final = Path("-")
ALL: Final = "all"
MAX_NAME_CHARS: Final = 40
MAX_LEVELS_CHARS: Final = 200


@attrs.frozen(kw_only=True)
class TargetOrder:
    """A server to test; ``model`` is empty for the first that it lists."""

    url: BaseUrl
    label: str
    model: str
    key_file: Path | None
    tls: ClientTls


@attrs.frozen(kw_only=True)
class BenchOrder:
    """See the module docstring."""

    plan: BenchPlan
    targets: tuple[TargetOrder, ...]
    ignores_end: bool
    allow_public: bool
    max_error_rate: float
    conditions: list[Condition]
    html: Path | None
    json: Path | None


def target_order(
    text: str, option: str, *, name: str, model: str, key_file: Path | None, tls: ClientTls
) -> TargetOrder:
    """ConfigurationError that names ``option`` if ``text`` is no base URL."""
    try:
        url = parse_base_url(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigurationError(
            f"{name[:MAX_NAME_CHARS]!r} is no name: at most {MAX_NAME_CHARS} printable characters"
        )
    if tls.is_given and not url.is_tls:
        raise ConfigurationError(
            f"{option} {text} has no TLS, and a flag --tls-* is given: write "
            f"https://{url.authority}, or leave that out"
        )
    return TargetOrder(
        url=url, label=name or url.authority + url.path, model=model, key_file=key_file, tls=tls
    )


def parse_workloads(text: str) -> tuple[Workload, ...]:
    """``plain,mixed`` or ``all``; ConfigurationError."""
    if text.strip() == ALL:
        return tuple(Workload)
    try:
        return tuple(Workload(each.strip()) for each in text.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"--workload {text[:100]!r} is not known: give {', '.join(Workload)}, several with "
            "commas between, or all"
        ) from error


def parse_levels(text: str) -> tuple[int, ...]:
    """``1,2,4``; ConfigurationError."""
    parts = [part.strip() for part in text.split(",")]
    is_list = all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts)
    if not is_list or len(text) > MAX_LEVELS_CHARS:
        raise ConfigurationError(
            f"--concurrency {text[:MAX_LEVELS_CHARS]!r} must be numbers with commas between, such "
            "as 1,2,4"
        )
    return tuple(int(part) for part in parts)


def check_writable(path: Path | None) -> None:
    """Before a load test of minutes, not after it; ConfigurationError."""
    if path is None:
        return
    if path.name == STANDARD_OUTPUT.name or path.is_dir() or not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: it must be a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: {os.strerror(errno.EACCES)}")


def check_apart(html: Path | None, json: Path | None) -> None:
    """The second report would be written over the first; ConfigurationError."""
    if html is not None and json is not None and html.resolve() == json.resolve():
        raise ConfigurationError(f"--html and --json are both {html}: give each a file of its own")
