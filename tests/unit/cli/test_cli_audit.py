"""Records of the audit log as people read them."""

from __future__ import annotations

from paddler_trio.cli.live.audit import audit_line, file_problem

ENTRY = {
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
}


def test_a_change_is_one_line() -> None:
    assert audit_line(ENTRY) == (
        "2026-06-01 12:00:00 ops from 10.0.0.7: fleet applied coder (revision 3) "
        "aaaaaaaaaaaa → bbbbbbbbbbbb note=more slots"
    )


def test_what_was_refused_says_so() -> None:
    entry = {**ENTRY, "before": None, "after": None, "revision": None, "details": {}}
    line = audit_line({**entry, "target": "", "action": "sign-in", "outcome": "refused: 401"})
    assert line == "2026-06-01 12:00:00 ops from 10.0.0.7: sign-in [refused: 401]"


def test_a_file_that_lacks_records_is_a_warning() -> None:
    file = {"path": "/a", "dropped": 0, "problem": None}
    assert file_problem(file) == ""
    assert file_problem({**file, "dropped": 2, "problem": "No space left on device"}) == (
        "warning: the audit log /a cannot be written: No space left on device and lacks 2 records"
    )
