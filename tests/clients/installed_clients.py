"""Clients that other people wrote, each installed for itself into a cache, in the version below."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paddler-trio" / "clients"
)
INSTALL_S: Final = 600
NPM: Final = {
    "codex": ("@openai/codex@0.171.0",),
    "claude-code": ("@anthropic-ai/claude-code@2.1.197",),
    "opencode": ("opencode-ai@1.18.33",),
    "ai-sdk": (
        *("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92"),
        *("@ai-sdk/anthropic@3.0.140", "zod@4.6.7"),
    ),
    "ollama-js": ("ollama@0.6.4",),
}
"""Packages of npm's registry; what they install themselves with is run."""
PYPI: Final = {
    "aider": ("aider-chat==0.86.2",),
    "openai-agents": ("openai-agents==0.24.0",),
    "langchain": (
        *("langchain==1.5.2", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"),
        "langchain-ollama==1.1.0",
    ),
    "ollama-texts": (
        *("litellm==1.110.2", "langchain-ollama==1.1.0", "llama-index-llms-ollama==0.11.0"),
    ),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic]==2.68.0",),
}


def installed(name: str) -> Path:
    """Return the folder with the client's programs; the test is skipped where it cannot be had."""
    packages = NPM.get(name) or PYPI[name]
    folder = CACHE / name
    mark = folder / "installed"
    wanted = "\n".join(packages)
    if not (mark.exists() and mark.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in _from_npm(folder, packages) if name in NPM else _from_pypi(folder, packages):
            _run(command, folder)
        mark.write_text(wanted)
    return folder / "node_modules" / ".bin" if name in NPM else folder / "bin"


def _from_npm(folder: Path, packages: tuple[str, ...]) -> list[list[str]]:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    names = [each.rpartition("@")[0] for each in packages]
    package = {"private": True, "type": "module", "allowScripts": dict.fromkeys(names, True)}
    (folder / "package.json").write_text(json.dumps(package))
    return [["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages]]


def _from_pypi(folder: Path, packages: tuple[str, ...]) -> list[list[str]]:
    quiet = ["--quiet", "--disable-pip-version-check"]
    return [
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, *packages],
    ]


def _run(command: list[str], folder: Path) -> None:
    try:
        ended = _ended(command, folder)
    except subprocess.TimeoutExpired:
        pytest.skip(f"not installed within {INSTALL_S} s: {command[-1]}")
    if ended.returncode != 0:
        asked = (
            ["npm", "ping"] if command[0] == "npm" else [*command[:3], "index", "versions", "pip"]
        )
        if _ended(asked, folder).returncode != 0:
            pytest.skip(f"the registry that has {command[-1]} is not reachable")
        raise AssertionError(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")


def _ended(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
