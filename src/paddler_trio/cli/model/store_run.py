"""The work of ``model pin``, ``unpin`` and ``prune --store``, given what the flags say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from paddler_trio.cli.model.cache_display import size_words
from paddler_trio.cli.model.store_client import StoreClient
from paddler_trio.cli.terminal import print_json, printable, stdout


def pin_models(store: StoreClient, sources: Sequence[str], *, pinned: bool, as_json: bool) -> None:
    """Pin what ``sources`` select, or take the pins back, and print the models."""
    answer = store.pin(sources, pinned=pinned)
    if as_json:
        print_json(answer)
        return
    word = "pinned" if pinned else "not pinned any more"
    for model in _entries(answer, "models"):
        size = size_words(model.get("size_bytes"))
        stdout().print(Text(printable(f"{model.get('source')} ({size}) is {word}")))


def prune_store(
    store: StoreClient, rules: Mapping[str, object], *, dry_run: bool, as_json: bool
) -> int:
    """Remove what nothing keeps; returns the exit code."""
    answer = store.prune({**rules, "dry_run": dry_run})
    removed = _entries(answer, "removed")
    if as_json:
        print_json(answer)
    else:
        for model in removed:
            size, problem = size_words(model.get("size_bytes")), model.get("problem")
            words = f" stays: {problem}" if problem else f" ({size})"
            stdout().print(Text(printable(f"store: {model.get('source')}{words}")))
        what = "would be freed" if dry_run else "freed"
        stdout().print(f"{size_words(answer.get('freed_bytes'))} {what}")
    return 1 if any(model.get("problem") for model in removed) else 0


def _entries(answer: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    found = answer.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
