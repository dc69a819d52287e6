"""Which files are refused, with which advice, and what a context allows."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest

from certificates import Authority, Pair, openssl
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.certificate import certificates_of
from paddler_trio.net.tls.server_context import ClientAuth, TlsFiles, read_server_certificate
from paddler_trio.net.tls.server_tls import warning_due

NOW = datetime.now(tz=UTC)
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign()


def refusal(files: TlsFiles) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_server_certificate(files)
    return str(refused.value)


def test_a_pair_is_read_with_its_chain(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(pair.cert.read_bytes() + authority.cert.read_bytes())
    read = read_server_certificate(TlsFiles(chain, pair.key))
    assert [each.issuer == each.subject for each in read.chain] == [False, True]
    assert read.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert read.context.options & ssl.OP_NO_RENEGOTIATION
    assert read.context.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("given", "auth", "mode"),
    [(None, ClientAuth.REQUIRED, ssl.CERT_REQUIRED), ("optional", ClientAuth.OPTIONAL,
     ssl.CERT_OPTIONAL), ("off", ClientAuth.OFF, ssl.CERT_NONE)],
)  # fmt: skip
def test_client_certificates_are_asked_for_as_the_flags_say(
    authority: Authority, pair: Pair, given: str | None, auth: ClientAuth, mode: ssl.VerifyMode
) -> None:
    files = TlsFiles.of(pair.cert, pair.key, authority.cert, given)
    assert files is not None
    assert files.client_auth is auth
    assert read_server_certificate(files).context.verify_mode is mode


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ((Path("c"), None), "--tls-cert needs the other half: give --tls-key FILE too"),
        ((None, Path("k")), "--tls-key needs the other half: give --tls-cert FILE too"),
        ((None, None, Path("ca")), "--tls-client-ca ca needs TLS"),
        ((None, None, None, "required"), "--tls-client-auth required needs TLS"),
        ((Path("c"), Path("k"), None, "optional"), "optional needs --tls-client-ca FILE"),
        ((Path("c"), Path("k"), None, "maybe"), "'maybe' is not off, optional or required"),
    ],
)
def test_flags_that_do_not_go_together(flags: tuple[Path | None, ...], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        TlsFiles.of(*flags)  # type: ignore[arg-type]


def test_no_flags_are_no_tls() -> None:
    assert TlsFiles.of(None, None) is None
    assert TlsFiles.of(None, None, None, "off") is None


def test_a_file_that_is_not_there(pair: Pair, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    assert refusal(TlsFiles(missing, pair.key)) == (
        f"cannot read --tls-cert {missing}: No such file or directory"
    )
    assert "cannot read --tls-key" in refusal(TlsFiles(pair.cert, missing))
    files = TlsFiles(pair.cert, pair.key, missing, ClientAuth.OPTIONAL)
    assert "cannot read --tls-client-ca" in refusal(files)


def test_a_key_of_another_certificate(authority: Authority, pair: Pair) -> None:
    other = authority.sign("other")
    text = refusal(TlsFiles(pair.cert, other.key))
    assert f"--tls-key {other.key} is not the key of the first certificate" in text
    rsa = authority.sign("rsa", key_options=("-newkey", "rsa:2048", "-nodes"))
    assert "is not the key of" in refusal(TlsFiles(pair.cert, rsa.key))


def test_a_chain_in_the_wrong_order(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(authority.cert.read_bytes() + pair.cert.read_bytes())
    assert "the server's own certificate before its chain" in refusal(TlsFiles(chain, pair.key))


def test_an_encrypted_key(pair: Pair, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    openssl("pkcs8", "-topk8", "-in", str(pair.key), "-out", str(locked), "-passout", "pass:x1y2")
    text = refusal(TlsFiles(pair.cert, locked))
    assert f"--tls-key {locked} is encrypted" in text
    assert "openssl pkey -in" in text


def test_an_expired_certificate_and_one_of_tomorrow(authority: Authority) -> None:
    old = authority.sign_for("old", NOW - timedelta(days=9), NOW - timedelta(days=1))
    assert f"the certificate in --tls-cert {old.cert} expired at" in refusal(
        TlsFiles(old.cert, old.key)
    )
    early = authority.sign_for("early", NOW + timedelta(days=1), NOW + timedelta(days=9))
    text = refusal(TlsFiles(early.cert, early.key))
    assert "is valid from" in text
    assert "set this machine's clock" in text


def test_files_that_hold_something_else(pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no PEM here\n")
    assert "holds no certificate: it must be PEM" in refusal(TlsFiles(text, pair.key))
    assert "cannot be used" in refusal(TlsFiles(pair.cert, text))
    files = TlsFiles(pair.cert, pair.key, text, ClientAuth.REQUIRED)
    assert f"--tls-client-ca {text} holds no certificate" in refusal(files)
    text.write_bytes(bytes(2**20 + 1))
    assert "has more than 1048576 bytes" in refusal(TlsFiles(text, pair.key))


def test_a_weak_key(authority: Authority) -> None:
    weak = authority.sign("weak", key_options=("-newkey", "rsa:1024", "-nodes"))
    assert "too weak for today's clients (EE_KEY_TOO_SMALL)" in refusal(
        TlsFiles(weak.cert, weak.key)
    )


def test_warnings_come_30_7_and_1_days_before_the_end(pair: Pair) -> None:
    (made,) = certificates_of(pair.cert.read_bytes())
    year = attrs.evolve(made, not_before_s=0.0, not_after_s=365 * DAY_S)
    left_days = {31: None, 30: 30, 8: 30, 7: 7, 1.5: 7, 1: 1, 0.1: 1, 0: 0, -3: 0}
    for left, due in left_days.items():
        assert warning_due(year, (365 - left) * DAY_S) == due, left
    day = attrs.evolve(made, not_before_s=0.0, not_after_s=DAY_S)
    assert warning_due(day, 0.1 * DAY_S) is None, "renewed several times a day"
    assert warning_due(day, 0.6 * DAY_S) == 1
