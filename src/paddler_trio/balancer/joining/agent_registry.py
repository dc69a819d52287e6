"""The join tokens and credentials of a running balancer, and the links that were opened with them.

What is in memory is what the file has, save for what a crash may lose without harm: when an agent
was seen last, and that a pending secret was used (it is used again). Every other change is written
before it is answered, one at a time. The balancer alone uses the file.

A credential's secret is replaced in steps, and a crash between any two leaves both ends with one
that works: the agent makes a new secret and sends its hash; the balancer stores it as ``pending``;
the agent stores the secret; with its first use the balancer puts it in force. Until then the old
one is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.joining.agent_links import OVERLAP_S, REVOKED, AgentLink, AgentLinks
from paddler_trio.balancer.joining.join_rules import (
    JoinConflictError,
    JoinRefusedError,
    check_credentials,
    check_tokens,
    name_of,
    unused_id,
    usable_token,
)
from paddler_trio.balancer.joining.stored_agents import (
    MAX_FILE_BYTES,
    MAX_TEXT_CHARS,
    StoredAgents,
    StoredCredential,
    StoredToken,
)
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentCredential, read_private, replace_private
from paddler_trio.net.joining.join_token import digest_of, matches, new_secret
from paddler_trio.wire.scalars import rfc3339

log = structlog.get_logger("joining")

GRACE_S: Final = 120.0
"""How long a secret that was replaced still counts, and raises no suspicion: an agent has several
links, and one may have read its file just before."""
SAVE_S: Final = 300.0
"""Between two savings of what a crash may lose."""
KEPT_S: Final = 86_400.0
"""An expired credential opens nothing, and is forgotten once it has been expired for so long by a
clock that never jumps: a wall clock that was wrong for an hour makes no machine join again."""


@attrs.define(eq=False, repr=False)
class AgentRegistry:
    """See the module docstring. Nothing is made without a ``path``."""

    path: Path | None = None
    now: Callable[[], datetime] = attrs.field(default=lambda: datetime.now(UTC), kw_only=True)
    _stored: StoredAgents = attrs.field(factory=StoredAgents)
    _links: AgentLinks = attrs.field(factory=AgentLinks, init=False)
    _replaced_s: dict[str, float] = attrs.field(factory=dict, init=False)
    """When the secrets of credentials were replaced, for as long as the old ones count."""
    _expired_s: Mapping[str, float] = attrs.field(factory=dict, init=False)
    """When credentials that are still kept were found to have expired."""
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _is_unsaved: bool = attrs.field(default=False, init=False)
    _is_urgent: bool = attrs.field(default=False, init=False)
    """What is not saved is more than when an agent was seen."""
    _is_frozen: bool = attrs.field(default=False, init=False)
    """Another process may write the file."""

    @classmethod
    def read(cls, path: Path | None) -> AgentRegistry:
        """Read what the file has, if there is one. It blocks. ConfigurationError."""
        if path is None:
            return cls()
        content = read_private(path, limit_bytes=MAX_FILE_BYTES)
        if content is None:
            return cls(path)
        try:
            return cls(path, stored=StoredAgents.parse(content))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{path} holds no agents' credentials: {error}; it was left as it is. Repair it, "
                "or move it away: then every agent has to join again"
            ) from error

    def __repr__(self) -> str:
        return f"<AgentRegistry {self.path}: {self._stored!r}, {len(self._links)} links>"

    @property
    def guards(self) -> bool:
        """Return whether agents have to show something because of what is here."""
        return self._stored.guarded

    def tokens(self) -> list[StoredToken]:
        """Return those that may still be used, the oldest first."""
        now = self.now()
        return [t for t in self._stored.tokens.values() if t.expires > now and t.uses_left > 0]

    def credentials(self) -> list[StoredCredential]:
        """Return all that are in force, the oldest first."""
        now = self.now()
        return [each for each in self._stored.credentials.values() if self._is_in_force(each, now)]

    def connected(self) -> frozenset[str]:
        """Return the ids of the credentials with which agents are connected."""
        return self._links.connected()

    # ------------------------------------------------------------- tokens

    async def make_token(
        self,
        *,
        ttl: timedelta,
        uses: int,
        labels: Mapping[str, str],
        name: str | None,
        by: str,
        secret: str | None = None,
    ) -> tuple[StoredToken, str]:
        """Make a token; return it and its ``secret``, by default a new one, which is kept nowhere.

        JoinConflictError if there are too many, ConfigurationError if the file cannot be written.
        """
        secret = secret or new_secret()
        async with self._turn:
            now = self.now()
            check_tokens(len(self.tokens()))
            token = StoredToken(
                id=unused_id(self._stored.tokens),
                digest=digest_of(secret),
                created=now,
                expires=now + ttl,
                uses=uses,
                uses_left=uses,
                labels=labels,
                name=name,
                by=by[:MAX_TEXT_CHARS],
            )
            await self._store(lambda stored: stored.room_for_token(now).with_token(token))
        return token, secret

    async def revoke_token(self, token_id: str) -> bool:
        """False if there is none. Who joined with it stays. ConfigurationError."""
        async with self._turn:
            if token_id not in self._stored.tokens:
                return False
            await self._store(lambda stored: stored.without_token(token_id))
        return True

    # ------------------------------------------------------------ joining

    async def join(
        self,
        token_id: str,
        secret: str,
        *,
        digest: bytes,
        name: str | None,
        host: str | None = None,
        address: str,
    ) -> StoredCredential:
        """Swap one use of a token for a credential whose secret has this ``digest``.

        Who asks again with the same token and the same ``digest`` gets the same credential, and no
        further use is counted: an answer may be lost on its way. ``host`` is the name where neither
        the token nor the agent has one.

        Raises:
          JoinRefusedError: the token opens nothing.
          JoinConflictError: the name is taken, or there are too many credentials.
          ConfigurationError: the file cannot be written.
        """
        async with self._turn:
            now = self.now()
            token = usable_token(self._stored, token_id, secret, now)
            for each in self._stored.credentials.values():
                if each.token == token_id and each.digest == digest:
                    return each
            if token.uses_left == 0:
                raise JoinRefusedError("it is used up")
            bound = name_of(token, name, host)
            before = self._stored.named(bound)
            if before is not None and self._is_in_force(before, now):
                raise JoinConflictError(
                    f"an agent named {bound!r} has joined already: give another --name, or revoke "
                    f"that one with `paddler-trio agents revoke {bound}`"
                )
            check_credentials(len(self._stored.credentials))
            credential = StoredCredential(
                id=unused_id(self._stored.credentials),
                name=bound,
                token=token.id,
                digest=digest,
                created=now,
                rotated=now,
                address=address[:MAX_TEXT_CHARS],
                labels=token.labels,
            )
            used = attrs.evolve(token, uses_left=token.uses_left - 1)

            def change(stored: StoredAgents) -> StoredAgents:
                left = stored if before is None else stored.without_credential(before.id)
                return left.with_token(used).with_credential(credential)

            await self._store(change)
        return credential

    # -------------------------------------------------------- credentials

    def find(self, shown: AgentCredential, address: str) -> StoredCredential | None:
        """Return the credential that this is; None if it opens nothing."""
        credential = self._stored.credentials.get(shown.id)
        if credential is None or credential.expires <= self.now():
            matches(shown.secret, None)
            return None
        found = digest_of(shown.secret)
        if matches(shown.secret, credential.digest):
            return self._seen(credential, address)
        if matches(shown.secret, credential.pending):
            return self._seen(self._promoted(credential, found), address)
        if found in credential.earlier:
            if credential.earlier[0] == found and self._is_fresh(credential.id):
                return credential
            self._suspect(credential, f"a secret that was replaced was shown again from {address}")
        return None

    async def rotate(self, credential_id: str, digest: bytes, *, replaces: bytes) -> bool:
        """Let the secret of this ``digest`` replace another one with its first use.

        That other one is in the agent's file now: if it is the pending one, it is put in force, so
        that it stays good whatever becomes of the new one. False if the credential is not there any
        more, or neither its secret nor the pending one is to be replaced. ConfigurationError if the
        file cannot be written.
        """
        async with self._turn:
            credential = self._stored.credentials.get(credential_id)
            if credential is None or digest in (credential.digest, *credential.earlier):
                return False
            if replaces == credential.pending:
                self._keep(self._promoted(credential, replaces))
            elif replaces != credential.digest:
                return False
            now = self.now()  # a link may last longer than a credential may lie unused

            def change(stored: StoredAgents) -> StoredAgents:
                newest = stored.credentials[credential_id]
                changed = attrs.evolve(newest, pending=digest, last_seen=now)
                return stored.with_credential(changed)

            await self._store(change)
        return True

    async def revoke(self, name: str) -> StoredCredential | None:
        """Make the credential of this agent worthless and end its links; the credential, None if
        there is none. ConfigurationError if the file cannot be written."""
        async with self._turn:
            credential = self._stored.named(name)
            if credential is None:
                return None
            await self._store(lambda stored: stored.without_credential(credential.id))
            self._replaced_s.pop(credential.id, None)
            self._links.cut(credential.id)
        return credential

    @contextmanager
    def link(self, credential_id: str, process: str, address: str) -> Iterator[AgentLink]:
        """Around a connection: it is cancelled when the credential is revoked."""
        link = self._links.open(credential_id, process, address)
        try:
            with link.scope:
                if credential_id not in self._stored.credentials:
                    link.scope.cancel(reason=REVOKED)
                yield link
        finally:
            self._links.close(credential_id, link)
            credential = self._stored.credentials.get(credential_id)
            if credential is not None:
                self._seen(credential, address)

    async def run(self) -> None:
        """Look for credentials that two processes show, and save what a crash may lose; until
        cancelled."""
        saved_s = trio.current_time()
        try:
            while True:
                await trio.sleep(OVERLAP_S / 3)
                now_s = trio.current_time()
                self._look(now_s)
                if self._is_urgent or (self._is_unsaved and now_s >= saved_s + SAVE_S):
                    await self._save()
                    saved_s = now_s
        finally:
            with trio.move_on_after(2, shield=True):
                await self._save()

    async def freeze(self) -> None:
        """Another process takes over: what is not saved is, and a write from then on is an
        error."""
        await self._save()
        async with self._turn:
            self._is_frozen = True

    def thaw(self) -> None:
        """Write again."""
        self._is_frozen = False

    # ------------------------------------------------------------ private

    def _look(self, now_s: float) -> None:
        for credential_id, reason in self._links.in_two_places(now_s):
            credential = self._stored.credentials.get(credential_id)
            if credential is not None:
                self._suspect(credential, reason)

    def _suspect(self, credential: StoredCredential, reason: str) -> None:
        if credential.suspicious is not None:
            return
        when = rfc3339(self.now())
        log.error(
            "SOMEBODY ELSE MAY HAVE AN AGENT'S CREDENTIAL: revoke it, let the machine join again",
            agent=credential.name,
            credential=credential.id,
            reason=reason,
            advice=f"paddler-trio agents revoke {credential.name}",
        )
        self._is_urgent = True
        self._keep(attrs.evolve(credential, suspicious=f"{reason} ({when})"[:MAX_TEXT_CHARS]))

    def _seen(self, credential: StoredCredential, address: str) -> StoredCredential:
        seen = attrs.evolve(credential, last_seen=self.now(), address=address[:MAX_TEXT_CHARS])
        return self._keep(seen)

    def _promoted(self, credential: StoredCredential, digest: bytes) -> StoredCredential:
        self._is_urgent = True
        self._replaced_s[credential.id] = trio.current_time()
        log.info("an agent's secret was replaced", agent=credential.name, credential=credential.id)
        return credential.with_digest(digest, self.now())

    def _is_fresh(self, credential_id: str) -> bool:
        """Return whether the secret was replaced just now."""
        replaced_s = self._replaced_s.get(credential_id)
        return replaced_s is not None and trio.current_time() < replaced_s + GRACE_S

    def _keep(self, credential: StoredCredential) -> StoredCredential:
        """Change what is in memory; the file follows."""
        self._stored.credentials[credential.id] = credential
        self._is_unsaved = True
        return credential

    async def _save(self) -> None:
        if self.path is None or not self._is_unsaved or self._is_frozen:
            return
        async with self._turn:
            try:
                await self._store(self._pruned)
            except ConfigurationError as error:
                log.warning("agents' credentials not saved; tried again", reason=str(error))

    def _is_in_force(self, credential: StoredCredential, now: datetime) -> bool:
        """An agent that is connected with it is not seen anew before its link ends."""
        return credential.expires > now or credential.id in self._links

    def _pruned(self, stored: StoredAgents) -> StoredAgents:
        now, now_s = self.now(), trio.current_time()
        expired = [
            key for key, each in stored.credentials.items() if not self._is_in_force(each, now)
        ]
        self._expired_s = {key: self._expired_s.get(key, now_s) for key in expired}
        kept = {key for key, since_s in self._expired_s.items() if now_s < since_s + KEPT_S}
        return stored.pruned(now, but=kept | self._links.connected())

    async def _store(self, change: Callable[[StoredAgents], StoredAgents]) -> None:
        """Write, then change what is in memory; ConfigurationError, and nothing has changed.

        Cancellation: not once it is being written, or what is in force would not be what is stored.
        """
        path = self.path
        if path is None:
            raise ConfigurationError("this balancer keeps no agents' credentials")
        if self._is_frozen:
            raise ConfigurationError("another process has taken over from this balancer")
        changed = change(self._stored)
        with trio.CancelScope(shield=True):
            self._is_unsaved = self._is_urgent = False
            try:
                await trio.to_thread.run_sync(lambda: replace_private(path, changed.render()))
            except ConfigurationError:
                self._is_unsaved = True  # tried again, but not at once
                raise
            self._stored = change(self._stored)  # links may have come and gone meanwhile
