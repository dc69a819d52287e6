"""Errors between a client and a balancer's TLS, in one line with what to do about each."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.certificate import Certificate, date_of
from paddler_trio.net.tls.client_tls import DistrustedError, PinMismatchError, unverified_context

LOOK_S: Final = 3.0

_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 24, 27})
_WRONG_NAME = frozenset({62, 64})
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)
_OLD_TLS = frozenset(
    {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"}
)
_CERTIFICATE_WANTED = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"}
)
_CERTIFICATE_REFUSED = frozenset(
    {
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    }
)


def tls_error_in(error: BaseException) -> ssl.SSLError | None:
    """The error of TLS that this one was raised for; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def seen_certificate(address: BalancerAddress, timeout_s: float = LOOK_S) -> Certificate:
    """Return the certificate that a service shows to any client; nothing is sent to it. This
    blocks.

    Errors:
      OSError, ssl.SSLError: no connection, or no TLS.
      MalformedCertificateError: what is shown is none.
    """
    with (
        socket.create_connection((address.host, address.port), timeout_s) as plain,
        unverified_context().wrap_socket(plain, server_hostname=address.host) as encrypted,
    ):
        return Certificate.of(encrypted.getpeercert(binary_form=True) or b"")


def tls_problem(error: ssl.SSLError, address: BalancerAddress) -> str:
    """One line: what is wrong, and what to do."""
    if isinstance(error, PinMismatchError):
        return (
            f"the certificate of {address} has the fingerprint {error.seen}, and "
            f"--tls-fingerprint is {error.expected}: compare with the balancer's log; if its "
            "certificate was replaced, give the new one, else somebody is in between. Nothing was "
            "sent"
        )
    if isinstance(error, DistrustedError):
        return _distrust(error, address)
    if error.reason in _NO_TLS:
        return (
            f"{address.authority} speaks no TLS: write {address.authority} without https://, or "
            "start the balancer with --tls-cert and --tls-key"
        )
    if error.reason in _OLD_TLS:
        return f"{address.authority} speaks no TLS 1.2 or later"
    if error.reason in _CERTIFICATE_WANTED:
        return (
            f"{address} refused the handshake: it may ask for a client's certificate: give "
            "--tls-client-cert and --tls-client-key"
        )
    if error.reason in _CERTIFICATE_REFUSED:
        return (
            f"{address} does not accept this client's certificate ({error.reason}): give "
            "--tls-client-cert one that its --tls-client-ca has signed and that is not expired"
        )
    if isinstance(error, ssl.SSLEOFError):
        return (
            f"{address.authority} closed the connection during the TLS handshake: it asks for a "
            "client's certificate (give --tls-client-cert and --tls-client-key), or it is no "
            "balancer with --tls-cert"
        )
    return f"no TLS with {address}: {error.reason or error}"


def _distrust(error: DistrustedError, address: BalancerAddress) -> str:
    seen = error.seen
    pin = "--tls-fingerprint SHA256" if seen is None else f"--tls-fingerprint {seen.fingerprint}"
    match error.verify_code:
        case code if code == _EXPIRED:
            when = "" if seen is None else f" at {date_of(seen.not_after_s)}"
            return (
                f"the certificate of {address} expired{when}: renew it at the balancer, which "
                "reads it again by itself, and check this machine's clock"
            )
        case code if code == _NOT_YET_VALID:
            when = "later" if seen is None else f"from {date_of(seen.not_before_s)} on"
            return f"the certificate of {address} is valid {when}: check this machine's clock"
        case code if code in _WRONG_NAME:
            return (
                f"the certificate of {address} is for another name ({error.verify_message}): use "
                "an address that it has, put this one into its subjectAltName, or compare its "
                f"fingerprint with the balancer's log and give {pin}"
            )
        case code if code in _UNKNOWN_ISSUER:
            return (
                f"no trusted authority vouches for the certificate of {address} "
                f"({error.verify_message}): give --tls-ca FILE with its authority, or compare its "
                f"fingerprint with the balancer's log and give {pin}"
            )
    return f"the certificate of {address} cannot be verified: {error.verify_message}"
