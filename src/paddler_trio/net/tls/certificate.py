"""The validity and the hash of an X.509 certificate (RFC 5280), for operators and pins.

The standard library decodes certificates only of connections that it verified. So the few fields
are read from the DER here. Nothing of it decides whom to trust: that is OpenSSL's.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from paddler_trio.errors import PaddlerError

SEQUENCE: Final = 0x30
INTEGER: Final = 0x02
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_PEM_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")


class MalformedCertificateError(PaddlerError):
    """The bytes are no X.509 certificate."""


@attrs.frozen
class Certificate:
    """Times are seconds since 1970; ``issuer`` and ``subject`` are the DER of the names."""

    der: bytes = attrs.field(repr=False)
    not_before_s: float
    not_after_s: float
    issuer: bytes = attrs.field(repr=False)
    subject: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, der: bytes) -> Certificate:
        """MalformedCertificateError unless it is one."""
        try:
            body, _ = _content(der, *_content(der, 0, len(der), SEQUENCE), SEQUENCE)
            at = body
            if der[at] == VERSION:
                at = _end(der, at)
            at = _end(der, at, INTEGER)  # the serial number
            at = _end(der, at, SEQUENCE)  # the signature's algorithm
            issuer_end = _end(der, at, SEQUENCE)
            first, last = _content(der, issuer_end, len(der), SEQUENCE)
            validity_end = last
            not_before = _time(der, first)
            not_after = _time(der, _end(der, first))
            subject_end = _end(der, validity_end, SEQUENCE)
        except (IndexError, ValueError) as error:
            raise MalformedCertificateError(f"not a certificate: {error}") from error
        return cls(
            der,
            not_before,
            not_after,
            issuer=der[at:issuer_end],
            subject=der[validity_end:subject_end],
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the DER, 64 hexadecimal digits."""
        return hashlib.sha256(self.der).hexdigest()


def certificates_of(pem: bytes) -> tuple[Certificate, ...]:
    """Those in a file, in its order; other PEM blocks are skipped. MalformedCertificateError."""
    found = []
    for block in _PEM_BLOCK.finditer(pem):
        try:
            der = ssl.PEM_cert_to_DER_cert(block[0].decode("ascii"))
        except ValueError as error:
            raise MalformedCertificateError(f"not PEM: {error}") from error
        found.append(Certificate.of(der))
    return tuple(found)


def date_of(time_s: float) -> str:
    """A day and time for people, in UTC."""
    return f"{EPOCH + timedelta(seconds=time_s):%Y-%m-%d %H:%M} UTC"


def _content(data: bytes, at: int, stop: int, tag: int) -> tuple[int, int]:
    """Return where the content of the element at ``at`` begins and ends (X.690, 8.1)."""
    if data[at] != tag:
        raise ValueError(f"tag {data[at]:#04x} at byte {at}, expected {tag:#04x}")
    length, begin = data[at + 1], at + 2
    if length & 0x80:
        digits = length & 0x7F
        if not 1 <= digits <= 4:
            raise ValueError(f"a length of {digits} bytes at byte {at}")
        length = int.from_bytes(data[begin : begin + digits])
        begin += digits
    if begin + length > stop:
        raise ValueError(f"the element at byte {at} ends behind the {stop} bytes")
    return begin, begin + length


def _end(data: bytes, at: int, tag: int | None = None) -> int:
    return _content(data, at, len(data), data[at] if tag is None else tag)[1]


def _time(data: bytes, at: int) -> float:
    tag = data[at]
    if tag not in {UTC_TIME, GENERALIZED_TIME}:
        raise ValueError(f"tag {tag:#04x} at byte {at}, expected a time")
    begin, end = _content(data, at, len(data), tag)
    text = data[begin:end].decode("ascii")
    if tag == UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    return (datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC) - EPOCH).total_seconds()
