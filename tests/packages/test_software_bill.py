"""The bill of materials: complete, licensed, and what CycloneDX's own reader makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from referencing import Registry, Resource
from source_tree import ROOT

TOOL = ROOT / "tools" / "software_bill.py"


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bill")
    written = []
    for name in ("one.json", "two.json"):
        subprocess.run([sys.executable, str(TOOL), str(folder / name)], check=True)
        written.append((folder / name).read_text())
    assert written[0] == written[1]
    read: dict[str, Any] = json.loads(written[0])
    return read


def test_every_dependency_is_listed_with_the_version_that_is_installed_and_a_licence(
    bill: dict[str, Any],
) -> None:
    listed = {each["name"]: each for each in bill["components"]}
    ours = distribution("paddler-trio")
    for requirement in map(Requirement, ours.requires or ()):
        if requirement.marker is None:
            name = canonicalize_name(requirement.name)
            assert listed[name]["version"] == version(requirement.name)
    assert {"trio", "h11", "outcome", "llama-cpp-python", "preact"} <= listed.keys()
    assert not {"pytest", "ruff", "hypothesis"} & listed.keys()  # tools of those who develop it
    for each in [bill["metadata"]["component"], *bill["components"]]:
        [licence] = each["licenses"]
        assert licence.get("expression") or licence["license"]["name"], each["name"]


def test_the_libraries_of_the_panel_are_those_its_lock_file_names(bill: dict[str, Any]) -> None:
    lock = json.loads((ROOT / "panel" / "package-lock.json").read_text())["packages"]
    locked = {
        path.removeprefix("node_modules/"): entry["version"]
        for path, entry in lock.items()
        if path and not entry.get("dev") and not path.startswith("node_modules/@types/")
    }
    listed = {
        each["name"]: each["version"]
        for each in bill["components"]
        if each["purl"].startswith("pkg:npm/")
    }
    assert listed == locked


def test_cyclonedx_accepts_it(bill: dict[str, Any]) -> None:
    import cyclonedx.schema

    folder = Path(str(cyclonedx.schema.__file__)).parent / "_res"
    names = {
        "bom-1.6.SNAPSHOT.schema.json": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "spdx.SNAPSHOT.schema.json": "http://cyclonedx.org/schema/spdx.schema.json",
        "jsf-0.82.SNAPSHOT.schema.json": "http://cyclonedx.org/schema/jsf-0.82.schema.json",
    }
    schemas = {url: json.loads((folder / name).read_text()) for name, url in names.items()}
    registry: Registry[Any] = Registry().with_resources(
        (url, Resource.from_contents(schema)) for url, schema in schemas.items()
    )
    judge = Draft7Validator(schemas[names["bom-1.6.SNAPSHOT.schema.json"]], registry=registry)
    assert [error.message for error in judge.iter_errors(bill)] == []
    spoilt = bill | {"components": [{"name": "without a type"}]}
    assert list(judge.iter_errors(spoilt)) != []

    read = Bom.from_json(bill)  # type: ignore[attr-defined]  # made by a decorator
    names_read = {each.name for each in read.components}
    assert names_read == {each["name"] for each in bill["components"]}
    read.validate()  # each reference of the graph is one of a component
