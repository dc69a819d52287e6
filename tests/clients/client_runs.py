"""One run of somebody's client: a model with a script, a home with nothing in it, a relay between.

With ``WRITE_SHAPES=1`` the shapes of what the client asked are written beside the conformance tests
that send such requests again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
from fleet import Fleet
from recorder import Asked, recorder

from request_shapes import Shapes, first_and_last
from scripted_model import Script, write_scripted_model

RUN_S: Final = 240
"""Most of them take ten seconds, two when nothing else runs."""
CONTEXT: Final = 262_144
"""Of both slots together; coding tools begin with some 40,000 of this model's tokens."""
SHAPES: Final = Path(__file__).parents[1] / "conformance" / "client_shapes"


@attrs.define(eq=False)
class ClientRuns:
    """Where clients are run.

    Args:
      home: theirs, empty but for what is written into it here.
    """

    fleet: Fleet
    home: Path
    asked: list[Asked] = attrs.field(factory=list, init=False)
    """What the latest run has asked, and how it was answered."""
    dialled: list[int] = attrs.field(factory=list, init=False)
    """The statuses that WebSockets of the latest run were answered with."""

    @property
    def work(self) -> Path:
        """The folder that they are started in."""
        folder = self.home / "work"
        folder.mkdir(exist_ok=True)
        return folder

    def run(
        self,
        name: str,
        script: Script,
        command: Sequence[str],
        *,
        config: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> str:
        """Run a client to its end while the model writes the script; return its output.

        ``@URL@`` is the fleet's address in ``env`` and in the texts of ``config``, files by their
        paths below the home. Fails unless the client ends well, and each of its requests with 200.
        """
        model = write_scripted_model(self.home / "scripted.gguf", script)
        self.fleet.desire(model, context_size=CONTEXT)
        self.fleet.wait_serving()
        work = self.work
        with recorder(self.fleet.inference) as relay:
            for place, text in (config or {}).items():
                path = self.home / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("@URL@", relay.url))
            given = {each: text.replace("@URL@", relay.url) for each, text in (env or {}).items()}
            ended = subprocess.run(
                list(command),
                cwd=work,
                env={"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "dumb", **given},
                input=stdin,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
        exchanges = relay.exchanges()
        self.asked = [each for each in exchanges if each.method == "POST"]
        self.dialled = [each.status for each in exchanges if "upgrade" in each.headers]
        told = f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
        wrong = [(each.path, each.status, each.answer) for each in self.asked if each.status != 200]
        assert wrong == [], told
        assert ended.returncode == 0, told
        self._write_shapes(name)
        return ended.stdout

    def _write_shapes(self, name: str) -> None:
        if os.environ.get("WRITE_SHAPES") != "1":
            return
        shapes = Shapes()
        requests = [
            {"path": each.path, "body": shapes.of(each.body)}
            for each in self.asked
            if isinstance(each.body, dict)
        ]
        path = SHAPES / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else []
        lines = ",\n".join(json.dumps(each) for each in first_and_last(known, requests))
        path.write_text(f"[\n{lines}\n]\n")
