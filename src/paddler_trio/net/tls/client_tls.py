"""Verification of a balancer by its clients over TLS: by authorities, or by one pinned certificate.

A pin is compared at the end of the handshake, by the very sockets that the context makes: no code
that sends something can forget it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import attrs
import certifi

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.certificate import Certificate, MalformedCertificateError
from paddler_trio.setting import Setting

MAX_FILE_BYTES: Final = 1024 * 1024
"""Of authorities, certificates and keys; a bundle of all public authorities has a quarter of it."""

_PANEL: Final = "TLS, for an address with https://"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class PinMismatchError(ssl.SSLError):
    """The balancer's certificate is not the pinned one; ``expected`` and ``seen`` are SHA-256."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(
            ssl.SSL_ERROR_SSL,
            f"its certificate has the fingerprint {seen}, and {expected} is pinned",
        )
        self.expected = expected
        self.seen = seen


class DistrustedError(ssl.SSLError):
    """The balancer's certificate did not convince; OpenSSL's words, and what was shown."""

    def __init__(self, error: ssl.SSLCertVerificationError, seen: Certificate | None) -> None:
        super().__init__(
            ssl.SSL_ERROR_SSL, f"its certificate is not trusted: {error.verify_message}"
        )
        self.verify_code = error.verify_code
        self.verify_message = error.verify_message
        self.seen = seen


def _parsed_pin(text: str | None) -> str | None:
    return None if text is None else parse_fingerprint(text)


@attrs.frozen
class ClientTls:
    """Without anything, the machine's authorities and certifi's decide.

    ConfigurationError names the flag that is wrong.

    Args:
      ca_file: authorities that decide instead of those; PEM.
      fingerprint: SHA-256 of the balancer's own certificate in DER, 64 hexadecimal digits. With it
        nothing else decides: no authority, no name and no date.
      cert_file, key_file: the certificate that this client shows; PEM. Without a ``key_file`` the
        key is in the same file.
      ca_flag: the flag that gave ``ca_file``, for errors.
    """

    ca_file: Annotated[
        Path | None,
        Setting(
            "PEM file with the authorities that may vouch for the balancer.",
            flag="--tls-ca",
            variable="PADDLER_TRIO_TLS_CA",
            panel=_PANEL,
            unset="those of this machine",
        ),
    ] = None
    fingerprint: Annotated[
        str | None,
        Setting(
            "SHA-256 of the balancer's own certificate; then no authority and no name counts.",
            flag="--tls-fingerprint",
            variable="PADDLER_TRIO_TLS_FINGERPRINT",
            panel=_PANEL,
            metavar="SHA256HEX",
        ),
    ] = attrs.field(default=None, converter=_parsed_pin)
    cert_file: Annotated[
        Path | None,
        Setting(
            "PEM file with the certificate to show, if the balancer asks for one.",
            flag="--tls-client-cert",
            variable="PADDLER_TRIO_TLS_CLIENT_CERT",
            panel=_PANEL,
        ),
    ] = None
    key_file: Annotated[
        Path | None,
        Setting(
            "PEM file with its key.",
            flag="--tls-client-key",
            variable="PADDLER_TRIO_TLS_CLIENT_KEY",
            panel=_PANEL,
            unset="in the file of the certificate",
        ),
    ] = None
    ca_flag: str = "--tls-ca"

    def __attrs_post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigurationError(
                f"--tls-client-key {self.key_file} needs --tls-client-cert FILE, its certificate"
            )

    @property
    def is_given(self) -> bool:
        """Return whether something was asked for that needs TLS."""
        return self != ClientTls()

    def context(self) -> ssl.SSLContext:
        """Read the files and make a context: TLS 1.2 and later. Blocks for 16 ms where all
        authorities of the machine are read; ConfigurationError."""
        context = _PinningContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sslsocket_class = _PinnedSocket
        context.sslobject_class = _PinnedObject
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        if self.fingerprint is not None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.pin = self.fingerprint
        elif self.ca_file is not None:
            _load_authorities(context, self.ca_file, self.ca_flag)
        else:
            context.load_default_certs()
            context.load_verify_locations(certifi.where())
        if self.cert_file is not None:
            self._load_pair(context, self.cert_file)
        return context

    def _load_pair(self, context: ssl.SSLContext, cert_file: Path) -> None:
        check_readable(cert_file, "--tls-client-cert")
        if self.key_file is not None:
            check_readable(self.key_file, "--tls-client-key")
        asked = False

        def password() -> str:
            nonlocal asked
            asked = True
            return ""

        try:
            context.load_cert_chain(cert_file, self.key_file, password)
        except ssl.SSLError as error:
            key = (
                f"the key in --tls-client-cert {cert_file}"
                if self.key_file is None
                else f"--tls-client-key {self.key_file}"
            )
            if asked:
                raise ConfigurationError(
                    f"{key} is encrypted: `openssl pkey -in FILE -out plain.pem` decrypts it; keep "
                    "it readable by this user only"
                ) from error
            if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"}:
                raise ConfigurationError(
                    f"{key} is not the key of the first certificate in --tls-client-cert "
                    f"{cert_file}: give the pair"
                ) from error
            raise ConfigurationError(
                f"--tls-client-cert {cert_file} cannot be used with {key} "
                f"({error.reason or error}): both must be PEM, with a line '-----BEGIN "
                "CERTIFICATE-----' and one '-----BEGIN PRIVATE KEY-----'"
            ) from error


