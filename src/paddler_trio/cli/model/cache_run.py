"""The work of ``model pull``, ``list``, ``verify`` and ``prune``, given what the flags say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import PurePosixPath
from typing import Final

import attrs
import typer
from rich.text import Text

from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.management_client import Json, ManagementClient
from paddler_trio.cli.model.cache_display import follow, size_words, when_words
from paddler_trio.cli.model.model_order import sources_of
from paddler_trio.cli.model.store_client import StoreClient
from paddler_trio.cli.model.store_rows import Row, store_rows
from paddler_trio.cli.terminal import (
    print_json,
    print_lines,
    printable,
    shown_width,
    stderr,
    stdout,
)
from paddler_trio.models.cache.cache_inventory import SourcePattern
from paddler_trio.models.model_reference import UnknownSourceError
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

CACHE_COLUMNS: Final[tuple[Column[Row], ...]] = (
    Column("source", 28, itemgetter(0), keeps_end=True),
    Column("size", 0, itemgetter(1)),
    Column("where", 12, itemgetter(2), importance=1),
    Column("last use", 0, itemgetter(3), importance=2),
    Column("verified", 0, itemgetter(4), importance=3),
    Column("state", 0, itemgetter(5)),
)
"""The columns of `model list`, of rows as `rows` and `store_rows` make them."""
UNABLE = 501
"""The code of an agent that has no such commands: Paddler's."""


