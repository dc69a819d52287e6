"""Keep what is learned about hosts by asking them: does a deployment fit, are its files there.

Every question is a task, a few at a time. An answer is kept until the host leaves; one that failed
is asked for again after a pause, as long as it is still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar

import attrs
import structlog
import trio

from paddler_trio.errors import LinkError, WireError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.agent_questions import AgentDisconnectedError, QuestionRefusedError
from paddler_trio.system.synchronization import ChangedItems, Changes
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.desired_state import DesiredModel
from paddler_trio.wire.trio.cache_commands import CacheProgress, Pull
from paddler_trio.wire.trio.fit_messages import FitQuestion, FitReport

log = structlog.get_logger("fleet")

T = TypeVar("T")
HostId: TypeAlias = str
Digest: TypeAlias = str
"""Of a desired state with its extras."""
Bytes: TypeAlias = Mapping[str, int]
"""By device; ``host`` is the memory of the machine."""

NONE_KNOWN: Final[Mapping[HostId, Bytes]] = {}
FIT_TIMEOUT_S: Final = 60.0
FIT_AGAIN_S: Final = 60.0
BESIDE_AGAIN_S: Final = 60.0
BUSY_AGAIN_S: Final = 5.0
FITS_AT_ONCE: Final = 8
PREFETCHES_AT_ONCE: Final = 64


@attrs.frozen
class BesideAnswer:
    """Would ``digest`` be loaded beside what an instance serves? ``asked_s``: when it was asked."""

    digest: Digest
    is_so: bool | None
    asked_s: float


@attrs.define(eq=False)
class KnownHost:
    """Hold what is known of one host, by the digests of states.

    ``memory``: what models may take, all instances together.
    ``fetching``: how far each download is, and ``fetches`` what ends it. ``fetch_failed``: why
    files could not be fetched.
    ``load_s``: how long each state took to load.
    ``beside``: by deployment, the newest answer.
    """

    memory: Bytes = attrs.field(factory=dict)
    on_disk: set[Digest] = attrs.field(factory=set)
    fetching: dict[Digest, CacheProgress | None] = attrs.field(factory=dict)
    fetches: dict[Digest, trio.CancelScope] = attrs.field(factory=dict)
    fetch_failed: dict[Digest, str] = attrs.field(factory=dict)
    load_s: dict[Digest, float] = attrs.field(factory=dict)
    beside: dict[str, BesideAnswer] = attrs.field(factory=dict)
    asking: bool = False
    """For a fit; one question at a time."""
    ask_again_s: dict[Digest, float] = attrs.field(factory=dict)

    def loads_beside(self, deployment: str, digest: Digest | None) -> bool | None:
        """Would it load this state beside what the deployment serves there; None if unknown."""
        answer = self.beside.get(deployment)
        return None if answer is None or answer.digest != digest else answer.is_so

    def asks_beside_s(self, deployment: str, digest: Digest) -> float | None:
        """Return when this may be asked (again): memory is taken and freed. None while a question
        is on its way, whose answer is heard of."""
        if self.asking:
            return None
        answer = self.beside.get(deployment)
        if answer is None or answer.digest != digest:
            return trio.current_time()
        return answer.asked_s + BESIDE_AGAIN_S


@attrs.define(eq=False)
class HostKnowledge:
    """See the module docstring. ``open`` gives the questions their nursery.

    ``needs``: predicted memory of a state, by host.
    """

    needs: dict[Digest, dict[HostId, Bytes]] = attrs.field(factory=dict, init=False)
    changed: Changes = attrs.field(factory=Changes, init=False)
    changed_hosts: ChangedItems[HostId] = attrs.field(factory=ChangedItems, init=False)
    """Those about which something was learned by asking."""
    _hosts: dict[HostId, KnownHost] = attrs.field(factory=dict, init=False)
    _fits: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(FITS_AT_ONCE), init=False
    )
    _fetches: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(PREFETCHES_AT_ONCE), init=False
    )
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    def open(self, nursery: trio.Nursery) -> None:
        """Questions are tasks of ``nursery`` from now on."""
        self._nursery = nursery

    def of(self, host: HostId) -> KnownHost:
        """Return what is known of it, little at first."""
        return self._hosts.setdefault(host, KnownHost())

    def forget(self, host: HostId) -> None:
        """The host has left; it may come back with other hardware and another disk."""
        self._hosts.pop(host, None)
        for digest, needs in list(self.needs.items()):
            needs.pop(host, None)
            if not needs:
                del self.needs[digest]

    def forget_states(self, *, but: Container[Digest]) -> None:
        """Forget those that nobody can want again but by desiring them anew."""
        for known in self._hosts.values():
            known.on_disk = {each for each in known.on_disk if each in but}
            known.fetch_failed = _of(known.fetch_failed, but)
            known.load_s = _of(known.load_s, but)
            known.ask_again_s = _of(known.ask_again_s, but)
        self.needs = _of(self.needs, but)

    def forget_failed_fetches(self, digest: Digest) -> None:
        """They may succeed now."""
        for host, known in self._hosts.items():
            if known.fetch_failed.pop(digest, None) is not None:
                self.changed_hosts.note(host)

    def _learned(self, host: HostId) -> None:
        self.changed_hosts.note(host)
        self.changed.notify()

    # ------------------------------------------------------------------- fit

    def fit_questions(self, host: HostId, digests: Iterable[Digest]) -> list[Digest]:
        """Return those states of which it is not known what they need there, and may be asked
        now."""
        known, now_s = self.of(host), trio.current_time()
        if known.asking:
            return []
        return [
            digest
            for digest in digests
            if host not in self.needs.get(digest, NONE_KNOWN)
            and now_s >= known.ask_again_s.get(digest, 0.0)
        ]

    def ask_fit(
        self, agent: AgentConnection, digest: Digest, question: FitQuestion, *, others: Bytes
    ) -> None:
        """Learn what this state needs on the host of ``agent``.

        Args:
          others: bytes that other instances of the host hold now.
        """
        known = self.of(agent.host)
        assert self._nursery is not None, "asked before the tree was built"
        known.asking = True
        self._nursery.start_soon(
            self._fit, agent, known, digest, question, others, name=f"fit on {agent.label}"
        )

    async def _fit(
        self,
        agent: AgentConnection,
        known: KnownHost,
        digest: Digest,
        question: FitQuestion,
        others: Bytes,
    ) -> None:
        known.ask_again_s[digest] = trio.current_time() + FIT_AGAIN_S
        report = await self._report(agent, known, question)
        if report is None or report.fits is None:
            await trio.sleep_until(known.ask_again_s.get(digest, 0.0))
            self._learned(agent.host)  # that it may be asked again
            return
        if self._hosts.get(agent.host) is not known:
            return  # it left
        need = {device.device: device.needed for device in report.devices}
        self.needs.setdefault(digest, {})[agent.host] = need
        known.memory = {
            device.device: device.available + others.get(device.device, 0)
            for device in report.devices
            if device.available is not None
        }

    async def _report(
        self, agent: AgentConnection, known: KnownHost, question: FitQuestion
    ) -> FitReport | None:
        try:
            async with self._fits:
                with trio.fail_after(FIT_TIMEOUT_S):
                    return structure(await agent.questions.ask_fit(question), FitReport)
        except (QuestionRefusedError, LinkError, WireError, trio.TooSlowError) as error:
            reason = str(error) or f"no answer in {FIT_TIMEOUT_S:g} s"
            log.info("the fit is unknown", agent=agent.label, reason=reason)
            return None
        finally:
            known.asking = False
            self._learned(agent.host)

    # ---------------------------------------------------------- load beside

    def ask_beside(
        self, agent: AgentConnection, deployment: str, digest: Digest, question: FitQuestion
    ) -> None:
        """Learn whether the host of ``agent``, which serves the deployment, would load this state
        beside what it serves."""
        known = self.of(agent.host)
        assert self._nursery is not None, "asked before the tree was built"
        known.asking = True
        self._nursery.start_soon(
            self._beside,
            agent,
            known,
            deployment,
            digest,
            question,
            name=f"beside on {agent.label}",
        )

    async def _beside(
        self,
        agent: AgentConnection,
        known: KnownHost,
        deployment: str,
        digest: Digest,
        question: FitQuestion,
    ) -> None:
        asked_s = trio.current_time()
        report = await self._report(agent, known, question)
        is_so = None if report is None else report.beside
        known.beside[deployment] = BesideAnswer(digest, is_so, asked_s)

    # -------------------------------------------------------------- prefetch

    def prefetch(
        self, agent: AgentConnection, digest: Digest, models: tuple[DesiredModel, ...]
    ) -> None:
        """Let the host of ``agent`` fetch these files and serve nothing."""
        known = self.of(agent.host)
        if digest in known.fetching:
            return
        assert self._nursery is not None, "asked before the tree was built"
        known.fetch_failed.pop(digest, None)
        known.fetching[digest] = None
        known.fetches[digest] = trio.CancelScope()
        self._nursery.start_soon(
            self._prefetch, agent, known, digest, models, name=f"prefetch on {agent.label}"
        )

    def end_fetches(self, *, but: Container[Digest]) -> None:
        """End those of other states: something else is desired by now. What is here of a file
        stays."""
        for known in self._hosts.values():
            for digest, scope in known.fetches.items():
                if digest not in but:
                    scope.cancel(reason="something else is desired")

    async def _prefetch(
        self,
        agent: AgentConnection,
        known: KnownHost,
        digest: Digest,
        models: tuple[DesiredModel, ...],
    ) -> None:
        def progressed(progress: CacheProgress) -> None:
            known.fetching[digest] = progress
            self._learned(agent.host)

        try:
            with known.fetches[digest] as scope:
                await self._pulled(agent, models, progressed)
            if scope.cancelled_caught:
                log.info("prefetch ended: something else is desired", agent=agent.label)
            else:
                known.on_disk.add(digest)
        except AgentDisconnectedError as error:
            log.info("prefetch broken off", agent=agent.label, reason=str(error))
        except (QuestionRefusedError, LinkError) as error:
            log.warning("prefetch failed", agent=agent.label, reason=str(error))
            known.fetch_failed[digest] = str(error)
        finally:
            del known.fetching[digest], known.fetches[digest]
            self._learned(agent.host)

    async def _pulled(
        self,
        agent: AgentConnection,
        models: tuple[DesiredModel, ...],
        on_progress: Callable[[CacheProgress], None],
    ) -> None:
        """Return once the files are there; QuestionRefusedError, LinkError. An agent that leaves,
        starts or works on too much has failed of nothing."""
        while True:
            try:
                async with self._fetches:
                    await agent.questions.command_cache(Pull(models=models), on_progress)
                return
            except QuestionRefusedError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                log.info("prefetch put off", agent=agent.label, reason=str(error))
            await trio.sleep(BUSY_AGAIN_S)


def _of(known: Mapping[Digest, T], digests: Container[Digest]) -> dict[Digest, T]:
    return {digest: each for digest, each in known.items() if digest in digests}
