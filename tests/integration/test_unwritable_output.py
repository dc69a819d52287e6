"""Commands whose output cannot be written, and those that are ended before they answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paddler_trio.balancer.keys.api_keys import read_key_file

COMMAND = [sys.executable, "-m", "paddler_trio"]
PATIENCE_S = 60.0
FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


def on_full_disk(*arguments: object) -> subprocess.CompletedProcess[str]:
    with FULL.open("w") as full:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.mark.parametrize("arguments", [["--version"], ["key", "--help"]], ids=" ".join)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    ended = on_full_disk(*arguments)
    words = "paddler-trio: cannot write the output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, words)


@pytest.mark.parametrize("has_others", [True, False])
def test_a_key_that_nobody_has_seen_is_not_stored(tmp_path: Path, has_others: bool) -> None:
    file = tmp_path / "keys.json"
    new = ["key", "new", "b", "--scope", "inference", "--file", file]
    if has_others:
        other = ["key", "new", "a", "--scope", "management", "--file", str(file)]
        subprocess.run([*COMMAND, *other], check=True, capture_output=True)
    before = read_key_file(file) if has_others else None
    ended = on_full_disk(*new)
    assert ended.returncode == 1
    content = read_key_file(file)
    if before is None:
        assert (content.keys, content.guarded) == ((), frozenset())
    else:
        assert content == before


def test_ctrl_c_before_a_command_has_begun_ends_it_without_a_traceback() -> None:
    """Its moment is the first import that a command line makes of its own."""
    program = (
        "import os, signal\n"
        "from paddler_trio import cli\n"
        "cli.command_line = lambda commands: os.kill(os.getpid(), signal.SIGINT)\n"
        "cli.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


@pytest.mark.parametrize("moment", ["loading", "model:"])
def test_a_demo_that_is_interrupted_before_its_answer_ends_at_once(moment: str) -> None:
    ports = ["--inference-addr", "127.0.0.1:0", "--management-addr", "127.0.0.1:0"]
    with subprocess.Popen(
        [*COMMAND, "demo", *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            told = ""
            while moment not in told:
                letter = demo.stdout.read(1)
                assert letter, f"it ended after {told!r}"
                told += letter
            demo.send_signal(signal.SIGINT)
            _, complaints = demo.communicate(timeout=30)  # its request waits for 60 s
        finally:
            demo.kill()
    assert demo.returncode == 0, complaints
    assert "Traceback" not in complaints


def without(redirections: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Started by a shell that has closed descriptors."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_an_output_that_is_closed_is_one_line(tmp_path: Path) -> None:
    ended = without("1>&-", *COMMAND, "--version")
    words = "paddler-trio: cannot write the output: Bad file descriptor\n"
    assert (ended.returncode, ended.stderr) == (1, words)
    file = tmp_path / "keys.json"
    ended = without("1>&-", *COMMAND, "key", "new", "b", "--scope", "inference", "--file", file)
    assert ended.returncode == 1
    assert read_key_file(file).keys == (), "nobody has seen it"
    assert without("0<&- 2>&-", *COMMAND, "--version").returncode == 0


def test_nothing_that_is_opened_later_takes_the_place_of_a_standard_stream(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = (
        "import os, socket, sys\n"
        "from pathlib import Path\n"
        "from paddler_trio.cli.terminal import open_missing_streams\n"
        "open_missing_streams()\n"
        "opened = socket.socket()\n"
        "print('for nobody', file=sys.stderr, flush=True)\n"
        "names = [os.readlink(f'/proc/self/fd/{number}') for number in range(3)]\n"
        "Path(sys.argv[1]).write_text(f'{opened.fileno() > 2} {sys.stdin.read()!r} {names}')\n"
    )
    ended = without("0<&- 1>&- 2>&-", sys.executable, "-c", program, told)
    assert ended.returncode == 0
    assert told.read_text() == f"True '' {['/dev/null'] * 3}"
