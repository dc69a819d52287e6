"""Records of the audit log as people read them."""

from __future__ import annotations

import attrs

from paddler_trio.cli.live.audit import AuditEntry, AuditFile
from paddler_trio.cli.management_client import CONVERTER

ENTRY = CONVERTER.structure(
    {
        "seq": 7,
        "time": "2026-06-01T12:00:00.123Z",
        "who": "ops",
        "source": "10.0.0.7",
        "action": "fleet applied",
        "target": "coder",
        "before": "a" * 16,
        "after": "b" * 16,
        "revision": 3,
        "outcome": "done",
        "details": {"note": "more slots", "empty": ""},
    },
    AuditEntry,
)


def test_a_change_is_one_line() -> None:
    assert ENTRY.line == (
        "2026-06-01 12:00:00 ops from 10.0.0.7: fleet applied coder (revision 3) "
        "aaaaaaaaaaaa → bbbbbbbbbbbb note=more slots"
    )


def test_what_was_refused_says_so() -> None:
    entry = attrs.evolve(ENTRY, before=None, after=None, revision=None, details={})
    line = attrs.evolve(entry, target="", action="sign-in", outcome="refused: 401").line
    assert line == "2026-06-01 12:00:00 ops from 10.0.0.7: sign-in [refused: 401]"


def test_a_file_that_lacks_records_is_a_warning() -> None:
    file = AuditFile(path="/a")
    assert file.problem_words == ""
    broken = attrs.evolve(file, dropped=2, problem="No space left on device")
    assert broken.problem_words == (
        "warning: the audit log /a cannot be written: No space left on device and lacks 2 records"
    )
