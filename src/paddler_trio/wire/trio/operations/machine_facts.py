"""Facts about an agent's machine, for operators to look at: nothing is decided by them.

An agent of ours sends a :class:`Machine` over its host's link after the registration and whenever
they have changed. A balancer that is older ignores it. Which facts there are may differ between
versions, so they are read one by one: what is not known here, or makes no sense, is left out.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import attrs

from paddler_trio.wire.visible_text import visible

MAX_TEXT_CHARS: Final = 200
MAX_GPUS: Final = 64
MAX_BYTES: Final = 2.0**60
MAX_SECONDS: Final = 1e10


@attrs.frozen
class Range:
    """The least and the most that a number may be."""

    least: float
    most: float


Bytes: TypeAlias = Annotated[float | None, Range(0, MAX_BYTES)]
Share: TypeAlias = Annotated[float | None, Range(0, 1)]
Celsius: TypeAlias = Annotated[float | None, Range(-90, 300)]
Watts: TypeAlias = Annotated[float | None, Range(0, 1e6)]
Seconds: TypeAlias = Annotated[float | None, Range(0, MAX_SECONDS)]
Count: TypeAlias = Annotated[float | None, Range(0, 1e6)]


@attrs.frozen(kw_only=True)
class GpuFacts:
    """One GPU; ``busy`` is the part of the time in which it computed."""

    name: str = ""
    driver: str = ""
    memory_bytes: Bytes = None
    memory_used_bytes: Bytes = None
    busy: Share = None
    temperature_c: Celsius = None
    power_w: Watts = None


@attrs.frozen(kw_only=True)
class MachineFacts:
    """One machine. Texts are empty, and numbers None, where it does not say.

    Args:
      system: the operating system with its version.
      cores: logical ones that there are; ``granted_cores``: as many as the agent may use.
      busy: the part of all cores' time that was used since the look before.
      version: of paddler-trio; ``llama_cpp``: the build of llama.cpp.
      up_s: since the machine was started; ``agent_up_s``: since its agent was.
    """

    system: str = ""
    kernel: str = ""
    cpu: str = ""
    cores: Count = None
    granted_cores: Count = None
    busy: Share = None
    memory_bytes: Bytes = None
    memory_available_bytes: Bytes = None
    temperature_c: Celsius = None
    power_w: Watts = None
    version: str = ""
    llama_cpp: str = ""
    up_s: Seconds = None
    agent_up_s: Seconds = None
    gpus: tuple[GpuFacts, ...] = ()


@attrs.frozen
class Machine:
    """``facts``: a :class:`MachineFacts` as plain JSON, read with :func:`read_facts`."""

    facts: object


def machine_message(facts: MachineFacts) -> Machine:
    """Return the message that has these facts."""
    return Machine(attrs.asdict(facts))


def read_facts(raw: object) -> MachineFacts:
    """Return what of plain JSON makes sense as facts; texts are cut, and hide nothing."""
    facts = _read(raw, MachineFacts)
    gpus = raw.get("gpus") if isinstance(raw, dict) else None
    if not isinstance(gpus, list):
        return facts
    return attrs.evolve(facts, gpus=tuple(_read(gpu, GpuFacts) for gpu in gpus[:MAX_GPUS]))


_Facts = TypeVar("_Facts", GpuFacts, MachineFacts)


def _read(raw: object, shape: type[_Facts]) -> _Facts:
    known: dict[str, str | float] = {}
    for name, kind in get_type_hints(shape, include_extras=True).items():
        value = raw.get(name) if isinstance(raw, dict) else None
        if kind is str and isinstance(value, str):
            known[name] = visible(value[:MAX_TEXT_CHARS])
        elif get_origin(kind) is Annotated and type(value) in (int, float):
            assert isinstance(value, int | float)
            bounds = get_args(kind)[1]
            if bounds.least <= value <= bounds.most:  # not so of what is no number
                known[name] = float(value)
    return shape(**known)  # type: ignore[arg-type]  # each as its annotation says
