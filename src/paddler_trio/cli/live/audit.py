"""``paddler-trio audit``: who changed what on a balancer."""

from __future__ import annotations

from typing import Annotated, Any, Final

import attrs
import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stderr, stdout

AUDIT_PATH: Final = "/api/v2/audit"
SHOWN_DIGEST: Final = 12
"""Characters of a digest in the text for people."""
_EMPTY: Final = ("", None)


@attrs.frozen(kw_only=True)
class AuditEntry:
    """A management action: who did it, from where, and what became of it."""

    time: str
    who: str
    source: str
    action: str
    outcome: str
    target: str = ""
    revision: int | None = None
    before: str | None = None
    after: str | None = None
    details: dict[str, object] = attrs.field(factory=dict)

    @property
    def line(self) -> str:
        """The record as people read it."""
        words = [self.time[:19].replace("T", " "), f"{self.who} from {self.source}:", self.action]
        if self.target:
            words.append(self.target)
        if self.revision is not None:
            words.append(f"(revision {self.revision})")
        if self.before != self.after:
            words.append(f"{_digest(self.before)} → {_digest(self.after)}")
        words += [f"{name}={value}" for name, value in self.details.items() if value not in _EMPTY]
        if self.outcome != "done":
            words.append(f"[{self.outcome}]")
        return " ".join(words)


@attrs.frozen(kw_only=True)
class AuditFile:
    """The file of the balancer's --audit-log."""

    path: str
    dropped: int = 0
    problem: str | None = None

    @property
    def problem_words(self) -> str:
        """A warning about the file; empty if nothing is wrong with it."""
        said = [f"cannot be written: {self.problem}"] if self.problem else []
        said += [f"lacks {self.dropped} records"] if self.dropped else []
        return f"warning: the audit log {self.path} {' and '.join(said)}" if said else ""


@attrs.frozen(kw_only=True)
class AuditPage:
    """The records that the balancer holds in memory, the newest last."""

    entries: list[AuditEntry]
    file: AuditFile | None = None


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
        raw = client.ask("GET", AUDIT_PATH)
        page = client.structured(raw, AuditPage)
        chosen = [n for n, each in enumerate(page.entries) if not who or each.who == who][-limit:]
        if as_json:
            listed: Any = raw["entries"]
            print_json({"entries": [listed[n] for n in chosen], "file": raw.get("file")})
            return
        for n in chosen:
            stdout().print(printable(page.entries[n].line), soft_wrap=True)
        if not chosen:
            stdout().print("no management action is on record")
        if page.file is not None and page.file.problem_words:
            stderr().print(printable(page.file.problem_words))


def _digest(digest: str | None) -> str:
    return "nothing" if digest is None else digest[:SHOWN_DIGEST]