@attrs.frozen
class AgentResult:
    """The last line of one agent: its answer, or its problem with a code like HTTP's."""

    id: str
    name: str | None
    answer: Json | None
    problem: str | None
    code: int

    @classmethod
    def of(cls, line: Mapping[str, object]) -> AgentResult:
        answer, code = line.get("answer"), line.get("code")
        return cls(
            id=str(line.get("agent")),
            name=None if line.get("name") is None else str(line.get("name")),
            answer=answer if isinstance(answer, dict) else None,
            problem=None if "problem" not in line else str(line["problem"]),
            code=code if isinstance(code, int) else 0,
        )

    @property
    def label(self) -> str:
        return self.name or self.id

    def entries(self, key: str) -> list[Json]:
        """The objects in a list of the answer."""
        found = None if self.answer is None else self.answer.get(key)
        return (
            [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
        )


def pull_models(
    client: ManagementClient,
    source: str,
    projection: str | None,
    *,
    agents: Sequence[str] | None,
    as_json: bool,
) -> int:
    """Fetch on agents; returns the exit code."""
    model, its_projection = sources_of(source, projection)
    wanted = [_fetched(m) for m in (model, its_projection) if m not in {None, NoModel()}]
    fields = {"models": wanted, **_only(agents)}
    if not wanted:
        raise typer.BadParameter("it is no model: there is nothing to fetch", param_hint="SOURCE")
    try:
        results = _results(client.command_caches("pull", fields), as_json=as_json)
    except KeyboardInterrupt:
        stderr().print("stopped; what is here of the files stays, and the same command goes on")
        raise
    if not as_json:
        for result in results:
            for file in result.entries("files"):
                words = f"{file.get('source')} ({size_words(file.get('size_bytes'))})"
                stdout().print(Text(printable(f"{result.label}: {words} is at {file.get('path')}")))
    return result_code(results, named=agents is not None, as_json=as_json)


def list_caches(
    client: ManagementClient,
    store: StoreClient | None,
    *,
    agents: Sequence[str] | None,
    wide: bool,
    as_json: bool,
) -> int:
    """Print what agents keep, and the balancer's ``store`` unless it is None; returns the exit
    code."""
    results = _listed(client, agents)
    stored = None if store is None else store.listing()
    if as_json:
        print_json({"agents": [_told(result) for result in results], "store": stored})
        return 0 if not results or any(result.answer is not None for result in results) else 1
    found = [*rows(results), *store_rows(stored or {})]
    if found:
        print_lines(table(CACHE_COLUMNS, found, shown_width(wide=wide)))
    left_out = sum(_int(result.answer.get("left_out")) for result in results if result.answer)
    if left_out:
        stderr().print(f"{left_out} more models are not listed")
    return result_code(results, named=agents is not None, as_json=as_json)


def verify_caches(
    client: ManagementClient,
    sources: Sequence[str],
    *,
    agents: Sequence[str] | None,
    as_json: bool,
) -> int:
    """Hash what agents keep, each cache once; returns the exit code."""
    for source in sources:
        try:
            SourcePattern.parse(source)
        except UnknownSourceError as error:
            raise typer.BadParameter(str(error), param_hint="SOURCE") from error
    chosen = one_of_each_cache(_listed(client, agents))
    fields = {"sources": list(sources), "agents": chosen}
    results = _results(client.command_caches("verify", fields), as_json=as_json)
    files = [(result, file) for result in results for file in result.entries("files")]
    bad = [pair for pair in files if pair[1].get("result") in {"quarantined", "failed"}]
    if not as_json:
        counts = Counter((result.id, str(file.get("source"))) for result, file in files)
        for result, file in files:
            problem = f": {file['problem']}" if file.get("problem") else ""
            source = str(file.get("source"))
            part = PurePosixPath(str(file.get("path"))).name
            of_it = f": {part}" if counts[result.id, source] > 1 else ""
            words = f"{result.label}: {source}{of_it}: {file.get('result')}{problem}"
            (stderr() if (result, file) in bad else stdout()).print(Text(printable(words)))
        if not files:
            stderr().print("no cached model is selected: see `paddler-trio model list`")
    code = result_code(results, named=agents is not None, as_json=as_json)
    return 1 if bad or (sources and not files) else code


def prune_caches(
    client: ManagementClient,
    rules: Mapping[str, object],
    *,
    dry_run: bool,
    agents: Sequence[str] | None,
    as_json: bool,
) -> int:
    """Remove what nothing keeps, in each cache once; returns the exit code."""
    chosen = one_of_each_cache(_listed(client, agents))
    fields = {**rules, "dry_run": dry_run, "agents": chosen}
    results = _results(client.command_caches("prune", fields), as_json=as_json)
    freed_bytes, problems = 0, 0
    for result in results:
        freed_bytes += _int(None if result.answer is None else result.answer.get("freed_bytes"))
        for gone in result.entries("removed"):
            problem = gone.get("problem")
            problems += problem is not None
            if not as_json:
                what = f"{result.label}: {gone.get('source')}"
                size = size_words(gone.get("size_bytes"))
                words = f"{what} stays: {problem}" if problem else f"{what} ({size})"
                stdout().print(Text(printable(words)))
    if not as_json:
        what = "would be freed" if dry_run else "freed"
        stdout().print(f"{size_words(freed_bytes)} {what}")
    return 1 if problems else result_code(results, named=agents is not None, as_json=as_json)


def one_of_each_cache(results: Iterable[AgentResult]) -> list[str]:
    """The ids of agents that together have all caches: of those that share theirs, one; those that
    could not answer are asked again, for their problem."""
    seen: set[object] = set()
    chosen = []
    for result in results:
        caches = None if result.answer is None else result.answer.get("caches")
        key = tuple(caches) if isinstance(caches, list) else result.id
        if key not in seen:
            seen.add(key)
            chosen.append(result.id)
    return chosen


def _fetched(model: DesiredModel | None) -> object:
    if isinstance(model, LocalToAgent):
        raise typer.BadParameter(
            f"{model.path} is a path on the agents: there is nothing to fetch; a file of this "
            "machine is uploaded by `paddler-trio model push`",
            param_hint="SOURCE",
        )
    assert isinstance(model, UrlModel | HuggingFaceModel)
    return unstructure(model, DesiredModel)


def _only(agents: Sequence[str] | None) -> dict[str, object]:
    return {} if agents is None else {"agents": list(agents)}


def _listed(client: ManagementClient, agents: Sequence[str] | None) -> list[AgentResult]:
    """Return what the agents keep; BalancerRefusedError if one that is named is not connected."""
    results = _results(client.command_caches(None, _only(agents)), as_json=False)
    return sorted(results, key=lambda result: (result.label, result.id))


def _results(lines: Iterable[Json], *, as_json: bool) -> list[AgentResult]:
    """Follow the lines to their end, shown as they come."""
    if not as_json:
        return [AgentResult.of(line) for line in follow(lines, stderr())]
    results = []
    for line in lines:
        print_json(line)
        if "progress" not in line:
            results.append(AgentResult.of(line))
    return results


def result_code(results: Sequence[AgentResult], *, named: bool, as_json: bool) -> int:
    """0 if all did what they were asked, but for agents that cannot and were not named."""
    failed = [result for result in results if result.answer is None]
    if not as_json:
        for result in failed:
            stderr().print(Text(printable(f"{result.label}: {result.problem}")))
    if not results:
        # an agent in front of a server is none; with --json nothing else would say it
        stderr().print(
            "no agent that keeps models is connected; start one with `paddler-trio agent`"
        )
    if not results or len(failed) == len(results):
        return 1
    return 1 if any(named or result.code != UNABLE for result in failed) else 0


def rows(results: Sequence[AgentResult]) -> list[tuple[str, ...]]:
    """A row for each model of each cache, with all agents that share it."""
    found: dict[tuple[str, str], tuple[Json, list[str]]] = {}
    for result in results:
        for model in result.entries("models"):
            key = str(model.get("cache")), str(model.get("path"))
            first, names = found.setdefault(key, (model, []))
            names.append(result.label)
            first["is_desired"] = first.get("is_desired") or model.get("is_desired")
    return [
        (
            str(model.get("source")),
            size_words(model.get("size_bytes")),
            ", ".join(names) + (" (one cache)" if len(names) > 1 else ""),
            "never" if model.get("last_used_s") is None else when_words(model.get("last_used_s")),
            "never" if model.get("verified_s") is None else when_words(model.get("verified_s")),
            _state_words(model),
        )
        for model, names in sorted(found.values(), key=lambda pair: str(pair[0].get("source")))
    ]


def _state_words(model: Json) -> str:
    words = []
    state = str(model.get("state"))
    total = model.get("total_bytes")
    if state in {"arriving", "partial"} and isinstance(total, int) and total:
        state += f" {_int(model.get('size_bytes')) / total:.0%}"
    if state == "incomplete":
        state += f", {model.get('missing_files')} of its files are missing"
    if state != "whole":
        words.append(state)
    if model.get("is_desired"):
        words.append("desired")
    if model.get("in_use"):
        words.append("in use")
    revisions = model.get("revisions")
    if isinstance(revisions, list) and revisions:
        words.append(f"is {', '.join(map(str, revisions))}")
    return ", ".join(words)


def _told(result: AgentResult) -> dict[str, object]:
    about = {"agent": result.id, "name": result.name}
    if result.answer is None:
        return {**about, "problem": result.problem, "code": result.code}
    return {**about, **result.answer}


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
