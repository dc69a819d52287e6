"""Keep what a machine has that has joined: its credential, and where it leads.

    credential         one line, as it is shown to the balancer; there when the machine has joined
    joined.json        {"version": 1, "address", "name", "fingerprint", "joined"}
    balancer-ca.pem    the authority of the balancer's certificate, if the token had its hash
    joining.json       a new secret that the balancer has not answered for yet
    agent.lock         held by the agent that uses the credential

All of mode 0600, in a folder of mode 0700. Everything here blocks.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import (
    AgentCredential,
    check_agent_name,
    read_private,
    replace_private,
)
from paddler_trio.net.joining.join_token import HASH, SECRET, check_address
from paddler_trio.system.lock_holder import holder_of, note_holder

VERSION: Final = 1
MAX_FILE_BYTES: Final = 65_536


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return systemd's ``StateDirectory`` if there is one, else below the user's state."""
    of_unit = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    if of_unit:
        return Path(of_unit)
    state = environment.get("XDG_STATE_HOME", "")
    home = Path(state) if Path(state).is_absolute() else _home(environment) / ".local" / "state"
    return home / "paddler-trio"


@attrs.frozen
class Joined:
    """The balancer to which the credential leads.

    Args:
      address: of the management service; ``https://`` before it if there is TLS.
      fingerprint: of the balancer's own certificate, where no authority vouches for it.
    """

    address: str
    name: str
    fingerprint: str | None = None
    joined: str = ""


@attrs.frozen
class AgentFolder:
    """See the module docstring."""

    path: Path

    @property
    def credential(self) -> Path:
        return self.path / "credential"

    @property
    def ca(self) -> Path:
        return self.path / "balancer-ca.pem"

    @property
    def new_ca(self) -> Path:
        """The path of the new authority while the machine joins."""
        return self.path / "joining-ca.pem"

    def make(self) -> None:
        """Make the folder itself; ConfigurationError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot make the folder {self.path}: {error.strerror}; give another --state-dir"
            ) from error

    @property
    def has_joined(self) -> bool:
        """Return whether there is a credential."""
        return self.credential.exists()

    def joined(self) -> Joined | None:
        """Return None if this machine has not joined; ConfigurationError for a broken file."""
        path = self.path / "joined.json"
        content = read_private(path, limit_bytes=MAX_FILE_BYTES)
        if content is None or not self.has_joined:
            return None
        try:
            return _joined(json.loads(content))
        except (ValueError, RecursionError, ConfigurationError) as error:
            raise ConfigurationError(
                f"{path} is not what `paddler-trio join` writes: {error}; let this machine join "
                "again with --replace"
            ) from error

    def keep(self, joined: Joined, credential: AgentCredential, *, has_new_ca: bool) -> None:
        """Store what joining brought, the credential last; ConfigurationError."""
        if has_new_ca:
            self.new_ca.replace(self.ca)
        else:
            self.ca.unlink(missing_ok=True)
        content = {"version": VERSION, **attrs.asdict(joined)}
        replace_private(self.path / "joined.json", json.dumps(content, indent=1).encode() + b"\n")
        replace_private(self.credential, f"{credential.render()}\n".encode())
        self.forget_pending()

    # ------------------------------------------------------------- while joining

    def pending_secret(self, token_id: str) -> str | None:
        """Return the secret that was made for a credential with this token, and was not answered
        for."""
        content = read_private(self.path / "joining.json", limit_bytes=MAX_FILE_BYTES)
        try:
            found = json.loads(content or b"{}")
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("token") != token_id:
            return None
        secret = found.get("secret")
        return secret if isinstance(secret, str) and SECRET.fullmatch(secret) else None

    def keep_pending(self, token_id: str, secret: str) -> None:
        """Keep a secret before it is sent: a lost answer can be asked for again.
        ConfigurationError."""
        content = json.dumps({"token": token_id, "secret": secret}).encode() + b"\n"
        replace_private(self.path / "joining.json", content)

    def forget_pending(self) -> None:
        """Forget the pending secret: there is an answer."""
        (self.path / "joining.json").unlink(missing_ok=True)
        self.new_ca.unlink(missing_ok=True)


@contextmanager
def in_use(credential: Path) -> Iterator[None]:
    """Hold the lock of the agent that uses this file; ConfigurationError if another one does.

    A folder that cannot be written holds no lock; then nothing is rotated there either.
    """
    path = credential.with_name("agent.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another agent (process {holder_of(descriptor)}) uses the credential "
                f"{credential}: give each agent of a machine a --state-dir of its own, and let "
                "each join"
            ) from error
        note_holder(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def age_s(credential: Path) -> float:
    """Return how long ago the secret was stored; 0 for a time to come, or without a file."""
    try:
        return max(0.0, time.time() - credential.stat().st_mtime)
    except OSError:
        return 0.0


def replace_secret(credential: Path, secret: str) -> None:
    """Store another secret of the same credential; ConfigurationError."""
    content = read_private(credential, limit_bytes=MAX_FILE_BYTES) or b""
    found = AgentCredential.parse(content.decode("latin-1").strip())
    if found is None:
        raise ConfigurationError(f"{credential} holds no agent's credential")
    replace_private(credential, f"{AgentCredential(found.id, secret).render()}\n".encode())


def _joined(value: object) -> Joined:
    fields = {"version", "address", "name", "fingerprint", "joined"}
    if not isinstance(value, dict) or set(value) != fields or value["version"] != VERSION:
        raise ConfigurationError(f"it must have exactly {', '.join(sorted(fields))}")
    address, name, fingerprint = value["address"], value["name"], value["fingerprint"]
    if not isinstance(address, str) or not isinstance(name, str):
        raise ConfigurationError("address and name must be texts")
    check_address(address)
    check_agent_name(name)
    is_hash = isinstance(fingerprint, str) and HASH.fullmatch(fingerprint) is not None
    if not (fingerprint is None or is_hash):
        raise ConfigurationError("fingerprint must be 64 hexadecimal digits or null")
    return Joined(address, name, fingerprint, str(value["joined"])[:64])


def _home(environment: Mapping[str, str]) -> Path:
    if environment.get("HOME"):
        return Path(environment["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigurationError(
            "this user has no home folder: give --state-dir, where the agent's credential is kept"
        ) from error
