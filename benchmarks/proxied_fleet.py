"""Two llama-servers, an agent in front of each, their balancer, and perhaps nginx beside it.

All on loopback; each is known by its process id, and has ended when the block is left.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
from answers import AnswerError
from child_processes import START_S, ask, is_ready, process, split, wait_for
from proxied_requests import Address
from relays import relays

SERVERS = 2
SLOTS = 4
SLOT_TOKENS = 2048
PATIENCE_MS = 120_000
WAITING_REQUESTS = 4096
LOOK_S = 0.05


@attrs.define(eq=False)
class UpstreamServer:
    """A llama-server that can be killed and started again on its port."""

    binary: Path
    model: Path
    folder: Path
    address: Address
    _stack: ExitStack = attrs.field(factory=ExitStack, init=False)
    _child: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)

    def start(self) -> None:
        """Until it is ready; AnswerError if it does not get ready."""
        host, port = self.address
        command = [
            *(str(self.binary), "--model", str(self.model), "--host", host, "--port", str(port)),
            *("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS)),
            *("--threads", "1", "--threads-batch", "1", "--n-gpu-layers", "0"),
            *("--no-kv-unified", "--cache-ram", "0", "--slots", "--metrics"),
        ]
        log = self.folder / f"llama-server-{port}.log"
        self._child = self._stack.enter_context(process(command, log))
        wait_for(lambda _: is_ready(self.address, "/health"), self._child, log)

    def kill(self) -> None:
        """With SIGKILL, and wait until it is gone."""
        assert self._child is not None, "it was started"
        self._child.kill()
        self._child.wait()

    def end(self) -> None:
        self._stack.close()


@attrs.frozen(eq=False)
class Fleet:
    """What is up.

    Attributes:
      front: the balancer's ``--reverseproxy-addr``.
      pids: of the balancer and the agents, by name.
      nginx: where it listens; None if it was not asked for.
      relays: two in a row in front of the first server (``relays.py``).
    """

    servers: tuple[UpstreamServer, ...]
    front: Address
    pids: dict[str, int]
    nginx: Address | None
    relays: Address

    def wait_whole(self) -> None:
        """Until the balancer has all slots of all servers, and all are free; AnswerError."""
        give_up_s = time.monotonic() + START_S
        wanted, health = SERVERS * SLOTS, {}
        while time.monotonic() < give_up_s:
            if is_ready(self.front, "/health"):
                health = json.loads(ask(self.front, "GET", "/health"))
                if (health["slots_idle"], health["slots_processing"]) == (wanted, 0):
                    return
            time.sleep(LOOK_S)
        raise AnswerError(f"not {wanted} free slots after {START_S:g} s: {health}")


@contextmanager
def fleet(binary: Path, model: Path, nginx: Path | None, folder: Path) -> Iterator[Fleet]:
    """All of it, ready.

    Args:
      folder: for logs and nginx's files.
    """
    with ExitStack() as stack:
        servers = []
        for _ in range(SERVERS):
            server = UpstreamServer(binary, model, folder, ("127.0.0.1", _free_port()))
            stack.callback(server.end)
            server.start()
            servers.append(server)
        ours = [sys.executable, "-m", "paddler_trio"]
        log = folder / "balancer.log"
        balancer = stack.enter_context(
            process(
                [
                    *(*ours, "balancer", "--log-json", "--inference-addr", "127.0.0.1:0"),
                    *("--management-addr", "127.0.0.1:0", "--reverseproxy-addr", "127.0.0.1:0"),
                    *("--max-buffered-requests", str(WAITING_REQUESTS)),
                    *("--buffered-request-timeout", str(PATIENCE_MS)),
                ],
                log,
            )
        )
        up = wait_for(_addresses, balancer, log)
        pids = {"balancer": balancer.pid}
        for number, server in enumerate(servers, start=1):
            host, port = server.address
            name = f"agent-{number}"
            command = [
                *(*ours, "agent", "--log-json", "--name", name),
                *("--management-addr", up["management"], "--upstream", f"http://{host}:{port}"),
            ]
            pids[name] = stack.enter_context(process(command, folder / f"{name}.log")).pid
        beside = None if nginx is None else stack.enter_context(_nginx(nginx, servers, folder))
        row = stack.enter_context(relays(2, servers[0].address, folder))
        front = split(up["reverse_proxy"])
        whole = Fleet(tuple(servers), front, pids, beside, row.address)
        whole.wait_whole()
        yield whole


@contextmanager
def _nginx(binary: Path, servers: list[UpstreamServer], folder: Path) -> Iterator[Address]:
    """One process that passes requests to the server with the fewest connections."""
    address = ("127.0.0.1", _free_port())
    places = " ".join(f"server {host}:{port};" for host, port in (s.address for s in servers))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {folder}/nginx-{kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"""
        daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr warn;
        events {{ worker_connections 1024; }}
        http {{
          access_log off; client_body_buffer_size 1m; {folders}
          upstream servers {{ least_conn; {places} }}
          server {{
            listen {address[0]}:{address[1]};
            location / {{
              proxy_pass http://servers; proxy_http_version 1.1; proxy_buffering off;
              proxy_read_timeout 600s;
            }}
          }}
        }}
        """
    )
    log = folder / "nginx.log"
    with process([str(binary), "-p", str(folder), "-c", str(config), "-e", "stderr"], log) as child:
        wait_for(lambda _: is_ready(address, "/health"), child, log)
        yield address


def _addresses(log: str) -> dict[str, str] | None:
    for line in log.splitlines():
        if '"balancer up"' in line:
            record = json.loads(line)
            return {key: record[key][0] for key in ("management", "reverse_proxy")}
    return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
