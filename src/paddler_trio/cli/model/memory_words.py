"""The words for what an agent reports about the memory of its model.

It is read as plain JSON, so a shape that a newer agent invents shows nothing and breaks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddler_trio.cli.management_client import AgentView
from paddler_trio.scheduler.fit.fit_words import bytes_words


def chosen_words(agent: AgentView) -> str:
    """Return what the agent chose by itself, such as ``context-size 57344``; empty for nothing."""
    memory = agent.memory or {}
    chosen = memory.get("chosen")
    names = [name for name in chosen if isinstance(name, str)] if isinstance(chosen, list) else []
    return ", ".join(f"{name.replace('_', '-')} {memory.get(name)}" for name in names)


def slot_context(agent: AgentView) -> str:
    """Return how many tokens one of its slots may have; empty if that is not known."""
    most = (agent.memory or {}).get("slot_context")
    return f"{most} a slot" if isinstance(most, int) else ""


def memory_words(agent: AgentView) -> str:
    """Return what the model takes on each device, and what was predicted; empty if nothing is
    known."""
    return ", ".join(_devices(agent))


def _devices(agent: AgentView) -> Iterator[str]:
    devices = (agent.memory or {}).get("devices")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict):
            continue
        actual, predicted = device.get("actual"), device.get("predicted")
        words = [str(device.get("device"))]
        if isinstance(actual, int):
            words.append(bytes_words(actual))
        if isinstance(predicted, int):
            words.append(f"(predicted {bytes_words(predicted)})")
        if actual or predicted:
            yield " ".join(words)
