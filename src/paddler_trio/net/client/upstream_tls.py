"""Verification of upstream servers over TLS, with its errors in words."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from paddler_trio.net.client.upstream_address import UpstreamAddress
from paddler_trio.net.tls.client_errors import tls_error_in
from paddler_trio.net.tls.client_tls import ClientTls, DistrustedError

_EXPIRED: Final = 10
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21, 24, 27})
_WRONG_NAME: Final = frozenset({62, 64})
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)


def upstream_context(ca_file: Path | None) -> ssl.SSLContext:
    """Authorities of ``ca_file`` decide, or the machine's and certifi's. It blocks for 16 ms;
    ConfigurationError names the file and ``--upstream-ca``."""
    return ClientTls(ca_file=ca_file, ca_flag="--upstream-ca").context()


def tls_cause(error: BaseException, address: UpstreamAddress) -> str | None:
    """One line on what TLS objected to and what to do; None if TLS was not the cause."""
    problem = tls_error_in(error)
    if problem is None:
        return None
    if isinstance(problem, DistrustedError):
        match problem.verify_code:
            case code if code == _EXPIRED:
                return "its certificate has expired: renew it, and check this machine's clock"
            case code if code in _WRONG_NAME:
                return (
                    f"its certificate is for another name ({problem.verify_message}): use a name "
                    "that it has"
                )
            case code if code in _UNKNOWN_ISSUER:
                return (
                    f"no trusted authority vouches for its certificate ({problem.verify_message}): "
                    "give --upstream-ca FILE with its authority"
                )
        return f"its certificate cannot be verified: {problem.verify_message}"
    if problem.reason in _NO_TLS:
        return f"it speaks no TLS: write http://{address.authority}{address.prefix}"
    if isinstance(problem, ssl.SSLEOFError):
        return (
            "it closed the connection during the TLS handshake: if it speaks no TLS, write "
            f"http://{address.authority}{address.prefix}"
        )
    return f"no TLS with it: {problem.reason or problem}"
