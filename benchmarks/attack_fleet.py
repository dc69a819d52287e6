"""The fleet that is attacked: a balancer with agents, one that asks for API keys, one for servers.

The bundled model is served with a projection of random weights, so that images go all the way. The
balancer for servers has two agents with ``--upstream``, in front of an :class:`AttackServer`.
Every process has a limit on its address space and dies with this one; each is known by its id, and
:meth:`AttackedFleet.end` ends whatever is left of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import httpx
from attack_processes import Watchdog, descendants, is_alive, is_engine
from attack_server import SLOTS as SERVER_SLOTS
from attack_server import AttackServer

from paddler_trio.balancer.joining.stored_agents import StoredAgents, StoredCredential
from paddler_trio.net.joining.agent_credential import AgentCredential
from paddler_trio.net.joining.join_token import digest_of
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from vision_models import write_projector

START_S = 60.0
POLL_S = 0.05
ADDRESS_SPACE_BYTES = 12 << 30
SLOTS = 4
CONTEXT_TOKENS = 4096
SERVERS = 2
_LOSSES = ("agent left", "agent ejected: too many failures")
SMALL_CACHES = ("--prefix-cache-ram=32", "--image-cache-ram=16")
"""MiB: what an agent is meant to keep would hide what it should not."""
_BOUNDED = Path(__file__).with_name("attack_bounded.py")


CREDENTIAL = AgentCredential("0" * 12, "s" * 43)
"""Of an agent that joined the balancer with keys; no deployment of it names a model."""


def joined() -> bytes:
    """The file of agents of that balancer."""
    now = datetime.now(UTC)
    known = StoredCredential(
        id=CREDENTIAL.id,
        name="joined",
        token="0" * 12,
        digest=digest_of(CREDENTIAL.secret),
        created=now,
        rotated=now,
        address="127.0.0.1",
        labels={},
    )
    return StoredAgents(guarded=True, credentials={known.id: known}).render()


class FleetError(Exception):
    """The fleet does not come up, so there is nothing to attack."""


@attrs.define(eq=False)
class AttackedFleet:
    """See the module docstring. ``memory_bytes``: of all its processes together, then one dies."""

    folder: Path
    agents: int
    memory_bytes: int
    addresses: dict[str, str] = attrs.field(factory=dict)
    """Each port by its name to ``host:port``."""
    state: dict[str, Any] = attrs.field(factory=dict)
    """What is served, as the management port has it."""
    watchdog: Watchdog = attrs.field(init=False)
    _server: AttackServer | None = None
    """No member: nobody judges what it costs."""
    _daemons: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    _engines: set[int] = attrs.field(factory=set)
    """All that were ever seen: one that is stuck may outlive its agent."""

    @classmethod
    def start(cls, folder: Path, *, agents: int, memory_bytes: int) -> AttackedFleet:
        """All of it; FleetError after which everything is ended if it does not serve in time."""
        fleet = cls(folder, agents, memory_bytes)
        fleet.watchdog = Watchdog(fleet.pids, memory_bytes)
        try:
            fleet._start_all()
        except BaseException:
            fleet.end()
            raise
        return fleet

    def pids(self) -> list[int]:
        """The daemons that were started, alive or not."""
        return [daemon.pid for daemon in self._daemons.values()]

    def members(self) -> dict[str, int]:
        """What must not be lost, by name: the daemons that live and their engines."""
        found = {}
        for name, daemon in self._daemons.items():
            if not is_alive(daemon.pid):
                continue
            found[name] = daemon.pid
            engines = [pid for pid in descendants([daemon.pid]) if is_engine(pid)]
            self._engines.update(engines)
            if engines:
                found[f"engine of {name}"] = engines[0]
        return found

    def log_bytes(self) -> dict[str, int]:
        """Places in the logs of the balancers with agents, for :meth:`lost_links`."""
        return {log: (self.folder / log).stat().st_size for log in ("balancer.log", "proxied.log")}

    def lost_links(self, *, since_bytes: Mapping[str, int]) -> int:
        """How often one of our agents left its balancer, or was given no work any more because of
        its failures, after these places in the logs."""
        number_lost = 0
        for name, at_bytes in since_bytes.items():
            with (self.folder / name).open("rb") as log:
                log.seek(at_bytes)
                records = [json.loads(line) for line in log if line.startswith(b"{")]
            number_lost += sum(
                r.get("event") in _LOSSES and r.get("agent") in self._daemons for r in records
            )
        return number_lost

    def wait_serving(self, within_s: float = START_S) -> None:
        """Until all agents serve the model, each in all its slots, and the servers' slots are free;
        FleetError if it does not come to that."""
        digest = ""

        def is_serving() -> bool:
            nonlocal digest
            view = self._ask("GET", "/api/v2/agents").json()
            digest = view["desired_state_digest"]
            return len(view["agents"]) == self.agents and all(
                agent["is_accepting"]
                and agent["slots_total"] == SLOTS
                and agent["served_state"] == digest
                for agent in view["agents"]
            )

        def have_servers_room() -> bool:
            url = f"http://{self.addresses['proxied']}/health"
            health = httpx.get(url, trust_env=False, timeout=20.0).json()
            return bool(health["slots_idle"] == SERVERS * SERVER_SLOTS)

        self._wait(is_serving, within_s, "all agents serve")
        self._wait(have_servers_room, within_s, "all slots of servers are free")

    def restore(self) -> None:
        """Desire again what is to be served, of all agents; FleetError if that cannot be said."""
        try:
            self._ask("PUT", "/api/v1/balancer_desired_state", self.state).raise_for_status()
            for number in range(1, self.agents + 1):
                self._ask("DELETE", f"/api/v2/agents/a{number}/drain")
        except httpx.HTTPError as error:
            raise FleetError(f"the state is not put back: {error!r}") from error

    def end(self) -> None:
        """Kill everything, by id."""
        self.members()
        self.watchdog.end()
        if self._server is not None:
            self._server.end()
        children = [pid for pid in descendants(self.pids()) if pid not in self.pids()]
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait()
        for pid in children:  # those not reaped yet; a stopped one does not see its pipe close
            _kill(pid)
        for pid in self._engines:
            if is_engine(pid):
                _kill(pid)

    # ------------------------------------------------------------- private

    def _start_all(self) -> None:
        projector = self.folder / "projector.gguf"
        if not projector.exists():
            write_projector(projector)
        listeners = ("--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0")
        self._start("balancer", "balancer", *listeners, "--max-buffered-requests=30")
        self._start("proxied", "balancer", *listeners, "--reverseproxy-addr=127.0.0.1:0")
        self._server = AttackServer.start(SERVERS)
        keys = self.folder / "keys"
        if not keys.exists():
            for new in (["one"], ["ops", "--scope", "management"]):
                subprocess.run(
                    [sys.executable, "-m", "paddler_trio", "key", "new", *new, f"--file={keys}"],
                    check=True,
                    capture_output=True,
                )
            (self.folder / "agents").write_bytes(joined())
        self._start(
            *("guarded", "balancer", *listeners, f"--api-key-file={keys}"),
            *(f"--agents-file={self.folder / 'agents'}", "--model-store-size=1GB"),
            f"--model-store={self.folder / 'store'}",
        )
        up = self._record("balancer", "balancer up")
        proxied = self._record("proxied", "balancer up")
        guarded = self._record("guarded", "balancer up")
        self.addresses = {
            "inference": up["inference"][0],
            "management": up["management"][0],
            "guarded": guarded["inference"][0],
            "guarded_management": guarded["management"][0],
            "proxied": proxied["reverse_proxy"][0],
            "deployments": proxied["inference"][0],
        }
        state = self._ask("GET", "/api/v1/balancer_desired_state").json()
        state["model"] = {"LocalToAgent": str(BUNDLED_MODEL)}
        state["multimodal_projection"] = {"LocalToAgent": str(projector)}
        state["inference_parameters"] |= {"context_size": CONTEXT_TOKENS}
        self.state = state
        self.restore()
        for number in range(1, self.agents + 1):
            management = f"--management-addr={self.addresses['management']}"
            self._start(
                f"a{number}",
                "agent",
                management,
                f"--slots={SLOTS}",
                f"--name=a{number}",
                *SMALL_CACHES,
            )
        for number, port in enumerate(self._server.ports, 1):
            self._start(
                f"s{number}",
                "agent",
                f"--management-addr={proxied['management'][0]}",
                f"--upstream=http://127.0.0.1:{port}",
                f"--name=s{number}",
            )
        self.wait_serving()
        self.members()

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                [
                    *(sys.executable, str(_BOUNDED), str(ADDRESS_SPACE_BYTES)),
                    *(sys.executable, "-m", "paddler_trio", *arguments, "--log-json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _record(self, name: str, event: str) -> Mapping[str, Any]:
        found: dict[str, Any] = {}

        def is_there() -> bool:
            for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # half a line, or words of a library
                if record.get("event") == event:
                    found.update(record)
                    return True
            return False

        self._wait(is_there, START_S, f"{name} logs {event!r}")
        return found

    def _wait(self, is_so: Callable[[], bool], within_s: float, what: str) -> None:
        give_up_s = time.monotonic() + within_s
        reason: object = ""
        while time.monotonic() < give_up_s:
            try:
                if is_so():
                    return
            except httpx.TransportError as error:
                reason = repr(error)
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise FleetError(f"{name} ended ({daemon.returncode}): {self._tail(name)}")
            time.sleep(POLL_S)
        raise FleetError(f"not so within {within_s:g} s: {what} {reason}")

    def _tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-600:]

    def _ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        url = f"http://{self.addresses['management']}{path}"
        return httpx.request(method, url, json=body, trust_env=False, timeout=20.0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
