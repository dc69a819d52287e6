"""The key that an upstream server asks for and the authorities that vouch for it, in files.

Who renews them replaces the files, and the agent goes on: they are read anew once they have
changed, at the next look at the server. What cannot be used is not taken, and the old one stays;
it is tried again with each look, since what was wrong need not have been in the files.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.upstream_address import upstream_context
from paddler_trio.net.client.upstream_client import UpstreamClient
from paddler_trio.net.tls.server_tls import Signature, signature
from paddler_trio.system.durable import read_secret

log = structlog.get_logger("upstream server")


@attrs.define(eq=False)
class ServerFiles:
    """See the module docstring.

    Args:
      bearer: what the key file holds.
    """

    key_file: Path | None
    ca_file: Path | None
    bearer: bytes | None = attrs.field(repr=False)
    _seen: Signature
    """The identity of the files when they were read last, with success."""
    _problem: tuple[Signature, str] | None = attrs.field(default=None, init=False)
    """Why they were not read the last time, and what they were then; it is logged once."""

    @classmethod
    def read(cls, key_file: Path | None, ca_file: Path | None) -> ServerFiles:
        """Read the key; authorities are read by `make_upstream_client`. ConfigurationError."""
        seen = signature(_given(key_file, ca_file))  # before the files: what changes now is seen
        return cls(key_file, ca_file, _key_in(key_file), seen)

    async def renew(self, client: UpstreamClient) -> None:
        """Let ``client`` use what has changed, if anything has."""
        paths = _given(self.key_file, self.ca_file)
        found = await trio.to_thread.run_sync(signature, paths)
        if found == self._seen:
            return
        try:
            self.bearer, tls = await trio.to_thread.run_sync(self._read_again)
        except ConfigurationError as error:
            problem = found, str(error)
            if problem != self._problem:
                log.error("file not read again, what it held stays", reason=problem[1])
            self._problem = problem
            return
        self._seen, self._problem = found, None
        await client.renew(self.bearer, tls)
        log.info("files read again", files=[str(path) for path in paths])

    def _read_again(self) -> tuple[bytes | None, ssl.SSLContext | None]:
        tls = None if self.ca_file is None else upstream_context(self.ca_file)
        return _key_in(self.key_file), tls


def _given(*files: Path | None) -> tuple[Path, ...]:
    return tuple(path for path in files if path is not None)


def _key_in(file: Path | None) -> bytes | None:
    return None if file is None else read_secret(file).encode()
