"""Join tokens and agents' credentials at rest: names, dates and hashes; no secret.

    {"version": 1, "guarded": true, "tokens": [...], "credentials": [...]}

``guarded``: agents have to show something; true from the first token on, and never false again.
Times are RFC 3339 in UTC, to the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AGENT_NAME
from paddler_trio.net.joining.join_token import ID
from paddler_trio.wire.scalars import rfc3339
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import check_labels

VERSION: Final = 1
MAX_TOKENS: Final = 1000
MAX_CREDENTIALS: Final = 10_000
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Of 10,000 credentials with ten short labels each there are 10 MB."""
MAX_EARLIER: Final = 4
MAX_TEXT_CHARS: Final = 200
UNUSED_LIFE: Final = timedelta(days=90)
"""A credential that no agent showed for so long opens nothing any more."""
DIGEST_BYTES: Final = hashlib.sha256().digest_size

_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@attrs.frozen(slots=False, kw_only=True)
class StoredToken:
    """A join token without its secret.

    Args:
      name: the only agent that it is for; None for any.
      by: who made it.
    """

    id: str
    digest: bytes = attrs.field(repr=False)
    created: datetime
    expires: datetime
    uses: int
    uses_left: int
    labels: Mapping[str, str]
    name: str | None
    by: str

    @cached_property
    def line(self) -> bytes:
        """Return its JSON, rendered once."""
        return _dumps(
            {
                "id": self.id,
                "sha256": self.digest.hex(),
                "created": rfc3339(self.created),
                "expires": rfc3339(self.expires),
                "uses": self.uses,
                "uses_left": self.uses_left,
                "labels": dict(self.labels),
                "name": self.name,
                "by": self.by,
            }
        )


@attrs.frozen(slots=False, kw_only=True)
class StoredCredential:
    """Hold what is known of an agent that joined.

    Args:
      token: the public id of the token that it joined with.
      digest: of the secret in force.
      pending: of the one that takes its place with its first use.
      earlier: of those that were replaced, the newest first: who shows one has a copy.
      rotated: when the secret in force came to be.
      last_seen: when the credential was shown last; None if never.
      address: from where; before that, where it joined from.
      suspicious: why somebody else may have the credential, too.
    """

    id: str
    name: str
    token: str
    digest: bytes = attrs.field(repr=False)
    pending: bytes | None = attrs.field(default=None, repr=False)
    earlier: tuple[bytes, ...] = attrs.field(default=(), repr=False)
    created: datetime
    rotated: datetime
    last_seen: datetime | None = None
    address: str
    labels: Mapping[str, str]
    suspicious: str | None = None

    @property
    def seen_or_made(self) -> datetime:
        """Return the latest sign of life."""
        return self.last_seen or self.created

    @property
    def expires(self) -> datetime:
        """Return when it opens nothing any more unless it is shown before."""
        return self.seen_or_made + UNUSED_LIFE

    def with_digest(self, digest: bytes, now: datetime) -> StoredCredential:
        """Return it with the secret of this ``digest`` in force."""
        earlier = (self.digest, *self.earlier)[:MAX_EARLIER]
        return attrs.evolve(self, digest=digest, pending=None, earlier=earlier, rotated=now)

    @cached_property
    def line(self) -> bytes:
        """Return its JSON, rendered once."""
        return _dumps(
            {
                "id": self.id,
                "name": self.name,
                "token": self.token,
                "sha256": self.digest.hex(),
                "pending": None if self.pending is None else self.pending.hex(),
                "earlier": [each.hex() for each in self.earlier],
                "created": rfc3339(self.created),
                "rotated": rfc3339(self.rotated),
                "last_seen": None if self.last_seen is None else rfc3339(self.last_seen),
                "address": self.address,
                "labels": dict(self.labels),
                "suspicious": self.suspicious,
            }
        )


