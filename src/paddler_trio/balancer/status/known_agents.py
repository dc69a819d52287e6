"""Every agent that was here, with those that are gone: since when, why, and what they served.

An agent that is lost is not forgotten: it stays listed as offline until it comes back, or until an
operator forgets it. Named agents survive a restart of the balancer in ``STATE.known.json``; an
agent without a name has another id each time that it is started, so that it is kept for an hour and
in memory only. The file may be lost without harm; the balancer that owns the state alone writes it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import attrs
import structlog
import trio

from paddler_trio.balancer.fleet.state_database import content, replace
from paddler_trio.errors import PaddlerError, StateDatabaseError, WireError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.scheduler.truth.agent_truth import truth_of_gone
from paddler_trio.scheduler.truth.truths import Truth
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.system.synchronization import ChangedItems, Changes
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.scalars import IntRange, rfc3339

log = structlog.get_logger("agents")

SUFFIX: Final = ".known.json"
VERSION: Final = 1
MAX_KNOWN: Final = 2000
"""Agents that are gone; of more the ones that left first are forgotten."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_TEXT_CHARS: Final = 300
UNNAMED_KEPT: Final = timedelta(hours=1)
BACK_S: Final = 20.0
"""The time after the start in which agents may be on their way back to this balancer."""
SAVE_S: Final = 2.0
"""Between two writes."""
BROKE: Final = "its connection broke"
NOT_SEEN: Final = "it has not come back since the balancer was started"


class AgentIsHereError(PaddlerError):
    """An agent that is connected cannot be forgotten."""


@attrs.frozen(kw_only=True)
class KnownAgent:
    """One agent, as it is stored.

    Args:
      name: what it is called, or the id of its host.
      left: when its last connection ended, RFC 3339; None while it is here.
      said_goodbye: it was stopped in order.
      last_words: what it reported last.
      reason: why it is not here, if it was not stopped.
    """

    name: str
    deployments: tuple[str, ...] = ()
    slots: Annotated[int, IntRange(0, 2**31 - 1)] = 0
    left: str | None = None
    said_goodbye: bool = False
    last_words: str = ""
    reason: str = BROKE
    is_named: bool = True


@attrs.frozen(kw_only=True)
class GoneAgent:
    """One agent that was here, as operators are shown it; ``since`` is RFC 3339."""

    name: str
    deployments: tuple[str, ...]
    slots: int
    since: str
    last_words: str
    state: Truth


@attrs.frozen(kw_only=True)
class _Document:
    version: Annotated[int, IntRange(1, VERSION)]
    agents: tuple[KnownAgent, ...]


def name_of(agent: AgentConnection) -> str:
    """Return what all connections of one agent's process are known by."""
    return (agent.name or agent.host)[:MAX_TEXT_CHARS]


