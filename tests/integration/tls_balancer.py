"""A balancer with TLS on all of its ports, as a real process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import httpx
from fleet import Daemon

from certificates import Authority, Pair

PATIENCE_S = 60
PORTS = ("inference", "management", "compat_openai", "compat_ollama", "web_admin_panel")


@attrs.frozen
class TlsBalancer:
    daemon: Daemon
    authority: Authority
    pair: Pair
    addresses: dict[str, str]

    def url(self, port: str, path: str = "/") -> str:
        return f"https://{self.addresses[port]}{path}"

    def get(self, port: str, path: str) -> httpx.Response:
        context = self.authority.client_context()
        return httpx.get(self.url(port, path), verify=context, trust_env=False, timeout=PATIENCE_S)


@contextmanager
def tls_balancer(authority: Authority, pair: Pair, *options: str) -> Iterator[TlsBalancer]:
    daemon = Daemon.start(
        "balancer",
        [
            "balancer",
            "--inference-addr=127.0.0.1:0",
            "--management-addr=127.0.0.1:0",
            "--compat-openai-addr=127.0.0.1:0",
            "--compat-ollama-addr=127.0.0.1:0",
            "--web-admin-panel-addr=127.0.0.1:0",
            f"--tls-cert={pair.cert}",
            f"--tls-key={pair.key}",
            "--log-json",
            *options,
        ],
        {},
    )
    try:
        up = daemon.wait_for_log("balancer up")
        addresses = {port: str(up[port][0]) for port in PORTS}  # type: ignore[index]
        yield TlsBalancer(daemon, authority, pair, addresses)
    except BaseException as error:
        error.add_note(daemon.tail())
        raise
    finally:
        daemon.end()


def install(source: Pair, target: Pair) -> None:
    """Replace a pair as renewals do: each file in one step."""
    for new, old in ((source.key, target.key), (source.cert, target.cert)):
        fresh = old.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(new.read_bytes())
        fresh.replace(old)