SYSTEM_TRUST: Final = ClientTls()
"""What decides where nothing is said."""


def unverified_context() -> ssl.SSLContext:
    """Return a context with which to look at a certificate, never to send anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def parse_fingerprint(text: str) -> str:
    """64 lower-case hexadecimal digits from SHA-256 as people and programs write it: with colons,
    in upper case, with ``sha256:`` before it. ConfigurationError."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if _FINGERPRINT.fullmatch(digits) is None:
        raise ConfigurationError(
            f"--tls-fingerprint {text[:120]!r} is no SHA-256 of a certificate: 64 hexadecimal "
            "digits, with or without colons, as the balancer's log shows them and "
            "`paddler-trio tls fingerprint https://host:port` prints them"
        )
    return digits


def check_readable(path: Path, flag: str) -> None:
    """ConfigurationError with the flag unless it is a file of a sensible size."""
    try:
        with path.open("rb") as file:
            size = len(file.read(MAX_FILE_BYTES + 1))
    except OSError as error:
        raise ConfigurationError(f"cannot read {flag} {path}: {error.strerror}") from error
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(f"{flag} {path} has more than {MAX_FILE_BYTES} bytes")


def _load_authorities(context: ssl.SSLContext, path: Path, flag: str) -> None:
    check_readable(path, flag)
    # an authority between a root and the balancer may be the one that is trusted
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{flag} {path} holds no certificate of an authority ({error.reason or error}): it "
            "must be PEM, with lines '-----BEGIN CERTIFICATE-----' "
            "(`openssl x509 -in FILE -inform DER` converts)"
        ) from error


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        with _clear_distrust(self):
            super().do_handshake(block)
        _compare(self)


class _PinnedObject(ssl.SSLObject):
    def do_handshake(self) -> None:
        with _clear_distrust(self):
            super().do_handshake()
        _compare(self)


class _PinningContext(ssl.SSLContext):
    """A context whose connections break off unless the peer's certificate has the hash ``pin``, if
    there is one.
    """

    pin: str | None = None


def _compare(connection: ssl.SSLSocket | ssl.SSLObject) -> None:
    context = connection.context
    assert isinstance(context, _PinningContext)
    if context.pin is None:
        return
    seen = Certificate.of(connection.getpeercert(binary_form=True) or b"").fingerprint
    if seen != context.pin:
        raise PinMismatchError(context.pin, seen)


@contextmanager
def _clear_distrust(connection: ssl.SSLSocket | ssl.SSLObject) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise DistrustedError(error, _shown(connection)) from error


def _shown(connection: ssl.SSLSocket | ssl.SSLObject) -> Certificate | None:
    """The certificate of a handshake that failed. Before Python 3.13 only the object behind both
    has it."""
    try:
        chain = connection._sslobj.get_unverified_chain()  # type: ignore[union-attr]
        return Certificate.of(ssl.PEM_cert_to_DER_cert(chain[0].public_bytes()))
    except (AttributeError, IndexError, TypeError, ValueError, MalformedCertificateError):
        return None  # an error is reported without it
