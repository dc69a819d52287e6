"""What MkDocs does beyond mkdocs.yml: see ``tools/site_text.py``, which does it without MkDocs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from site_text import foreign_loads, shown  # noqa: E402


def on_files(files: Any, config: Any) -> Any:
    """The panel's icon is the site's."""
    icon = ROOT / "panel" / "src" / "icon.svg"
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(icon)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """What readers see of a page."""
    return shown(markdown)


def on_post_build(config: Any) -> None:
    """PluginError if a page loads something from elsewhere: the site works without the internet."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        loads = foreign_loads(page.read_text(encoding="utf-8"))
        if loads:
            name = page.relative_to(config.site_dir)
            raise PluginError(f"{name} loads {', '.join(loads)}")
