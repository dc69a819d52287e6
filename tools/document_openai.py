"""Write the tables of ``docs/openai.md`` and ``docs/ollama.md`` from those that read the requests:
they cannot differ.

What stands above the marker in a page is written by hand.

.venv/bin/python tools/document_openai.py          # writes both
.venv/bin/python tools/document_openai.py --check  # exit code 1 if it would change
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from paddler_trio.balancer.apis.fields import Field, FieldSupport, Record
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.infill import infill_record
from paddler_trio.balancer.apis.llama_server.llama_completion import MAX_REPEATED_CHARS
from paddler_trio.balancer.apis.llama_server.model_routes import detokenize_record, tokenize_record
from paddler_trio.balancer.apis.ollama import ollama_fields
from paddler_trio.balancer.apis.openai.chat_fields import chat_record
from paddler_trio.balancer.apis.openai.completion_request import (
    completion_record,
    llama_completion_record,
)
from paddler_trio.balancer.apis.openai.embeddings import embeddings_record, llama_embeddings_record
from paddler_trio.balancer.apis.prompts import MAX_TEXTS_AMONG_IDS

DOCS = Path(__file__).parents[1] / "docs"
LIMITS = ApiLimits()

MARKER = "<!-- From here on this page is written by tools/document_openai.py. -->\n"

SECTIONS = {
    "`POST /v1/chat/completions`": chat_record(LIMITS),
    "`POST /v1/completions`": completion_record(LIMITS),
    "`POST /completion`": llama_completion_record(LIMITS),
    "`POST /infill`": infill_record(LIMITS),
    "`POST /v1/embeddings`": embeddings_record(LIMITS),
    "`POST /embedding`": llama_embeddings_record(LIMITS),
    "`POST /tokenize`": tokenize_record(LIMITS),
    "`POST /detokenize`": detokenize_record(LIMITS),
}
OLLAMA_SECTIONS = {
    "`POST /api/chat`": ollama_fields.chat_record(LIMITS),
    "`POST /api/generate`": ollama_fields.generate_record(LIMITS),
    "`options`": ollama_fields.options_record(LIMITS),
    "`POST /api/embed`": ollama_fields.embed_record(LIMITS),
    "`POST /api/embeddings`": ollama_fields.embeddings_record(LIMITS),
    "`POST /api/show`": ollama_fields.show_record(LIMITS),
    "`POST /api/pull`": ollama_fields.pull_record(LIMITS),
}
PAGES = {"openai.md": SECTIONS, "ollama.md": OLLAMA_SECTIONS}


def page(name: str, current: str) -> str:
    """The whole of a page; ``current`` is what it is now."""
    introduction, marker, _ = current.partition(MARKER)
    assert marker, f"{name} has lost its marker: {MARKER}"
    sections = [_section(title, record) for title, record in PAGES[name].items()]
    limits = [_limits()] if name == "openai.md" else []
    return introduction + MARKER + "\n" + "\n".join([*limits, *sections])


def _limits() -> str:
    rows = dict(_described_limits())
    lines = ["## Limits", "", "Set with `--openai-limit name=value`; errors name them.", ""]
    lines += ["| limit | what it bounds | default |", "|---|---|---|"]
    lines += [
        f"| `{field.name}` | {rows[field.name]} | {field.default:,} |"
        for field in attrs.fields(ApiLimits)
    ]
    fixed = (
        f"Fixed: {MAX_TEXTS_AMONG_IDS:,} texts among the token ids of one request "
        '(`[1, "text", 2]`). `/completion` repeats `generation_settings` and `prompt` in each of '
        f"several answers up to {MAX_REPEATED_CHARS:,} characters in all; beyond that the settings "
        "are in the first answer, and a prompt in the first of its own."
    )
    return "\n".join([*lines, "", fixed, ""])


def _described_limits() -> Iterator[tuple[str, str]]:
    """The ``Attributes`` of the class's own docstring."""
    text = inspect.getdoc(ApiLimits) or ""
    for names, note in re.findall(r"^  ([a-z_, ]+): (.*?)(?=^  [a-z_, ]+:|\Z)", text, re.M | re.S):
        for name in names.split(", "):
            yield name, " ".join(note.replace("``", "`").split())


def _section(title: str, record: Record) -> str:
    lines = [f"## {title}", "", record.note, ""]
    lines += _table("honoured", _of(record, FieldSupport.HONOURED), "what it does")
    lines += _table("accepted", _of(record, FieldSupport.ACCEPTED), "why it has no effect")
    lines += _table("ignored", _of(record, FieldSupport.IGNORED), "why; what asks for nothing")
    lines += _table(
        "refused", _of(record, FieldSupport.REFUSED), "why; what is allowed nevertheless"
    )
    return "\n".join(lines)


def _of(record: Record, support: FieldSupport) -> list[Field]:
    return [field for field in record if field.support is support]


def _table(name: str, fields: Iterable[Field], heading: str) -> Iterator[str]:
    rows = [_row(field) for field in fields]
    if rows:
        yield from [f"| {name} | {heading} |", "|---|---|", *rows, ""]


def _row(field: Field) -> str:
    names = ", ".join(f"`{name}`" for name in (field.name, *field.aliases))
    note = field.note
    if field.support in (FieldSupport.IGNORED, FieldSupport.REFUSED):
        note = note[0].upper() + note[1:] + "."
        if field.neutral:
            note += " " + ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
    if field.is_required:
        note = "Required. " + note
    return f"| {names} | {note.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    for name in PAGES:
        file = DOCS / name
        current = file.read_text(encoding="utf-8")
        text = page(name, current)
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif current != text:
            sys.exit(f"docs/{name} is not what the tables say: run tools/document_openai.py")
