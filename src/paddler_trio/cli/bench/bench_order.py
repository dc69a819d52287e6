"""The order that ``paddler-trio bench`` was given, checked."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated, Final

import attrs

from paddler_trio.cli.bench.conditions import Condition, parse_conditions
from paddler_trio.cli.bench.plan import BOUNDS, BenchPlan
from paddler_trio.cli.bench.target_address import BaseUrl, parse_base_url
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.setting import Reading, Setting

STANDARD_OUTPUT: Final = Path("-")
MAX_NAME_CHARS: Final = 40
OUTPUT: Final = "Output"


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
    targets: tuple[TargetOrder, ...] = ()
    allow_public: Annotated[
        bool, Setting("The public address is yours to load, or its owner agrees.", panel=BOUNDS)
    ] = False
    max_error_rate: Annotated[
        float,
        Setting("Exit code 1 if a larger share of the requests fails.", panel=OUTPUT, min=0, max=1),
    ] = 0.01
    conditions: Annotated[
        list[Condition],
        Setting(
            "Exit code 1 if this is so of the first server, such as 'ttft_p95>500ms' or "
            "'tokens_per_s@8<100', or if nothing was measured that tells; may be repeated.",
            flag="--fail-if",
            panel=OUTPUT,
            metavar="CONDITION",
            reading=Reading(make=parse_conditions),
        ),
    ] = attrs.field(factory=list)
    html: Annotated[Path | None, Setting("Write a page with plots to this file.", panel=OUTPUT)] = (
        None
    )
    json: Annotated[
        Path | None,
        Setting(
            "Write all figures to this file as JSON; - is standard output, without the table.",
            panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None


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
