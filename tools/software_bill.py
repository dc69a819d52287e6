"""Write what is in an installation, as a software bill of materials in CycloneDX's format.

.venv/bin/python tools/software_bill.py dist/paddler-trio.cdx.json    # of this environment

It names paddler-trio, every package that it needs in turn, and the libraries in the panel's pages,
each with its version, its licence and its package URL. The same installation gives the same bytes.

Source: CycloneDX 1.6 (ECMA-424); package URLs; SPDX licence expressions.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME: Final = "paddler-trio"
EXTRAS: Final = ("llama",)
PANEL_LICENCES: Final = (
    Path(__file__).resolve().parents[1] / "src/paddler_trio/balancer/panel/assets/licences.txt"
)
CLASSIFIED: Final = {
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
}
"""What older packages say instead of an SPDX expression."""
SPELLED: Final = {"Apache 2.0": "Apache-2.0", "ISC License": "ISC", "MIT License": "MIT"}
TEXTS: Final = {
    "Permission is hereby granted, free of charge, to any person": "MIT",
    "Mozilla Public License Version 2.0": "MPL-2.0",
}
"""What is in the licence's own file, of packages that say nothing else."""
EXPRESSION: Final = re.compile(r"[A-Za-z0-9.+()-]+( (AND|OR|WITH) [A-Za-z0-9.+()-]+)*")


def find_closure(folders: Iterable[Path]) -> dict[str, tuple[Distribution, list[str]]]:
    """paddler-trio and what it needs in turn: canonical name -> package, names of what it needs."""
    installed: dict[str, Distribution] = {}
    for each in distributions(path=[str(folder) for folder in folders]):
        installed.setdefault(canonicalize_name(each.metadata["Name"]), each)
    closure: dict[str, tuple[Distribution, list[str]]] = {}
    waiting = [(NAME, frozenset({"", *EXTRAS}))]
    while waiting:
        name, extras = waiting.pop()
        if name in closure:
            continue
        package = installed.get(name)
        if package is None:
            raise SystemExit(f"software_bill: {name} is needed and not installed")
        needed = []
        for text in package.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                needed.append(canonicalize_name(requirement.name))
                waiting.append((needed[-1], frozenset({"", *requirement.extras})))
        closure[name] = package, sorted(set(needed))
    return closure


def licence_of(package: Distribution) -> str:
    """As an SPDX expression where the package says one, else in its own words."""
    metadata = package.metadata
    said = metadata["License-Expression"] or metadata["License"] or ""
    said = SPELLED.get(said, said)
    if said and "\n" not in said and len(said) < 200:
        return str(said)
    classified = [
        CLASSIFIED.get(each.rpartition(" :: ")[2], each.rpartition(" :: ")[2])
        for each in metadata.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    if classified:
        return " OR ".join(classified)
    texts = (
        " ".join(Path(str(file.locate())).read_text(errors="replace").split())
        for file in package.files or ()
        if file.name.startswith(("LICENSE", "LICENCE"))
    )
    known = {licence for text in texts for words, licence in TEXTS.items() if words in text}
    return " AND ".join(sorted(known))


def component(
    name: str, version: str, licence: str, url: str, *, kind: str = "library"
) -> dict[str, Any]:
    """One entry of the bill."""
    if not licence:
        raise SystemExit(f"software_bill: {name} {version} does not say its licence")
    is_expression = EXPRESSION.fullmatch(licence) is not None
    said = {"expression": licence} if is_expression else {"license": {"name": licence}}
    return {
        "type": kind,
        "bom-ref": url,
        "name": name,
        "version": version,
        "licenses": [said],
        "purl": url,
    }


def panel_components() -> list[dict[str, Any]]:
    """The libraries that are built into the panel's pages."""
    lines = PANEL_LICENCES.read_text()
    found = re.findall(r"^(\S+) (\d\S*) \((.+)\)$", lines, re.MULTILINE)
    return [
        component(name, version, licence, f"pkg:npm/{name.replace('@', '%40')}@{version}")
        for name, version, licence in found
    ]


def make_bill(folders: Sequence[Path]) -> dict[str, Any]:
    """The bill of the paddler-trio that is installed in ``folders``."""
    closure = find_closure(folders)
    urls = {name: f"pkg:pypi/{name}@{package.version}" for name, (package, _) in closure.items()}
    entries = {
        name: component(
            name,
            package.version,
            licence_of(package),
            urls[name],
            kind="application" if name == NAME else "library",
        )
        for name, (package, _) in sorted(closure.items())
    }
    ours = entries.pop(NAME)
    in_pages = panel_components()
    graph = [
        {"ref": urls[name], "dependsOn": [urls[each] for each in needed]}
        for name, (_, needed) in sorted(closure.items())
    ]
    for each in graph:
        if each["ref"] == ours["bom-ref"]:
            each["dependsOn"] = [*each["dependsOn"], *(page["bom-ref"] for page in in_pages)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours},
        "components": [*entries.values(), *in_pages],
        "dependencies": graph,
    }


def write_bill(path: Path, folders: Sequence[Path]) -> None:
    """``make_bill`` as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(make_bill(folders), indent=1) + "\n")


if __name__ == "__main__":
    write_bill(Path(sys.argv[1]), [Path(sysconfig.get_path("purelib")), *map(Path, sys.path)])
