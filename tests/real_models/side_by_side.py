"""A fleet of ours and llama-server of the same build, which serve one model side by side."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import httpx
import pytest
from fleet import Fleet
from llama_server_shim import NEUTRAL
from trained_models import cache, model_path

START_S = 120
ANSWER_S = 180
_LISTENS = re.compile(r"listening on (http://127\.0\.0\.1:\d+)")


def require(name: str) -> Path:
    """Return where this model is; skip the test where it was not fetched."""
    path = model_path(name)
    if not path.exists():
        pytest.skip(f"{path} is not there: `make test.real` fetches it")
    return path


def require_llama_server() -> Path:
    """Return llama-server of the build that our package is; skip the test where there is none."""
    given = os.environ.get("LLAMA_SERVER")
    built = (
        [Path(given)] if given else sorted(cache().glob("llama-server/build-*/bin/llama-server"))
    )
    if not built:
        pytest.skip(f"no llama-server in {cache()}: `make test.real` builds it")
    return built[0]


@contextmanager
def llama_server(model: Path, *options: str) -> Iterator[str]:
    """Run it with this model; yield its URL once it serves."""
    command = [require_llama_server(), "--model", model, "--host", "127.0.0.1", "--port", "0"]
    command += ["--threads", "1", "--no-ui", "--jinja", "--swa-full", *options]
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    lines: deque[str] = deque(maxlen=40)
    url: list[str] = []
    serves = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if not url and (found := _LISTENS.search(line)):
                url.append(found[1])
                serves.set()
        serves.set()  # it has ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert serves.wait(START_S), "llama-server does not listen"
        assert url, f"llama-server has ended: {''.join(lines)}"
        yield url[0]
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


@attrs.frozen
class Pair:
    """Two servers that are asked the same."""

    ours: httpx.Client
    theirs: httpx.Client

    def ask(self, path: str, **body: Any) -> tuple[Any, Any]:
        """Return both answers, ours first; a refusal is a failure."""
        answers = []
        for server in (self.ours, self.theirs):
            answer = server.post(path, json=body)
            assert answer.status_code == 200, f"{server.base_url}{path}: {answer.text}"
            answers.append(answer.json())
        return answers[0], answers[1]


@contextmanager
def side_by_side(
    model: Path,
    *options: str,
    context: int = 2048,
    slots: int = 2,
    template: str | None = None,
    parameters: Mapping[str, object] | None = None,
) -> Iterator[Pair]:
    """Serve ``model`` by both, with ``context`` tokens for each of ``slots`` requests.

    ``options`` are further ones of llama-server, ``parameters`` of our deployment.
    """
    cells = context * slots
    deployment: dict[str, object] = {
        "name": "default",
        "model": {"LocalToAgent": str(model)},
        "parameters": {**NEUTRAL, "temperature": 0.8, "context_size": cells, **(parameters or {})},
    }
    with ExitStack() as stack:
        more = ["--ctx-size", str(cells), "--parallel", str(slots), *options]
        if template is not None:
            deployment["template"] = template
            file = Path(stack.enter_context(TemporaryDirectory()), "template.jinja")
            file.write_text(template)
            more += ["--chat-template-file", str(file)]
        url = stack.enter_context(llama_server(model, *more))
        fleet = stack.enter_context(Fleet.start(agents=1, slots=slots, model=None))
        httpx.put(
            f"{fleet.management_url}/api/v2/fleet",
            json={"state": {"deployments": [deployment]}, "note": "beside llama-server"},
            trust_env=False,
            timeout=ANSWER_S,
        ).raise_for_status()
        fleet.wait_serving()
        ours, theirs = (
            stack.enter_context(httpx.Client(base_url=each, trust_env=False, timeout=ANSWER_S))
            for each in (fleet.inference_url, url)
        )
        yield Pair(ours, theirs)