@attrs.define(eq=False, repr=False)
class KnownAgents:
    """See the module docstring.

    Args:
      path: of the file; None keeps nothing over a restart.
      changed: an agent went, came back or was forgotten.
    """

    dispatcher: Dispatcher
    path: Path | None = None
    changed: Changes = attrs.field(factory=Changes, init=False)
    gone: dict[str, KnownAgent] = attrs.field(factory=dict, init=False)
    """Those that are gone by name, in the order in which they left."""
    _here: dict[str, dict[int, AgentConnection]] = attrs.field(factory=dict, init=False)
    """The agents by name and key of the connection."""
    _served: dict[str, dict[str, AgentConnection]] = attrs.field(factory=dict, init=False)
    """The newest connection, by name and deployment, that an agent had; one that it ended in order
    while others went on does not count."""
    _news: ChangedItems[AgentConnection] = attrs.field(init=False)
    _returning: dict[str, KnownAgent] = attrs.field(factory=dict, init=False)
    """Those of before the start, which may be on their way."""
    _is_unsaved: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._news = self.dispatcher.agents.changed()

    def __repr__(self) -> str:
        return f"<KnownAgents {len(self._here)} here, {len(self.gone)} gone>"

    @property
    def num_here(self) -> int:
        """Return how many agents are connected; one with several deployments is one."""
        self.follow()
        return len(self._here)

    def offline(self, deployment: str) -> int:
        """Return how many served a deployment, were lost, and have not come back."""
        self.follow()
        return sum(
            deployment in each.deployments for each in self.gone.values() if not each.said_goodbye
        )

    def shown(self) -> list[GoneAgent]:
        """Return those that are gone, as operators are shown them."""
        self.follow()
        return [_gone(each) for each in self.gone.values()]

    def forget(self, name: str) -> KnownAgent | None:
        """Forget one that is gone, or expect it no more; None if there is none.

        Errors:
          AgentIsHereError: it is connected.
        """
        self.follow()
        if name in self._here:
            raise AgentIsHereError(f"the agent {name[:80]!r} is connected: stop it first")
        found = self.gone.pop(name, None) or self._returning.pop(name, None)
        if found is not None:
            self._note_change()
        return found

    def follow(self) -> None:
        """Look which agents came and went since the last look."""
        is_changed = False
        for agent in self._news.take():
            name = name_of(agent)
            if agent.key in self.dispatcher.agents:
                here = self._here.setdefault(name, {})
                is_changed |= not here
                here[agent.key] = agent
                self._served.setdefault(name, {})[agent.deployment] = agent
                is_changed |= self._is_back(name)
            else:  # it may have come and gone between two looks
                self._here.setdefault(name, {}).pop(agent.key, None)
                self._served.setdefault(name, {}).setdefault(agent.deployment, agent)
                is_changed |= self._parted(name, agent)
        if is_changed:
            self._note_change()

    async def run(self) -> None:
        """Follow what happens and keep the file, until cancelled."""
        explain_this_task(lambda: repr(self))
        await self._load()
        began_s = trio.current_time()
        try:
            while True:
                ordinal = self.dispatcher.fleet_changed.ordinal
                self.follow()
                now_s = trio.current_time()
                if self._returning and now_s >= began_s + BACK_S:
                    self._give_up_returning()
                self._drop_unnamed()
                if self._is_unsaved:
                    await self._save()
                    await trio.sleep(SAVE_S)
                    continue
                until_s = began_s + BACK_S if self._returning else now_s + 60
                with trio.move_on_at(until_s):
                    await self.dispatcher.fleet_changed.wait_beyond(ordinal)
        finally:
            with trio.move_on_after(2, shield=True):
                self.follow()
                self._is_unsaved = True
                await self._save()

    # ------------------------------------------------------------- private

    def _is_back(self, name: str) -> bool:
        was_gone = self.gone.pop(name, None) is not None
        self._returning.pop(name, None)
        return was_gone

    def _parted(self, name: str, agent: AgentConnection) -> bool:
        """One of its connections has ended; True if it was the last one."""
        served = self._served[name]
        if self._here[name]:
            if agent.said_goodbye and served.get(agent.deployment) is agent:
                del served[agent.deployment]
            return False
        del self._here[name], self._served[name]
        if self.dispatcher.is_draining:
            return False
        self.gone.pop(name, None)
        self.gone[name] = _record(name, list(served.values()), left=rfc3339(datetime.now(UTC)))
        while len(self.gone) > MAX_KNOWN:
            del self.gone[next(iter(self.gone))]
        return True

    def _give_up_returning(self) -> None:
        now = rfc3339(datetime.now(UTC))
        for name, each in self._returning.items():
            self.gone[name] = attrs.evolve(each, left=now, reason=NOT_SEEN)
        self._returning = {}
        self._note_change()

    def _drop_unnamed(self) -> None:
        before = rfc3339(datetime.now(UTC) - UNNAMED_KEPT)
        for name, each in list(self.gone.items()):
            if not each.is_named and (each.left or "") < before:
                del self.gone[name]
                self._note_change()

    def _note_change(self) -> None:
        self._is_unsaved = True
        self.changed.notify()
        self.dispatcher.agents_changed.notify()  # the lists of agents show those that are gone

    async def _load(self) -> None:
        path = self.path
        if path is None:
            return
        try:
            text = await trio.to_thread.run_sync(lambda: content(path, limit_bytes=MAX_FILE_BYTES))
            if not text.strip():
                return
            document = structure(loads(text), _Document)
        except (StateDatabaseError, WireError) as error:
            log.warning(
                "the agents that were here before are not known: their file cannot be read",
                path=str(path),
                reason=str(error),
            )
            return
        for each in document.agents[:MAX_KNOWN]:
            if each.name in self._here or each.name in self.gone:
                continue
            if each.left is None:
                self._returning[each.name] = each
            else:
                self.gone[each.name] = each
        self._note_change()

    async def _save(self) -> None:
        path = self.path
        self._is_unsaved = False
        if path is None:
            return
        here = [
            _record(name, list(agents.values()), left=None)
            for name, agents in list(self._here.items())[:MAX_KNOWN]
        ]
        known = [*here, *self._returning.values(), *self.gone.values()]
        document = _Document(version=VERSION, agents=tuple(e for e in known if e.is_named))

        def write() -> None:
            replace(path, dumps(unstructure(document)) + b"\n")

        try:
            await trio.to_thread.run_sync(write)
        except StateDatabaseError as error:
            self._is_unsaved = True
            log.warning("which agents are known was not saved; tried again", reason=str(error))


def _record(name: str, agents: list[AgentConnection], *, left: str | None) -> KnownAgent:
    """Return what is kept of an agent with these connections."""
    reports = [agent.report for agent in agents if agent.report is not None]
    words = [report.detail or report.phase for report in reports]
    return KnownAgent(
        name=name,
        deployments=tuple(sorted({agent.deployment for agent in agents})),
        slots=sum(max(0, agent.status.slots_total) for agent in agents),
        left=left,
        said_goodbye=all(agent.said_goodbye for agent in agents),
        last_words="; ".join(dict.fromkeys(words))[:MAX_TEXT_CHARS],
        is_named=any(agent.name is not None for agent in agents),
    )


def _gone(each: KnownAgent) -> GoneAgent:
    truth = truth_of_gone(
        said_goodbye=each.said_goodbye, last_words=each.last_words, reason=each.reason
    )
    return GoneAgent(
        name=each.name,
        deployments=each.deployments,
        slots=each.slots,
        since=each.left or "",
        last_words=each.last_words,
        state=truth,
    )
