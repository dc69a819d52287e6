"""The commands of docs/tls.md, run as they stand there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from paddler_trio.net.tls.server_context import TlsFiles, read_server_certificate

PAGE = Path(__file__).parents[4] / "docs" / "tls.md"


def test_the_documented_commands_make_a_certificate_that_is_served(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## A certificate of your own authority")[2]
    commands = section.split("```sh\n")[2].partition("```")[0]
    ran = subprocess.run(
        ["sh", "-euc", commands],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    read = read_server_certificate(
        TlsFiles.of(
            tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem", "optional"
        )  # type: ignore[arg-type]
    )
    assert [each.issuer == each.subject for each in read.chain] == [False, True]
    verified = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem",
         "-verify_hostname", "llm.example.org", "-verify_ip", "192.0.2.7", "leaf.pem"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr
