"""An authority of one's own, and certificates that clients accept for exactly their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import openssl
from cli_in_process import invoke
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.own_authority import alternative_names, new_authority, new_certificate
from paddler_trio.net.tls.server_context import TlsFiles, read_server_certificate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "tls"
    new_authority(folder, "our models")
    return folder


def test_a_certificate_is_served_and_verified_for_its_names(folder: Path) -> None:
    hosts = ["llm.example.org", "192.0.2.7", "2001:db8::1", "*.models.example.org"]
    cert, key = new_certificate(folder, hosts, stem="server", days=10)
    read = read_server_certificate(TlsFiles(cert, key))
    assert [each.issuer == each.subject for each in read.chain] == [False, True]
    assert key.stat().st_mode & 0o077 == (folder / "ca.key").stat().st_mode & 0o077 == 0
    for option, value in (
        ("-verify_hostname", "LLM.example.org"),
        ("-verify_hostname", "a.models.example.org"),
        ("-verify_ip", "192.0.2.7"),
        ("-verify_ip", "2001:db8::1"),
    ):
        openssl(
            "verify", "-x509_strict", "-CAfile", str(folder / "ca.pem"), option, value, str(cert)
        )
    with pytest.raises(AssertionError, match="hostname mismatch"):
        openssl("verify", "-CAfile", str(folder / "ca.pem"), "-verify_hostname", "b.org", str(cert))


def test_nothing_is_overwritten_unless_it_is_renewed(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ca\.pem is there already"):
        new_authority(folder, "again")
    cert, _ = new_certificate(folder, ["a.org"], stem="renewed", days=10)
    before = cert.read_bytes()
    with pytest.raises(ConfigurationError, match=r"renewed\.pem is there already"):
        new_certificate(folder, ["a.org"], stem="renewed", days=10)
    assert cert.read_bytes() == before
    cert, key = new_certificate(folder, ["a.org"], stem="renewed", days=10, replace=True)
    assert cert.read_bytes() != before
    read_server_certificate(TlsFiles(cert, key))
    assert sorted(each.name for each in folder.iterdir() if each.name.startswith(".")) == []


def test_without_an_authority_there_is_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"tls new-ca --folder {tmp_path}"):
        new_certificate(tmp_path, ["a.org"], stem="server", days=1)


@pytest.mark.parametrize(
    "host",
    ["", "https://a.org", "a.org:80", "a..org", "-a.org", "a,DNS:b.org", "fe80::1%eth0,DNS:b",
     "a/b", "x" * 254, "*", "a.*.org", "a b"],
)  # fmt: skip
def test_hosts_that_are_none_are_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no name or address of a machine"):
        alternative_names([host])


@given(host=st.text(max_size=30))
def test_no_host_adds_anything_to_the_names(host: str) -> None:
    try:
        names = alternative_names([host])
    except ConfigurationError:
        return
    assert "," not in names
    assert names.partition(":")[0] in {"IP", "DNS"}
    assert names.isascii()


@pytest.mark.parametrize("name", ["", "a/CN=b", "a=b", "x" * 65, "a\nb"])
def test_names_of_authorities_that_openssl_would_interpret_are_refused(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="letters, digits"):
        new_authority(tmp_path, name)


def test_without_openssl_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="apt install openssl"):
        new_authority(tmp_path / "new", "ours")


def test_the_commands_say_what_comes_next(tmp_path: Path) -> None:
    made = invoke("tls", "new-ca", "--folder", tmp_path, "--name", "ours")
    assert (made.exit_code, made.stdout) == (0, f"{tmp_path}/ca.pem\n")
    assert f"tls new-cert NAME --folder {tmp_path}" in made.stderr
    made = invoke("tls", "new-cert", "localhost", "127.0.0.1", "--folder", tmp_path)
    assert made.stdout == f"{tmp_path}/server.pem\n{tmp_path}/server.key\n"
    assert f"--tls-cert {tmp_path}/server.pem --tls-key {tmp_path}/server.key" in made.stderr
    again = invoke("tls", "new-cert", "localhost", "--folder", tmp_path)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "is there already, and is not overwritten" in again.stderr
    renewed = invoke("tls", "new-cert", "localhost", "--folder", tmp_path, "--replace")
    assert renewed.exit_code == 0
    assert invoke("tls", "new-cert", "a.org", "--folder", tmp_path, "--out=../x").exit_code == 2
