"""Certificates for tests, made by the machine's ``openssl``: an authority and what it signs."""

from __future__ import annotations

import ssl
import subprocess
from datetime import datetime
from pathlib import Path

import attrs

LOCAL_NAMES = "DNS:localhost,IP:127.0.0.1,IP:::1"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@attrs.frozen
class Pair:
    """A certificate and its key, PEM files both."""

    cert: Path
    key: Path


@attrs.frozen
class Authority:
    """Signs what its tests need; all files lie in ``folder``."""

    folder: Path
    pair: Pair

    @classmethod
    def make(cls, folder: Path, name: str = "test authority") -> Authority:
        """A self-signed certificate with a new key."""
        folder.mkdir(parents=True, exist_ok=True)
        pair = Pair(folder / "ca.pem", folder / "ca.key")
        openssl(
            "req", "-x509", *NEW_KEY, "-days", "30", "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", str(pair.key), "-out", str(pair.cert),
        )  # fmt: skip
        return cls(folder, pair)

    @property
    def cert(self) -> Path:
        """What clients trust."""
        return self.pair.cert

    def sign(
        self,
        name: str = "localhost",
        *,
        alternatives: str = LOCAL_NAMES,
        key_options: tuple[str, ...] = NEW_KEY,
        days: int = 10,
    ) -> Pair:
        """A new certificate with a new key; ``name`` is also that of the files."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        openssl(
            "req", "-x509", *key_options, "-days", str(days), "-subj", f"/CN={name}",
            "-CA", str(self.pair.cert), "-CAkey", str(self.pair.key),
            "-addext", f"subjectAltName={alternatives}",
            "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", str(pair.key), "-out", str(pair.cert),
        )  # fmt: skip
        pair.key.chmod(0o600)
        return pair

    def sign_for(self, name: str, first: datetime, last: datetime) -> Pair:
        """One that is valid in this time only."""
        pair = self.sign(name)
        request = self.folder / f"{name}.csr"
        openssl(
            "req", "-new", "-key", str(pair.key), "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={LOCAL_NAMES}", "-out", str(request),
        )  # fmt: skip
        (self.folder / "index").write_text("")
        (self.folder / "ca.cnf").write_text(
            "[ca]\ndefault_ca=a\n[a]\ndatabase=" + str(self.folder / "index") + "\nnew_certs_dir="
            + str(self.folder) + "\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n"
            "copy_extensions=copy\n[p]\ncommonName=supplied\n"
        )  # fmt: skip
        openssl(
            "ca", "-batch", "-notext", "-config", str(self.folder / "ca.cnf"),
            "-cert", str(self.pair.cert), "-keyfile", str(self.pair.key), "-in", str(request),
            "-startdate", f"{first:%Y%m%d%H%M%SZ}", "-enddate", f"{last:%Y%m%d%H%M%SZ}",
            "-out", str(pair.cert),
        )  # fmt: skip
        return pair

    def client_context(self, shown: Pair | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority alone, and shows this certificate."""
        context = ssl.create_default_context(cafile=str(self.cert))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context


def openssl(*arguments: str) -> str:
    """Run it; what it printed. AssertionError if it fails."""
    ran = subprocess.run(
        ["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
