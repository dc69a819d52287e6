"""docs/settings.md: its file is right, and so are the problems that it shows."""

from __future__ import annotations

import re
from pathlib import Path

from cli_in_process import invoke

PAGE = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()


def test_the_file_on_the_page_is_accepted(tmp_path: Path) -> None:
    (sample,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    file = tmp_path / "settings.toml"
    file.write_text(sample)
    ended = invoke("config", "check", file)
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout == f"{file}: [balancer] 17 settings, [agent] 7 settings\n"


def test_the_problems_on_the_page_are_those_that_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    shown = re.findall(r"^paddler-trio: settings.toml: (\[\w+\]) (.*? = .*?): .*$", PAGE, re.M)
    assert len(shown) == 2
    file.write_text("".join(f"{table}\n{entry}\n" for table, entry in shown))
    printed = invoke("config", "check", file).stderr
    assert printed.replace(str(file), "settings.toml") in PAGE
