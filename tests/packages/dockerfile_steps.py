"""A Dockerfile as its instructions, in stages."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

KNOWN = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}


@attrs.frozen
class Step:
    """One instruction: ``word`` and everything after it, joined to one line."""

    word: str
    rest: str

    def words_of_json(self) -> list[str]:
        """Of the forms that take a list; what is before it are flags."""
        listed: list[str] = json.loads(self.rest[self.rest.index("[") :])
        return listed


def read_stages(path: Path) -> list[list[Step]]:
    """The instructions of each stage, its FROM first; what is before the first FROM is left out."""
    text = "\n".join(
        line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    lines = text.replace("\\\n", " ").splitlines()
    stages: list[list[Step]] = []
    for line in lines:
        word, _, rest = " ".join(line.split()).partition(" ")
        if not word:
            continue
        assert word in KNOWN, line
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append(Step(word, rest))
    return stages


def values(stage: list[Step], word: str) -> list[str]:
    """What follows ``word`` in each of its instructions."""
    return [step.rest for step in stage if step.word == word]