@attrs.frozen
class StoredAgents:
    """The content of the file; tokens and credentials by their ids, names are unique."""

    tokens: Mapping[str, StoredToken] = attrs.field(factory=dict)
    credentials: dict[str, StoredCredential] = attrs.field(factory=dict)
    """The registry puts newer records in the place of old ones."""
    guarded: bool = False

    def __repr__(self) -> str:
        return f"<StoredAgents: {len(self.tokens)} tokens, {len(self.credentials)} credentials>"

    def named(self, name: str) -> StoredCredential | None:
        """Return the credential of the agent of this name."""
        return next((each for each in self.credentials.values() if each.name == name), None)

    def with_token(self, token: StoredToken) -> StoredAgents:
        """Return the registry with one more, or another one of the same id; from now on guarded."""
        return StoredAgents({**self.tokens, token.id: token}, self.credentials, guarded=True)

    def without_token(self, token_id: str) -> StoredAgents:
        """Without it; the same if it is not there."""
        tokens = {key: each for key, each in self.tokens.items() if key != token_id}
        return attrs.evolve(self, tokens=tokens)

    def with_credential(self, credential: StoredCredential) -> StoredAgents:
        """Return the registry with one more, or another one of the same id; from now on guarded."""
        credentials = {**self.credentials, credential.id: credential}
        return StoredAgents(self.tokens, credentials, guarded=True)

    def without_credential(self, credential_id: str) -> StoredAgents:
        """Without it; the same if it is not there."""
        left = {key: each for key, each in self.credentials.items() if key != credential_id}
        return attrs.evolve(self, credentials=left)

    def room_for_token(self, now: datetime) -> StoredAgents:
        """Without the tokens that have expired, and one fewer of those that are used up if there
        are too many."""
        tokens = {key: each for key, each in self.tokens.items() if each.expires > now}
        spent = (key for key, each in tokens.items() if each.uses_left == 0)
        if len(tokens) >= MAX_TOKENS and (oldest := next(spent, None)) is not None:
            del tokens[oldest]
        return attrs.evolve(self, tokens=tokens)

    def pruned(self, now: datetime, but: Container[str] = ()) -> StoredAgents:
        """Without what has expired; ``but``: ids of credentials that stay all the same."""
        tokens = {key: each for key, each in self.tokens.items() if each.expires > now}
        since = now - UNUSED_LIFE
        credentials = {
            key: each
            for key, each in self.credentials.items()
            if each.seen_or_made > since or key in but
        }
        return StoredAgents(tokens, credentials, self.guarded)

    # ------------------------------------------------------------- the text

    def render(self) -> bytes:
        """Return the text of the file."""
        return b'{"version":%d,"guarded":%s,"tokens":[%s],"credentials":[%s]}\n' % (
            VERSION,
            b"true" if self.guarded else b"false",
            _joined(each.line for each in self.tokens.values()),
            _joined(each.line for each in self.credentials.values()),
        )

    @classmethod
    def parse(cls, text: bytes) -> StoredAgents:
        """Strict; the ConfigurationError names the place of what is wrong and quotes nothing."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError("it is not JSON") from error
        fields = _fields(content, {"version", "guarded", "tokens", "credentials"}, "the file")
        if fields["version"] != VERSION:
            raise ConfigurationError(f"its version is not {VERSION}, the one known here")
        if not isinstance(fields["guarded"], bool):
            raise ConfigurationError("guarded must be true or false")
        tokens = _records(fields["tokens"], "tokens", MAX_TOKENS)
        credentials = _records(fields["credentials"], "credentials", MAX_CREDENTIALS)
        stored = cls(
            {each.id: each for each in (_token(*record) for record in tokens)},
            {each.id: each for each in (_credential(*record) for record in credentials)},
            fields["guarded"] or bool(tokens or credentials),
        )
        if (len(stored.tokens), len(stored.credentials)) != (len(tokens), len(credentials)):
            raise ConfigurationError("two records have the same id")
        if len({each.name for each in stored.credentials.values()}) != len(credentials):
            raise ConfigurationError("two credentials have the same name")
        return stored


_TOKEN_FIELDS: Final = {
    "id",
    "sha256",
    "created",
    "expires",
    "uses",
    "uses_left",
    "labels",
    "name",
    "by",
}
_CREDENTIAL_FIELDS: Final = {
    "id",
    "name",
    "token",
    "sha256",
    "pending",
    "earlier",
    "created",
    "rotated",
    "last_seen",
    "address",
    "labels",
    "suspicious",
}


def _token(value: object, what: str) -> StoredToken:
    fields = _fields(value, _TOKEN_FIELDS, what)
    uses, uses_left = fields["uses"], fields["uses_left"]
    if type(uses) is not int or type(uses_left) is not int or not 0 <= uses_left <= uses:
        raise ConfigurationError(f"{what}.uses_left must be a number from 0 to uses")
    name = fields["name"]
    return StoredToken(
        id=_id(fields["id"], f"{what}.id"),
        digest=_digest(fields["sha256"], f"{what}.sha256"),
        created=_time(fields["created"], f"{what}.created"),
        expires=_time(fields["expires"], f"{what}.expires"),
        uses=uses,
        uses_left=uses_left,
        labels=_labels(fields["labels"], f"{what}.labels"),
        name=None if name is None else _name(name, f"{what}.name"),
        by=_text(fields["by"], f"{what}.by"),
    )


def _credential(value: object, what: str) -> StoredCredential:
    fields = _fields(value, _CREDENTIAL_FIELDS, what)
    pending, earlier = fields["pending"], fields["earlier"]
    last_seen, suspicious = fields["last_seen"], fields["suspicious"]
    if not isinstance(earlier, list) or len(earlier) > MAX_EARLIER:
        raise ConfigurationError(f"{what}.earlier must be a list of at most {MAX_EARLIER}")
    return StoredCredential(
        id=_id(fields["id"], f"{what}.id"),
        name=_name(fields["name"], f"{what}.name"),
        token=_id(fields["token"], f"{what}.token"),
        digest=_digest(fields["sha256"], f"{what}.sha256"),
        pending=None if pending is None else _digest(pending, f"{what}.pending"),
        earlier=tuple(_digest(each, f"{what}.earlier") for each in earlier),
        created=_time(fields["created"], f"{what}.created"),
        rotated=_time(fields["rotated"], f"{what}.rotated"),
        last_seen=None if last_seen is None else _time(last_seen, f"{what}.last_seen"),
        address=_text(fields["address"], f"{what}.address"),
        labels=_labels(fields["labels"], f"{what}.labels"),
        suspicious=None if suspicious is None else _text(suspicious, f"{what}.suspicious"),
    )


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _joined(lines: Iterable[bytes]) -> bytes:
    text = b",\n".join(lines)
    return b"\n" + text + b"\n" if text else b""


def _fields(value: object, names: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise ConfigurationError(f"{what} must have exactly {', '.join(sorted(names))}")
    return value


def _records(value: object, what: str, limit: int) -> list[tuple[object, str]]:
    if not isinstance(value, list) or len(value) > limit:
        raise ConfigurationError(f"{what} must be a list of at most {limit}")
    return [(each, f"{what}[{place}]") for place, each in enumerate(value)]


def _id(value: object, what: str) -> str:
    if not isinstance(value, str) or ID.fullmatch(value) is None:
        raise ConfigurationError(f"{what} must be 12 hexadecimal digits")
    return value


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or AGENT_NAME.fullmatch(value) is None:
        raise ConfigurationError(f"{what} is no name of an agent")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise ConfigurationError(f"{what} must be a text of at most {MAX_TEXT_CHARS} characters")
    return value


def _digest(value: object, what: str) -> bytes:
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != DIGEST_BYTES:
        raise ConfigurationError(f"{what} must be {DIGEST_BYTES} bytes in hexadecimal")
    return raw


def _time(value: object, what: str) -> datetime:
    try:
        return datetime.strptime(value if isinstance(value, str) else "", _TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigurationError(f"{what} must be a time such as 2026-01-31T23:59:59Z") from error


def _labels(value: object, what: str) -> Mapping[str, str]:
    is_map = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    if not is_map:
        raise ConfigurationError(f"{what} must be an object of texts")
    assert isinstance(value, dict)
    try:
        check_labels(value, what)
    except ShapeError as error:
        raise ConfigurationError(f"{what}: {error}") from error
    return value
