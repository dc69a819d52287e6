"""Read lines of a log page after page, and print them."""

from __future__ import annotations

import time
from typing import Final

import attrs

from paddler_trio.cli.balancer_http import BalancerRefusedError, BalancerUnreachableError
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.terminal import print_json, printable, stderr, stdout
from paddler_trio.wire.trio.operations.operator_orders import (
    MAX_LOG_LINES,
    LogLine,
    LogPage,
    read_page,
)

WAIT_MS: Final = 10_000
"""The time for which one answer waits for lines."""
ANSWER_S: Final = WAIT_MS / 1000 + 20
AGAIN_S: Final = 2.0
"""Between two tries to reach an agent that is lost."""
PASSING: Final = (404, 502, 503, 504)
STYLES: Final = {"warning": "yellow", "error": "red", "debug": "dim"}


@attrs.define
class LogReader:
    """Reads page after page, and says what is missing between two."""

    client: ManagementClient
    agent: str
    source: str
    as_json: bool = attrs.field(kw_only=True)
    _before: LogPage = attrs.field(factory=LogPage, init=False)
    _said: str = attrs.field(default="", init=False)
    """Why nothing came, as it was said last."""

    def ask(self, lines: int, **more: str) -> LogPage:
        """Ask the agent for one page."""
        params = {"source": self.source, "lines": str(lines), **more}
        return read_page(
            self.client.ask_agent("GET", self.agent, "logs", params=params, answer_s=ANSWER_S)
        )

    def follow(self) -> None:
        """Show what comes next; an agent that is lost is waited for."""
        before = self._before
        try:
            page = self.ask(
                MAX_LOG_LINES, after=str(before.last), life=before.life, wait_ms=str(WAIT_MS)
            )
        except (BalancerRefusedError, BalancerUnreachableError) as error:
            if isinstance(error, BalancerRefusedError) and error.status not in PASSING:
                raise
            self._note(f"{error}; tried again until Ctrl-C")
            time.sleep(AGAIN_S)
            return
        self._said = ""
        if page.life != before.life:
            self._note("the agent was started anew")
        elif page.missed:
            self._note(f"{page.missed} lines came too fast and are gone")
        self.show(page)

    def show(self, page: LogPage) -> None:
        """Print its lines."""
        self._before = page
        for line in page.lines:
            if self.as_json:
                print_json(attrs.asdict(line))
            else:
                style = STYLES.get(line.level, "")
                stdout().print(printable(_words(line)), style=style, soft_wrap=True)

    def _note(self, words: str) -> None:
        if words != self._said:
            self._said = words
            stderr().print(printable(f"-- {words}"), style="bold", soft_wrap=True)


def _words(line: LogLine) -> str:
    return f"{line.time[:19].replace('T', ' ')} {line.level:7} {line.text}"
