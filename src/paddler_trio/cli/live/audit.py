"""``paddler-trio audit``: who changed what on a balancer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stderr, stdout

AUDIT_PATH: Final = "/api/v2/audit"
SHOWN_DIGEST: Final = 12
"""Characters of a digest in the text for people."""


@with_flags
def audit(
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=2000, help="How many at most, the newest ones.")
    ] = 50,
    who: Annotated[str, typer.Option("--who", help="Only those of this key.")] = "",
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Show who changed what, newest last: the records that the balancer holds in memory.

    All of them are in its log too, and in the file of its --audit-log.
    """
    with one_line_errors(), ManagementClient.open(management) as client:
        answer = client.ask("GET", AUDIT_PATH)
        listed = answer.get("entries")
        entries = listed if isinstance(listed, list) else []
        entries = [each for each in entries if not who or each.get("who") == who][-limit:]
        file = answer.get("file")
        if as_json:
            print_json({"entries": entries, "file": file})
            return
        for entry in entries:
            stdout().print(printable(audit_line(entry)), soft_wrap=True, highlight=False)
        if not entries:
            stdout().print("no management action is on record")
        if isinstance(file, dict) and (problem := file_problem(file)):
            stderr().print(problem)


def audit_line(entry: Mapping[str, Any]) -> str:
    """One record for people."""
    words = [
        str(entry.get("time", ""))[:19].replace("T", " "),
        f"{entry.get('who')} from {entry.get('source')}:",
        str(entry.get("action")),
    ]
    if entry.get("target"):
        words.append(str(entry["target"]))
    if entry.get("revision") is not None:
        words.append(f"(revision {entry['revision']})")
    before, after = entry.get("before"), entry.get("after")
    if before != after:
        words.append(f"{_digest(before)} → {_digest(after)}")
    details = entry.get("details")
    if isinstance(details, dict):
        words += [f"{name}={value}" for name, value in details.items() if value not in ("", None)]
    if entry.get("outcome") != "done":
        words.append(f"[{entry.get('outcome')}]")
    return " ".join(words)


def file_problem(file: Mapping[str, Any]) -> str:
    """Return what is wrong with the balancer's file; empty if nothing is."""
    said = []
    if file.get("problem"):
        said.append(f"cannot be written: {file['problem']}")
    if file.get("dropped"):
        said.append(f"lacks {file['dropped']} records")
    return f"warning: the audit log {file.get('path')} {' and '.join(said)}" if said else ""


def _digest(value: object) -> str:
    return "nothing" if value is None else str(value)[:SHOWN_DIGEST]
