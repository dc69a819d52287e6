"""The packages that the tests here install, built once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT, build

PACKER = {"DEBFULLNAME": "Some Body", "DEBEMAIL": "somebody@debian.org"}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source as it is now."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))[0]


@pytest.fixture(scope="session")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as 1.deb, and a later one with other settings in it as 2.deb."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    if subprocess.run(["/usr/bin/python3", "-c", "import ensurepip"], check=False).returncode:
        pytest.skip("/usr/bin/python3 has no venv; apt-get install python3-venv")
    folder = tmp_path_factory.mktemp("packages")
    tool = [sys.executable, str(ROOT / "tools" / "build_deb.py"), str(wheel)]
    subprocess.run(
        [*tool, "--output", str(folder), "--llama=best", "--compression=gzip"],
        env=os.environ | PACKER,
        check=True,
    )
    [package] = folder.glob("*.deb")
    first = package.rename(folder / "1.deb")
    unpacked = folder / "unpacked"
    subprocess.run(["dpkg-deb", "--raw-extract", str(first), str(unpacked)], check=True)
    control = unpacked / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("-1\nArch", "-2\nArch"))
    for name in ("agent.env", "balancer.env"):
        with (unpacked / "etc" / "paddler-trio" / name).open("a") as settings:
            settings.write("# Said since version 2.\n")
    pack = ["dpkg-deb", "--root-owner-group", "-Znone", "--build"]
    subprocess.run([*pack, str(unpacked), str(folder / "2.deb")], check=True)
    shutil.rmtree(unpacked)
    return folder
