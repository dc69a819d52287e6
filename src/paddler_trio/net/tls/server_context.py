"""The certificate that the balancer's ports show, read from its files and tried out.

A context is used only after a handshake in memory with it: what is served is then known to work,
and its certificate is known to be the one in the file. Errors name the flag, the file and what to
do about it.
"""

from __future__ import annotations

import ssl
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.certificate import (
    Certificate,
    MalformedCertificateError,
    certificates_of,
    date_of,
)

MAX_FILE_BYTES: Final = 1024 * 1024
"""Of certificates and keys; a bundle of all public authorities has a quarter of it."""


class ClientAuth(StrEnum):
    """The policy for certificates of clients: never asked for, used if shown, or required."""

    OFF = "off"
    OPTIONAL = "optional"
    REQUIRED = "required"


@attrs.frozen
class TlsFiles:
    """``cert`` is the server's certificate and then its chain, ``key`` belongs to the first;
    ``client_ca`` are authorities of clients' certificates. All PEM."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.OFF
    flags: str = "--tls"
    """What the flags begin with, for errors."""

    @classmethod
    def of(
        cls,
        cert: Path | None,
        key: Path | None,
        client_ca: Path | None = None,
        client_auth: str | None = None,
        *,
        flags: str = "--tls",
    ) -> TlsFiles | None:
        """Return the files of the flags that begin with ``flags``, or None without any;
        ConfigurationError for some that do not go together. A ``client_ca`` alone means that
        certificates are required.
        """
        if cert is None and key is None:
            for flag, given in (("ca", client_ca), ("auth", client_auth)):
                if given is not None and given != ClientAuth.OFF:
                    raise ConfigurationError(
                        f"{flags}-client-{flag} {given} needs TLS: give {flags}-cert FILE and "
                        f"{flags}-key FILE too"
                    )
            return None
        if cert is None or key is None:
            had, missing = ("key", "cert") if cert is None else ("cert", "key")
            raise ConfigurationError(
                f"{flags}-{had} needs the other half: give {flags}-{missing} FILE too"
            )
        default = ClientAuth.OFF if client_ca is None else ClientAuth.REQUIRED
        try:
            auth = default if client_auth is None else ClientAuth(client_auth)
        except ValueError as error:
            raise ConfigurationError(
                f"{flags}-client-auth {client_auth!r} is not off, optional or required"
            ) from error
        if auth is not ClientAuth.OFF and client_ca is None:
            raise ConfigurationError(
                f"{flags}-client-auth {auth} needs {flags}-client-ca FILE: the authorities whose "
                "certificates clients may show"
            )
        return cls(cert, key, client_ca, auth, flags)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(each for each in (self.cert, self.key, self.client_ca) if each is not None)


@attrs.frozen
class ServerCertificate:
    """A context and the chain that it sends; the first certificate is the server's own."""

    context: ssl.SSLContext = attrs.field(repr=False)
    chain: tuple[Certificate, ...]

    @property
    def own(self) -> Certificate:
        """The server's."""
        return self.chain[0]


def read_server_certificate(files: TlsFiles) -> ServerCertificate:
    """Read, check and try out; blocks for some milliseconds. ConfigurationError."""
    chain = _chain(files.cert, f"{files.flags}-cert")
    _check_validity(chain[0], files, time.time())
    context = server_context(files)
    served = _served_certificate(context, files)
    if served != chain[0].der:
        raise ConfigurationError(
            f"{files.flags}-cert {files.cert} changed while it was read; it is read again"
        )
    return ServerCertificate(context, chain)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and 1.3, HTTP/1.1, no renegotiation and no compression; ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= (
        ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, files)
    if files.client_auth is not ClientAuth.OFF:
        assert files.client_ca is not None
        _chain(files.client_ca, f"{files.flags}-client-ca")
        _load_authorities(context, files.client_ca, f"{files.flags}-client-ca")
        is_required = files.client_auth is ClientAuth.REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        # a resumed session would skip the check of a certificate that has expired meanwhile
        context.num_tickets = 0
    return context


def _chain(path: Path, flag: str) -> tuple[Certificate, ...]:
    pem = _read(path, flag)
    try:
        chain = certificates_of(pem)
    except MalformedCertificateError as error:
        raise ConfigurationError(
            f"{flag} {path} holds a certificate that cannot be read ({error}): give PEM files"
        ) from error
    if not chain:
        raise ConfigurationError(
            f"{flag} {path} holds no certificate: it must be PEM, with lines "
            "'-----BEGIN CERTIFICATE-----' (`openssl x509 -in FILE -inform DER` converts)"
        )
    return chain


def _read(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {flag} {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigurationError(f"{flag} {path} has more than {MAX_FILE_BYTES} bytes")
    return data


def _check_validity(certificate: Certificate, files: TlsFiles, now_s: float) -> None:
    if certificate.not_after_s <= now_s:
        raise ConfigurationError(
            f"the certificate in {files.flags}-cert {files.cert} expired at "
            f"{date_of(certificate.not_after_s)}: clients refuse it; renew it"
        )
    if certificate.not_before_s > now_s:
        raise ConfigurationError(
            f"the certificate in {files.flags}-cert {files.cert} is valid from "
            f"{date_of(certificate.not_before_s)} on, and it is {date_of(now_s)} here: set this "
            "machine's clock, or wait"
        )


def _load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True
        return ""

    _read(files.key, f"{files.flags}-key")
    try:
        context.load_cert_chain(files.cert, files.key, password)
    except ssl.SSLError as error:
        raise ConfigurationError(_pair_problem(error, files, is_encrypted=asked)) from error
    except OSError as error:  # replaced meanwhile
        raise ConfigurationError(
            f"cannot read {files.flags}-cert {files.cert} or {files.flags}-key {files.key}: "
            f"{error.strerror}"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: Path, flag: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{flag} {path} cannot be used ({error.reason or error}): it must be PEM, "
            "with certificates of authorities"
        ) from error
    except OSError as error:  # replaced meanwhile
        raise ConfigurationError(f"cannot read {flag} {path}: {error.strerror}") from error


def _pair_problem(error: ssl.SSLError, files: TlsFiles, *, is_encrypted: bool) -> str:
    if is_encrypted:
        return (
            f"{files.flags}-key {files.key} is encrypted, and a daemon has nobody to ask for its "
            f"passphrase: `openssl pkey -in {files.key} -out plain.pem` decrypts it; keep it "
            "readable by this user only"
        )
    if error.reason in {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}:
        return (
            f"{files.flags}-key {files.key} is not the key of the first certificate in "
            f"{files.flags}-cert {files.cert}: give the pair, with the server's own certificate "
            "before its chain"
        )
    if error.reason in {"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}:
        return (
            f"{files.flags}-cert {files.cert} is too weak for today's clients ({error.reason}): "
            "make one with a P-256 key, or RSA of 2048 bits at least, and SHA-256"
        )
    return (
        f"{files.flags}-key {files.key} with {files.flags}-cert {files.cert} cannot be used "
        f"({error.reason or error}): both must be PEM, the key with a line "
        "'-----BEGIN PRIVATE KEY-----'"
    )


def _served_certificate(context: ssl.SSLContext, files: TlsFiles) -> bytes:
    """Return the certificate in DER that a client that trusts everything gets to see."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server, client):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"no client could use {files.flags}-cert {files.cert} with {files.flags}-key "
            f"{files.key}: {error.reason or error}"
        ) from error
    return client.getpeercert(binary_form=True) or b""
