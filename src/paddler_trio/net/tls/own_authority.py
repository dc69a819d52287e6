"""An authority of one's own and the certificates that it signs, made by the machine's ``openssl``.

Keys are P-256, readable by their owner only, and not overwritten unless that was asked for. A
server's file has the authority's certificate at its end: those who join by its hash are sent it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from paddler_trio.errors import ConfigurationError

AUTHORITY_DAYS: Final = 3650
OPENSSL_S: Final = 30.0
MAX_NAMES: Final = 100
MAX_COMMON_NAME: Final = 64
"""Characters that X.509 has for it."""

_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_HOST: Final = re.compile(
    r"(\*\.)?[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*",
    re.IGNORECASE,
)
_COMMON_NAME: Final = re.compile(r"[A-Za-z0-9 ._-]+")
"""Nothing that OpenSSL's syntax of subjects interprets."""


def new_authority(folder: Path, name: str) -> Path:
    """Make ``ca.pem`` and ``ca.key`` in ``folder``; the path of the certificate.

    Errors:
      ConfigurationError: they are there already, the name cannot be used, or there is no openssl.
    """
    cert, key = folder / "ca.pem", folder / "ca.key"
    _check_common_name(name)
    _make_folder(folder)
    _check_new((cert, key))
    _openssl(
        "req", "-x509", *_NEW_KEY, "-days", str(AUTHORITY_DAYS), "-subj", f"/CN={name}",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout", str(key), "-out", str(cert),
    )  # fmt: skip
    return cert


def new_certificate(
    folder: Path, hosts: Sequence[str], *, stem: str, days: int, replace: bool = False
) -> tuple[Path, Path]:
    """A certificate for names and addresses, signed by the authority in ``folder``: the paths of
    ``stem.pem`` and ``stem.key`` there, each put in its place in one step.

    Errors:
      ConfigurationError: no authority there, the files are there already and not to be replaced, or
        a host that is none.
    """
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    for path in (authority, authority_key):
        if not path.is_file():
            raise ConfigurationError(
                f"{path} is not there: make an authority with `paddler-trio tls new-ca --folder "
                f"{folder}`"
            )
    cert, key = folder / f"{stem}.pem", folder / f"{stem}.key"
    alternatives = alternative_names(hosts)
    if not replace:
        _check_new((cert, key))
    fresh_cert, fresh_key = (path.with_name(f".new-{path.name}") for path in (cert, key))
    _openssl(
        "req", "-x509", *_NEW_KEY, "-days", str(days), "-subj", f"/CN={hosts[0][:MAX_COMMON_NAME]}",
        "-CA", str(authority), "-CAkey", str(authority_key),
        "-addext", f"subjectAltName={alternatives}",
        "-addext", "basicConstraints=critical,CA:FALSE",
        "-addext", "extendedKeyUsage=serverAuth,clientAuth",
        "-keyout", str(fresh_key), "-out", str(fresh_cert),
    )  # fmt: skip
    with fresh_cert.open("ab") as file:
        file.write(authority.read_bytes())
    fresh_key.replace(key)
    fresh_cert.replace(cert)
    return cert, key


def alternative_names(hosts: Sequence[str]) -> str:
    """Return the names in OpenSSL's syntax, such as ``DNS:llm.example.org,IP:192.0.2.7``;
    ConfigurationError if one is unfit.
    """
    if not 1 <= len(hosts) <= MAX_NAMES:
        raise ConfigurationError(f"give 1 to {MAX_NAMES} names or addresses, not {len(hosts)}")
    found = []
    for host in hosts:
        try:
            if "%" in host:
                raise ValueError("an address with a zone")
            found.append(f"IP:{ipaddress.ip_address(host)}")
        except ValueError:
            if len(host) > 253 or not _HOST.fullmatch(host):
                raise ConfigurationError(
                    f"{host[:80]!r} is no name or address of a machine: give it without scheme and "
                    "port, such as llm.example.org or 192.0.2.7"
                ) from None
            found.append(f"DNS:{host.lower()}")
    return ",".join(dict.fromkeys(found))


def _check_common_name(name: str) -> None:
    if len(name) > MAX_COMMON_NAME or not _COMMON_NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name {name[:80]!r} must have 1 to {MAX_COMMON_NAME} letters, digits, blanks, "
            "dots, - and _ only"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--folder {folder}: {error.strerror}") from error


def _check_new(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists():
            raise ConfigurationError(f"{path} is there already, and is not overwritten")


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ConfigurationError(
            "this needs the command openssl: install it (`apt install openssl`), or make the "
            "certificate elsewhere"
        )
    try:
        ran = subprocess.run(  # noqa: S603  # its arguments were checked
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=OPENSSL_S,
            umask=0o077,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"openssl was not done within {OPENSSL_S:g} s") from error
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or ["it gave no reason"]
        raise ConfigurationError(f"openssl made no certificate: {lines[-1]}")
