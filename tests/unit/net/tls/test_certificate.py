"""What is read of a certificate, against what openssl reads."""

from __future__ import annotations

import hashlib
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import Authority, openssl
from paddler_trio.net.tls.certificate import (
    Certificate,
    MalformedCertificateError,
    certificates_of,
    date_of,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


def test_the_fields_are_those_that_openssl_prints(authority: Authority) -> None:
    pair = authority.sign()
    (certificate,) = certificates_of(pair.cert.read_bytes())
    printed = openssl("x509", "-in", str(pair.cert), "-noout", "-dates", "-fingerprint", "-sha256")
    lines = dict(line.split("=", 1) for line in printed.splitlines())
    assert certificate.fingerprint == lines["sha256 Fingerprint"].replace(":", "").lower()
    assert certificate.not_before_s == ssl.cert_time_to_seconds(lines["notBefore"])
    assert certificate.not_after_s == ssl.cert_time_to_seconds(lines["notAfter"])
    assert certificate.issuer != certificate.subject


def test_a_chain_has_its_order(authority: Authority) -> None:
    pair = authority.sign()
    pem = pair.cert.read_bytes() + b"a comment\n" + authority.cert.read_bytes()
    own, root = certificates_of(pem + pair.key.read_bytes())
    assert root.issuer == root.subject
    assert own.issuer == root.subject
    assert root.fingerprint == hashlib.sha256(root.der).hexdigest()


def test_years_after_2049_are_read(authority: Authority) -> None:
    last = datetime(2061, 2, 3, 4, 5, tzinfo=UTC)
    pair = authority.sign_for("late", datetime(2026, 1, 1, tzinfo=UTC), last)
    (certificate,) = certificates_of(pair.cert.read_bytes())
    assert certificate.not_after_s == last.timestamp()
    assert date_of(certificate.not_after_s) == "2061-02-03 04:05 UTC"


def test_what_is_no_certificate_is_an_error(authority: Authority, tmp_path: Path) -> None:
    assert certificates_of(b"nothing of the kind") == ()
    with pytest.raises(MalformedCertificateError):
        Certificate.of(b"\x30\x03\x02\x01\x01")
    with pytest.raises(MalformedCertificateError, match="not a certificate"):
        certificates_of(b"-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n")


@given(data=st.data())
def test_damaged_bytes_never_raise_anything_else(authority: Authority, data: st.DataObject) -> None:
    (certificate,) = certificates_of(authority.cert.read_bytes())
    damaged = bytearray(certificate.der[: data.draw(st.integers(0, len(certificate.der)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedCertificateError):
        Certificate.of(bytes(damaged))
