"""What a log never shows, however it is rendered."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging, structlog
from paddler_trio.daemon.logs import configure_logs

configure_logs(level="debug", as_json={as_json})

def fails(headers):
    secret = headers["authorization"]
    raise ValueError("no secret in these words")

try:
    fails({{"authorization": "Bearer pt-" + "abc" * 5}})
except ValueError as error:
    structlog.get_logger("a").error("ours", exc_info=error)
    logging.getLogger("b").error("theirs", exc_info=error)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_values(as_json: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(as_json=as_json)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr.count("no secret in these words") == 2
    assert "in fails" in ended.stderr
    assert "pt-abcabc" not in ended.stderr
