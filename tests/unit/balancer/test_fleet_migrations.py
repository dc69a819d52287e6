"""Older versions of the fleet's file are migrated step by step, and newer ones refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.fleet.fleet_database import FileDatabase
from paddler_trio.balancer.fleet.fleet_migrations import (
    VERSION,
    Document,
    Migration,
    NewerVersionError,
    migrated,
)
from paddler_trio.balancer.fleet.stored_fleet import ROLLOUT
from paddler_trio.errors import StateDatabaseError, WireError


def noted(number: int) -> Migration:
    def migration(document: Document) -> Document:
        steps = document.get("steps", ())
        assert isinstance(steps, tuple)
        return {**document, "steps": (*steps, number)}

    return migration


@given(newest=st.integers(1, 12), data=st.data())
def test_a_document_goes_through_every_version_after_its_own_once_and_in_order(
    newest: int, data: st.DataObject
) -> None:
    found = data.draw(st.integers(1, newest))
    before = {"version": str(found), "kept": 7}
    result = migrated(before, [noted(number) for number in range(2, newest + 1)])
    assert result.found == found
    assert result.document["version"] == str(newest)
    assert result.document["kept"] == 7
    assert result.document.get("steps", ()) == tuple(range(found + 1, newest + 1))
    assert before == {"version": str(found), "kept": 7}


@given(newest=st.integers(1, 12), ahead=st.integers(1, 1000))
def test_a_newer_version_is_refused_with_its_number_and_its_writer(newest: int, ahead: int) -> None:
    document = {"version": str(newest + ahead), "written_by": "paddler-trio 9.1"}
    with pytest.raises(NewerVersionError) as caught:
        migrated(document, [noted(number) for number in range(2, newest + 1)])
    assert f"version {newest + ahead} and was written by paddler-trio 9.1" in str(caught.value)
    assert f"up to {newest}" in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [[], {}, {"version": 1}, {"version": "0"}, {"version": "one"}, {"version": "1" * 10}],
)
def test_what_has_no_version_is_no_document(document: object) -> None:
    with pytest.raises(WireError):
        migrated(document)


VERSION_1 = {
    "version": "1",
    "history": [
        {
            "revision": 3,
            "author": "ann",
            "time": "2026-01-02T03:04:05Z",
            "note": "",
            "deployments": [],
        }
    ],
    "good": [],
    "rollouts": [],
    "specs": [],
}


async def test_a_file_of_version_1_is_read_and_stays_beside_the_one_that_is_written(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.json.fleet.json"
    file.write_text(json.dumps(VERSION_1))
    stored = await FileDatabase(tmp_path / "state.json").read()
    assert (stored.current.revision, stored.current.author) == (3, "ann")
    assert (tmp_path / "state.json.fleet.json.v1").read_text() == json.dumps(VERSION_1)
    written = json.loads(file.read_text())
    assert written["version"] == str(VERSION)
    assert written["written_by"].startswith("paddler-trio ")
    assert await FileDatabase(tmp_path / "state.json").read() == stored


def test_what_a_rollout_went_back_to_is_told_from_what_a_key_of_that_name_stored() -> None:
    notes = {3: "coder rolled back: no file", 2: "", 1: ""}
    authors = {3: "rollout", 2: "rollout", 1: "ann"}
    history = [
        {"revision": number, "author": authors[number], "note": note, "deployments": []}
        for number, note in notes.items()
    ]
    read = migrated({"version": "4", "history": history}).document["history"]
    assert isinstance(read, list)
    assert [each["author"] for each in read] == [ROLLOUT, "rollout", "ann"]


async def test_a_file_of_a_newer_version_is_left_alone_and_the_way_back_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.json.fleet.json"
    newer = json.dumps({"version": str(VERSION + 1), "written_by": "paddler-trio 7", "other": 1})
    file.write_text(newer)
    with pytest.raises(StateDatabaseError) as caught:
        await FileDatabase(tmp_path / "state.json").read()
    assert "written by paddler-trio 7" in str(caught.value)
    assert f"state.json.fleet.json.v{VERSION}, in its place" in str(caught.value)
    assert file.read_text() == newer
