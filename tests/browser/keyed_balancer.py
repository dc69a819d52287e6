"""A balancer that asks for keys, as an operator starts one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from fleet import Daemon

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    read_key_file,
    write_key_file,
)


@attrs.define(eq=False)
class KeyedBalancer:
    """``secrets`` are by the names of their keys: ops and night manage, app may use inference."""

    daemon: Daemon
    file: Path
    secrets: dict[str, str]

    @classmethod
    @contextmanager
    def start(cls, *options: str) -> Iterator[KeyedBalancer]:
        """With a panel on a port of its own; it is killed at the end."""
        with TemporaryDirectory(prefix="paddler-trio-keys-") as folder:
            file, content, secrets = Path(folder) / "keys.json", KeyFile(), {}
            for name, scope in (
                ("ops", KeyScope.MANAGEMENT),
                ("night", KeyScope.MANAGEMENT),
                ("app", KeyScope.INFERENCE),
            ):
                secrets[name] = new_secret()
                scopes = frozenset({scope})
                content = content.having(
                    StoredKey.of(secrets[name], name=name, scopes=scopes, created="2026-01-01")
                )
            write_key_file(file, content)
            arguments = [
                "balancer",
                "--inference-addr=127.0.0.1:0",
                "--management-addr=127.0.0.1:0",
                "--web-admin-panel-addr=127.0.0.1:0",
                f"--api-key-file={file}",
                "--drain-timeout=2000",
                "--log-json",
                *options,
            ]
            daemon = Daemon.start("balancer", arguments, {})
            try:
                yield cls(daemon, file, secrets)
            except BaseException as error:
                error.add_note(f"--- log of the balancer\n{daemon.tail()}")
                raise
            finally:
                daemon.end()

    def url(self, service: str = "web_admin_panel") -> str:
        """Of one of its ports, with the slash."""
        addresses = self.daemon.wait_for_log("balancer up")[service]
        assert isinstance(addresses, list)
        return f"http://{addresses[0]}/"

    def revoke(self, name: str) -> None:
        """On the command line's way: the file, then SIGHUP; until the sessions have ended."""
        write_key_file(self.file, read_key_file(self.file).without(name))
        self.daemon.signal(signal.SIGHUP)
        self.daemon.wait_for_log("keys read again")
