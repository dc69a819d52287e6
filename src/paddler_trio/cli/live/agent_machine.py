"""Words for the machine of an agent: for ``agents show`` and the columns of ``agents --wide``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.figures import NOTHING, duration, share
from paddler_trio.cli.live.columns import Column
from paddler_trio.cli.management_client import AgentView, ManagementClient
from paddler_trio.scheduler.fit.fit_words import bytes_words
from paddler_trio.wire.trio.operations.machine_facts import GpuFacts, MachineFacts, read_facts

MACHINES_PATH: Final = "/api/v2/machines"


@attrs.frozen(kw_only=True)
class Device:
    """A device as llama.cpp calls it."""

    device: str = ""
    most_bytes: float = 0


@attrs.frozen(kw_only=True)
class MachineAgent:
    """One connection of the agent."""

    id: str = ""
    deployment: str = ""
    phase: str | None = None


@attrs.frozen(kw_only=True)
class MachineView:
    """One machine, as the balancer has it; ``facts`` are plain JSON, None for nothing."""

    host: str
    name: str = ""
    agents: list[MachineAgent] = attrs.field(factory=list)
    devices: list[Device] = attrs.field(factory=list)
    age_s: float | None = None
    facts: Any = None

    @property
    def known(self) -> MachineFacts:
        """The facts that make sense."""
        return read_facts(self.facts)


@attrs.frozen(kw_only=True)
class MachinesView:
    """All of them."""

    machines: list[MachineView]


def machines_of(client: ManagementClient) -> dict[str, MachineView]:
    """Return the machines by the id of their host; none from a balancer that knows of none."""
    try:
        raw = client.ask("GET", MACHINES_PATH)
    except BalancerRefusedError as error:
        if error.status != 404:
            raise
        return {}
    return {each.host: each for each in client.structured(raw, MachinesView).machines}


def machine_columns(machines: dict[str, MachineView]) -> list[Column[AgentView]]:
    """Return the columns of a list of agents that are about their machines."""

    def known(agent: AgentView) -> MachineFacts:
        machine = machines.get(agent.host or agent.id)
        return MachineFacts() if machine is None else machine.known

    return [
        Column("cpu", 0, lambda agent: cpu_words(known(agent)) or NOTHING),
        Column("ram free", 0, lambda agent: memory_words(known(agent)) or NOTHING),
        Column("gpu", 0, lambda agent: "; ".join(map(gpu_words, known(agent).gpus)) or NOTHING),
        Column("version", 0, lambda agent: known(agent).version or NOTHING),
    ]


def cpu_words(facts: MachineFacts) -> str:
    """Return model, cores, and how busy and how hot they are."""
    cores = None if facts.cores is None else f"{facts.cores:g} cores"
    if cores and facts.granted_cores is not None and facts.granted_cores != facts.cores:
        cores += f" ({facts.granted_cores:g} for the agent)"
    busy = None if facts.busy is None else f"{share(facts.busy)} busy"
    return _joined(facts.cpu, cores, busy, *_heat(facts.temperature_c, facts.power_w))


def memory_words(facts: MachineFacts) -> str:
    """Return how much of the memory is free."""
    free, total = (
        None if each is None else bytes_words(int(each))
        for each in (facts.memory_available_bytes, facts.memory_bytes)
    )
    return f"{free} of {total}" if free and total else total or ""


def gpu_words(gpu: GpuFacts) -> str:
    """Return model, memory in use, and how busy and how hot it is."""
    used, total = (
        None if each is None else bytes_words(int(each))
        for each in (gpu.memory_used_bytes, gpu.memory_bytes)
    )
    memory = f"{used} of {total} used" if used and total else total
    busy = None if gpu.busy is None else f"{share(gpu.busy)} busy"
    return _joined(gpu.name or "a GPU", memory, busy, *_heat(gpu.temperature_c, gpu.power_w))


def machine_lines(machine: MachineView) -> Iterator[tuple[str, str]]:
    """Yield names and values, for people; what is not known is left out."""
    facts = machine.known
    gpus = [gpu_words(gpu) + (f", driver {gpu.driver}" if gpu.driver else "") for gpu in facts.gpus]
    up, agent_up = (
        "" if each is None else duration(each * 1000) for each in (facts.up_s, facts.agent_up_s)
    )
    rows = (
        ("agent", machine.name),
        *(
            ("serves", _joined(f"{each.deployment}: {each.phase or 'as Paddler'}", each.id))
            for each in machine.agents
        ),
        ("system", _joined(facts.system, facts.kernel)),
        ("cpu", cpu_words(facts)),
        ("memory free", memory_words(facts)),
        *(("gpu", words) for words in gpus),
        *(
            ("for models", f"{each.device}: {bytes_words(int(each.most_bytes))} at most")
            for each in machine.devices
        ),
        ("paddler-trio", facts.version),
        ("llama.cpp", facts.llama_cpp),
        ("up", _joined(up and f"machine {up}", agent_up and f"agent {agent_up}")),
        ("said", "" if machine.age_s is None else f"{duration(machine.age_s * 1000)} ago"),
    )
    yield from ((name, value) for name, value in rows if value)
    if machine.facts is None:
        yield "facts", "this agent says nothing of its machine: it is Paddler's, or older"


def _heat(temperature_c: float | None, power_w: float | None) -> tuple[str | None, str | None]:
    return (
        None if temperature_c is None else f"{temperature_c:.0f} °C",
        None if power_w is None else f"{power_w:.0f} W",
    )


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)
