"""Write manual pages from the commands themselves: one for each, and one that lists them.

.venv/bin/python tools/write_manual.py FOLDER     # FOLDER/paddler-trio.1 and its companions
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from paddler_trio import __version__
from paddler_trio.cli.commands import command_line

PROGRAM = "paddler-trio"


def write_pages(folder: Path) -> list[Path]:
    """Every page, uncompressed."""
    root = typer.main.get_command(command_line())
    commands = list(_commands(root, ()))
    folder.mkdir(parents=True, exist_ok=True)
    texts = {PROGRAM: _overview(root, commands)}
    texts |= {_page_name(words): _page(words, command) for words, command in commands}
    written = []
    for name, text in texts.items():
        page = folder / f"{name}.1"
        page.write_text(text)
        written.append(page)
    return written


def _commands(group: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that runs something, by its words after the program's name."""
    for name, command in group.commands.items():
        words = (*above, name)
        is_group = hasattr(command, "commands")
        if not is_group or command.invoke_without_command:
            yield words, command
        if is_group:
            yield from _commands(command, words)


def _page_name(words: tuple[str, ...]) -> str:
    return "-".join((PROGRAM, *words))


def _overview(root: Any, commands: list[tuple[tuple[str, ...], Any]]) -> str:
    lines = [*_head(PROGRAM, _first_sentence(root)), ".SH SYNOPSIS"]
    lines += [f".B {_roff(PROGRAM)}", ".I command", "[options]", ".SH COMMANDS"]
    for words, command in commands:
        lines += [".TP", f".BR {_roff(_page_name(words))} (1)", _roff(_first_sentence(command))]
    lines += [".SH EXIT STATUS", "0 done; 1 it did not work, and one line on standard error says"]
    lines += ["why; 2 the command line is wrong, or a file that it names; 130 interrupted."]
    return "\n".join([*lines, ""])


def _page(words: tuple[str, ...], command: Any) -> str:
    called = " ".join((PROGRAM, *words))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    lines = [*_head(_page_name(words), _first_sentence(command)), ".SH SYNOPSIS"]
    lines += [f".B {_roff(called)}", *(f".I {_roff(each.name.upper())}" for each in arguments)]
    lines += ["[options]", ".SH DESCRIPTION", _roff(_one_line(command.help))]
    if arguments:
        lines += [".SH ARGUMENTS"]
        for each in arguments:
            lines += [".TP", f".I {_roff(each.name.upper())}", _roff(_one_line(each.help))]
    if options:
        lines += [".SH OPTIONS"]
        for each in options:
            flags = ", ".join((*each.opts, *each.secondary_opts))
            lines += [".TP", f".B {_roff(flags)}", _roff(_one_line(each.help) + _default(each))]
    lines += [".SH SEE ALSO", f".BR {_roff(PROGRAM)} (1)"]
    return "\n".join([*lines, ""])


def _head(name: str, sentence: str) -> list[str]:
    title = name.upper().replace("-", "\\-")
    return [
        f'.TH "{title}" 1 "" "paddler\\-trio {__version__}" "paddler\\-trio"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(sentence.rstrip('.'))}",
    ]


def _default(option: Any) -> str:
    shown = option.show_default if isinstance(option.show_default, str) else None
    value = shown or getattr(option.default, "value", option.default)
    if option.is_flag or value in (None, ()) or callable(value):
        return ""
    return f" [default: {value}]"


def _first_sentence(command: Any) -> str:
    return _one_line(command.help).partition("; ")[0]


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _roff(text: str) -> str:
    """``text`` as roff reads it: nothing in it is a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
