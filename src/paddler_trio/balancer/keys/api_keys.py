"""API keys at rest: names, scopes and salted digests; a key itself is written nowhere.

A key is 32 random bytes in text form. It cannot be guessed, so one SHA-256 over salt and key
protects it from a reader of the file; a slow hash is for passwords that people choose, and would
cost every request what it costs an attacker. See
``docs/decisions/0020-api-keys.md``.

``guarded`` are the scopes that ask for a key. A scope joins when its first key is made and never
leaves by itself: revoking the last key opens nothing.

A key may be limited to deployments and presets; one that is not may use all, also those that come
later. It may have an end and limits of use, see ``key_terms.py``: a file with such keys is of
version 2, which older programs refuse as a whole. Without any it stays of version 1.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import attrs

from paddler_trio.balancer.keys.key_terms import NO_TERMS, TERMS, KeyTerms
from paddler_trio.errors import ConfigurationError
from paddler_trio.system.durable import replace_whole, sweep
from paddler_trio.wire.trio.presets import NAME

KEY_PREFIX = "pt-"
KEY_BYTES = 32
SALT_BYTES = 16
MAX_SECRET_BYTES = 128
"""No key is as long; a longer secret is not hashed."""
MAX_KEYS = 1024
"""Every request compares with all of them: at this number that takes about a millisecond."""
MAX_FILE_BYTES = 1_048_576
MAX_DEPLOYMENTS = 64
"""That one key may be limited to."""
VERSIONS = (1, 2)
LOCK_PAUSE_S = 0.02
OPTIONAL = frozenset({"deployments", *TERMS})
"""Fields of a key that it may lack."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class KeyScope(StrEnum):
    """A scope is what a key opens: the inference port, or the management port (operators and
    agents)."""

    INFERENCE = "inference"
    MANAGEMENT = "management"


@attrs.frozen
class StoredKey:
    """One key as the file has it. ``created`` is a date, for people; ``deployments`` are the only
    ones it may use, presets among them, none if it may use all."""

    name: str
    scopes: frozenset[KeyScope]
    created: str
    salt: bytes = attrs.field(repr=False)
    digest: bytes = attrs.field(repr=False)
    deployments: frozenset[str] = frozenset()
    terms: KeyTerms = NO_TERMS

    @classmethod
    def of(
        cls,
        secret: str,
        *,
        name: str,
        scopes: frozenset[KeyScope],
        created: str,
        deployments: frozenset[str] = frozenset(),
        terms: KeyTerms = NO_TERMS,
    ) -> StoredKey:
        """Make the entry of a fresh ``secret``; it cannot be had back from the result."""
        salt = secrets.token_bytes(SALT_BYTES)
        digest = _digest(salt, secret.encode())
        return cls(name, scopes, created, salt, digest, deployments, terms)


