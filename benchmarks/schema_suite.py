"""What answers are held to of the official JSON-Schema-Test-Suite.

    python benchmarks/schema_suite.py FOLDER

FOLDER is the suite's (MIT; the source archive of ``jsonschema`` has it as ``json``). For each
keyword, of the values that its schemas allow: how many can be written; and of those that they
forbid: how many cannot be, can be and are reported in the header of what is not held, and can be
and are not reported.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from paddler_trio.language.grammars.conversion import AnswerGrammar, write_schema
from paddler_trio.language.grammars.lark import GrammarError, LarkWriter
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling.constraint import Constraint
from paddler_trio.wire.json_schema import lawful_schema

DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
COLUMNS = ("allowed: written", "allowed: not", "forbidden: not", "reported", "forbidden: written")


def accepts(llama: Llama, grammar: AnswerGrammar, value: object) -> bool:
    """Whether the value can be the whole answer."""
    constraint = Constraint.build(llama, grammar.compiled())
    for token in [*llama.tokenize(json.dumps(value, ensure_ascii=False)), llama.end_tokens[0]]:
        if not constraint.advance(token):
            return False
    return True


def judge(llama: Llama, group: Mapping[str, object], counts: Counter[str]) -> None:
    """Count the values of one schema."""
    schema = group["schema"]
    is_reported = False
    if isinstance(schema, dict):
        lawful = lawful_schema(schema)
        is_reported = bool(lawful.lost or lawful.unbound)
    writer = LarkWriter()
    is_reported_here = writer.work.unbound  # filled while it is written
    try:
        grammar = AnswerGrammar(writer.text(write_schema(schema, writer, is_lenient=True)))
        grammar.compiled()
    except GrammarError:
        counts["refused schemas"] += 1
        return
    tests = group["tests"]
    assert isinstance(tests, list), "a group has tests"
    for test in tests:
        is_written = accepts(llama, grammar, test["data"])
        if test["valid"]:
            counts["allowed: written" if is_written else "allowed: not"] += 1
        elif not is_written:
            counts["forbidden: not"] += 1
        else:
            is_told = is_reported or bool(is_reported_here)
            counts["reported" if is_told else "forbidden: written"] += 1
            if not is_told:
                print(f"not reported: {group['description']}: {test['description']}")


def main(folder: Path) -> None:
    llama = Llama(Vocabulary.load(BUNDLED_MODEL)._model)
    by_keyword: dict[str, Counter[str]] = {}
    for draft in DRAFTS:
        for path in sorted((folder / "tests" / draft).glob("*.json")):
            counts = by_keyword.setdefault(path.stem, Counter())
            for group in json.loads(path.read_text()):
                judge(llama, group, counts)
    print("| keyword | " + " | ".join((*COLUMNS, "refused schemas")) + " |")
    total = Counter[str]()
    for keyword, counts in [*sorted(by_keyword.items()), ("all", total)]:
        cells = " | ".join(str(counts[column]) for column in (*COLUMNS, "refused schemas"))
        print(f"| {keyword} | {cells} |")
        total.update(counts if counts is not total else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