@attrs.frozen
class KeyFile:
    """The contents of a key file; names are unique."""

    keys: tuple[StoredKey, ...] = ()
    guarded: frozenset[KeyScope] = frozenset()

    def find(self, secret: bytes) -> StoredKey | None:
        """Return the key of ``secret``; as slow for a wrong one as for a right one: all are
        compared."""
        if len(secret) > MAX_SECRET_BYTES:
            return None
        found = None
        for key in self.keys:
            if hmac.compare_digest(_digest(key.salt, secret), key.digest):
                found = key
        return found

    def having(self, key: StoredKey) -> KeyFile:
        """Return the keys with one more; ConfigurationError if its name is taken, there are too
        many, or the file would be too large to be read again."""
        if any(other.name == key.name for other in self.keys):
            raise ConfigurationError(
                f"there is a key named {key.name!r} already; revoke it first or choose another name"
            )
        if len(self.keys) >= MAX_KEYS:
            raise ConfigurationError(
                f"the file holds {len(self.keys)} keys, the limit is {MAX_KEYS}; revoke some"
            )
        longer = KeyFile((*self.keys, key), self.guarded | key.scopes)
        size_bytes = len(longer.render().encode())
        if size_bytes > MAX_FILE_BYTES:
            raise ConfigurationError(
                f"the file would have {size_bytes} bytes, the limit is {MAX_FILE_BYTES}; revoke "
                "keys, or limit fewer of them to many deployments"
            )
        return longer

    def without(self, name: str) -> KeyFile:
        """Without this key, its scopes still guarded; ConfigurationError if there is none."""
        left = tuple(key for key in self.keys if key.name != name)
        if len(left) == len(self.keys):
            names = ", ".join(key.name for key in self.keys) or "none"
            raise ConfigurationError(f"there is no key named {name!r}; there are: {names}")
        return KeyFile(left, self.guarded)

    def render(self) -> str:
        """Return the text of the file."""
        keys = [
            {
                "name": key.name,
                "scopes": sorted(key.scopes),
                "created": key.created,
                "salt": key.salt.hex(),
                "sha256": key.digest.hex(),
                **({"deployments": sorted(key.deployments)} if key.deployments else {}),
                **key.terms.fields(),
            }
            for key in self.keys
        ]
        version = VERSIONS[any(key.terms != NO_TERMS for key in self.keys)]
        content = {"version": version, "guarded": sorted(self.guarded), "keys": keys}
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> KeyFile:
        """Strict; the ConfigurationError quotes nothing of the text.

        It may be a key in plain text that somebody put in the wrong file.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                "not a key file; write one with `paddler-trio key new NAME --file PATH`"
            ) from error
        content = _fields(content, {"version", "guarded", "keys"}, "the file")
        if content["version"] not in VERSIONS:
            raise ConfigurationError(f"its version is not {' or '.join(map(str, VERSIONS))}")
        keys = content["keys"]
        if not isinstance(keys, list) or len(keys) > MAX_KEYS:
            raise ConfigurationError(f"keys must be a list of at most {MAX_KEYS}")
        stored = tuple(_parse_key(key, f"keys[{place}]") for place, key in enumerate(keys))
        if len({key.name for key in stored}) != len(stored):
            raise ConfigurationError("two keys have the same name")
        guarded = _scopes(content["guarded"], "guarded")
        return cls(stored, guarded.union(*(key.scopes for key in stored)))


def new_secret() -> str:
    """Return a fresh key; printable, without a character that a shell or a header would
    interpret."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def check_name(name: str) -> str:
    """``name`` itself if it can name a key, else ConfigurationError."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a key: write 1 to 64 letters, digits or . _ @ -, beginning with "
            "a letter or digit"
        )
    return name


def check_deployments(value: object, what: str) -> frozenset[str]:
    """Return the names of deployments and presets that a key is limited to, none if ``value`` is
    None; else ConfigurationError."""
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not 0 < len(value) <= MAX_DEPLOYMENTS:
        raise ConfigurationError(f"{what} must be a list of 1 to {MAX_DEPLOYMENTS} names")
    for name in value:
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ConfigurationError(
                f"{what}: {str(name)[:80]!r} names no deployment and no preset: 1 to 128 letters, "
                "digits and ._:/@+-, the first one a letter or digit"
            )
    return frozenset(value)


# ---------------------------------------------------------------------------------- the file


def read_key_file(path: Path) -> KeyFile:
    """Read the keys of a file; ConfigurationError if there is none, or it is no key file."""
    sweep(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(f"key file {path}: more than {MAX_FILE_BYTES} bytes")
    try:
        return KeyFile.parse(raw.decode("utf-8"))
    except (ConfigurationError, UnicodeDecodeError) as error:
        problem = error if isinstance(error, ConfigurationError) else "not UTF-8"
        raise ConfigurationError(f"key file {path}: {problem}") from error


def write_key_file(path: Path, content: KeyFile) -> None:
    """Replace the file as :func:`replace_whole` does."""
    replace_whole(path, content.render().encode())


@contextmanager
def changing(path: Path, *, patience_s: float | None = None) -> Iterator[None]:
    """Hold the lock of the file's directory; ConfigurationError if there is no directory, or
    another process holds it for longer than ``patience_s``. It blocks its thread."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigurationError(f"cannot open {path.parent}: {error.strerror}") from error
    try:
        _lock(descriptor, path, patience_s)
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, patience_s: float | None) -> None:
    if patience_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    give_up_s = time.monotonic() + patience_s
    while True:  # flock has no time limit, and a thread in it cannot be called back
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                raise ConfigurationError(
                    f"another process has held {path.parent} locked for {patience_s:g} s"
                ) from None
            time.sleep(LOCK_PAUSE_S)
        else:
            return


def _digest(salt: bytes, secret: bytes) -> bytes:
    return hashlib.sha256(salt + secret).digest()


def _fields(
    value: object, names: set[str], what: str, *, optional: Set[str] = frozenset()
) -> Mapping[str, object]:
    if not isinstance(value, dict) or set(value) - optional != names:
        more = f", and may have {', '.join(sorted(optional))}" if optional else ""
        raise ConfigurationError(f"{what} must have exactly {', '.join(sorted(names))}{more}")
    return value


def _parse_key(value: object, what: str) -> StoredKey:
    names = {"name", "scopes", "created", "salt", "sha256"}
    fields = _fields(value, names, what, optional=OPTIONAL)
    name, created = fields["name"], fields["created"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"{what}.name is not a key's name")
    if not isinstance(created, str) or len(created) > 64:
        raise ConfigurationError(f"{what}.created is not a date")
    scopes = _scopes(fields["scopes"], f"{what}.scopes")
    salt = _hex(fields["salt"], f"{what}.salt", at_least=SALT_BYTES)
    digest = _hex(fields["sha256"], f"{what}.sha256", at_least=hashlib.sha256().digest_size)
    deployments = check_deployments(fields.get("deployments"), f"{what}.deployments")
    terms = KeyTerms.read(fields, what)
    return StoredKey(name, scopes, created, salt, digest, deployments, terms)


def _scopes(value: object, what: str) -> frozenset[KeyScope]:
    known = ", ".join(KeyScope)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigurationError(f"{what} must be a list of {known}")
    try:
        return frozenset(KeyScope(each) for each in value)
    except ValueError as error:
        raise ConfigurationError(f"{what} must be a list of {known}") from error


def _hex(value: object, what: str, *, at_least: int) -> bytes:
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        raw = b""
    if not at_least <= len(raw) <= 64:
        raise ConfigurationError(f"{what} must be {at_least} to 64 bytes in hexadecimal")
    return raw
