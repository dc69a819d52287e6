"""Keeps a picture of an upstream server, and of whose requests its slots serve.

    monitor = UpstreamMonitor(client, MonitorSettings(slots=4))
    await nursery.start(monitor.run)
    with monitor.request() as ours:
        ...
        ours.is_whole = True

Our own count of what was sent is the truth about our requests; see ``slot_account``.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from paddler_trio.agent.servers.upstream_probe import (
    Found,
    ProbeFailedError,
    SlotAccount,
    UpstreamProber,
)
from paddler_trio.agent.servers.upstream_state import (
    MAX_SLOTS,
    Reachability,
    ServerFacts,
    UpstreamState,
)
from paddler_trio.net.client.response_body import FailureKind, UpstreamError
from paddler_trio.net.client.upstream_client import UpstreamClient

FAILURES_TO_EJECT: Final = 3
FIRST_PROBE_S: Final = 1.0
LONGEST_PROBE_S: Final = 30.0


@attrs.define(eq=False)
class Ejection:
    """Failures in a row eject, one good probe readmits.

    Requests that fail between two probes are one failure: a client whose request no server answers
    may send it as often as it likes, and a server that is well stays everybody's.

    Requests that succeed end a row of failures, and do not readmit: those that are under way when a
    server is ejected may end well and say nothing about the next.
    """

    reason: str | None = attrs.field(default=None, init=False)
    """Why the server is ejected; None while it is not."""
    next_probe_s: float | None = attrs.field(default=None, init=False)
    """The time at which it is probed again."""
    _num_failures: int = attrs.field(default=0, init=False)
    _num_bad_probes: int = attrs.field(default=0, init=False)
    _has_request_failed: bool = attrs.field(default=False, init=False)
    """A request has failed since the last probe."""

    @property
    def is_ejected(self) -> bool:
        """Return whether it gets no requests."""
        return self.reason is not None

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the last thing that happened was a failure."""
        return self._num_failures > 0

    def request_failed(self, reason: str, now_s: float, random: float) -> None:
        """Note that a request got no answer, or one that says that the server is broken."""
        if self._has_request_failed:
            return
        self._has_request_failed = True
        self._num_failures += 1
        if self._num_failures >= FAILURES_TO_EJECT and self.reason is None:
            self._eject(reason, now_s, random)

    def request_succeeded(self) -> None:
        """Note that a request was answered."""
        if self.reason is None:
            self._num_failures = 0

    def probe_failed(self, reason: str, now_s: float, random: float, *, is_final: bool) -> None:
        """Note that a probe got no good answer; a final one ejects alone: nobody listens there.

        Args:
          random: in [0, 1), a new one each time: servers that failed together are not probed
            together.
        """
        self._has_request_failed = False
        self._num_failures += 1
        if is_final or self.reason is not None or self._num_failures >= FAILURES_TO_EJECT:
            self._eject(reason, now_s, random)

    def probe_succeeded(self) -> None:
        """Note that the server is well."""
        self.reason = self.next_probe_s = None
        self._num_failures = self._num_bad_probes = 0
        self._has_request_failed = False

    def _eject(self, reason: str, now_s: float, random: float) -> None:
        delay_s = min(FIRST_PROBE_S * 2.0 ** min(self._num_bad_probes, 16), LONGEST_PROBE_S)
        self._num_bad_probes += 1
        self.reason = reason
        self.next_probe_s = now_s + delay_s * (0.5 + random / 2)


SOON_S: Final = 0.1
NO_SLOTS_REASON: Final = (
    "give --slots N: the server does not tell how many requests it takes at once"
)
NOT_ASKED_YET: Final = "it was not asked yet"
WELL: Final = frozenset({Reachability.READY, Reachability.SLEEPING})


@attrs.frozen(kw_only=True)
class MonitorSettings:
    """Args:
    slots: requests at once; None if the server is to say it.
    busy_s: seconds between probes while requests are under way, and while it is not ready.
    idle_s: seconds between probes otherwise.
    lets_sleep: do not keep a llama-server awake that runs with ``--sleep-idle-seconds``. Others
      that use it are noticed only while requests of ours are under way, or by its ``/metrics``.
      It is learnt when the server is seen asleep.
    """

    slots: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(
            attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(MAX_SLOTS))
        ),
    )
    busy_s: float = 1.0
    idle_s: float = 10.0
    lets_sleep: bool = False


@attrs.define
class OurRequest:
    """A request under way; ``is_whole`` once its answer came to its end."""

    is_whole: bool = False


@attrs.define(eq=False)
class UpstreamMonitor:
    """One for each server; :meth:`run` is to run.

    Args:
      has_key: the client sends one; for errors only.
      renew: has the client use what is known of the server anew; called before each probe.
      chance: numbers in [0, 1), for pauses that differ from those of other machines.
    """

    _client: UpstreamClient
    _settings: MonitorSettings
    _has_key: bool = False
    _chance: Callable[[], float] = random.random
    _renew: Callable[[], Awaitable[None]] | None = None
    account: SlotAccount = attrs.field(factory=SlotAccount, init=False)
    state: UpstreamState = attrs.field(init=False)
    """Unreachable until the first probe has ended."""
    _prober: UpstreamProber = attrs.field(init=False)
    _ejection: Ejection = attrs.field(factory=Ejection, init=False)
    _found: Found = attrs.field(init=False)
    _first_model: tuple[str, ...] | None = attrs.field(default=None, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _nudge: trio.Event = attrs.field(factory=trio.Event, init=False)
    _sleeps_until_s: float = attrs.field(default=0.0, init=False)
    """The time at which the next probe was due at the last look."""
    _probed_s: float = attrs.field(default=0.0, init=False)
    _counted_s: float = attrs.field(default=0.0, init=False)
    _settling_s: float = attrs.field(default=SOON_S, init=False)
    _is_suspect: bool = attrs.field(default=False, init=False)
    _num_failed: int = attrs.field(default=0, init=False)
    _num_looked_after: int = attrs.field(default=0, init=False)
    """The number of failed requests after which the server was looked at."""
    _was_well: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._found = Found(Reachability.UNREACHABLE, NOT_ASKED_YET)
        self._prober = UpstreamProber(
            self._client, self.account, self._has_key, self._settings.lets_sleep
        )
        self.state = self._picture()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Probe until cancelled. Started when the first probe has ended, whatever it found."""
        await self._probe()
        task_status.started()
        while True:
            now_s = trio.current_time()
            if (due_s := self._due_s()) > now_s:
                self._sleeps_until_s = due_s
                with trio.move_on_at(due_s):
                    await self._nudge.wait()
                    self._nudge = trio.Event()
            elif self._is_settling and due_s < self._full_due_s():
                await self._count_busy()
            else:
                await self._probe()

    async def wait_changed(self, seen: UpstreamState) -> UpstreamState:
        """Wait until the state differs from ``seen``."""
        while self.state == seen:
            await self._changed.wait()
        return self.state

    @contextmanager
    def request(self) -> Iterator[OurRequest]:
        """Count a request from before it is sent until its connection was closed or given back.

        One that is left before ``is_whole`` counts as cancelled: where the server tells which
        slots are busy, its slot is ``still_generating`` until that is free.
        """
        ours = OurRequest()
        self.account.started()
        self._wake()
        try:
            yield ours
        finally:
            was_cancelled = not ours.is_whole and self._prober.sees_slots
            self.account.ended(trio.current_time(), was_cancelled=was_cancelled)
            if was_cancelled:
                self._settling_s = SOON_S
                self._publish()
                self._wake()

    def request_failed(self, error: UpstreamError) -> None:
        """Note that a request had no answer, or a broken one. What the caller got wrong does not
        count.

        The server is looked at soon, and that is told even if it is as well as before: a balancer
        sends it nothing until then.
        """
        if error.kind is FailureKind.REQUEST:
            return
        self._ejection.request_failed(str(error), trio.current_time(), self._chance())
        self._is_suspect = True
        self._num_failed += 1
        self._publish()
        self._wake()

    def request_succeeded(self) -> None:
        """Note that a request was answered by the server itself."""
        self._ejection.request_succeeded()

    # ---------------------------------------------------------------------------------- inside

    @property
    def _is_settling(self) -> bool:
        return self.account.still_generating > 0 and not self._ejection.is_ejected

    def _due_s(self) -> float:
        due_s = self._full_due_s()
        return min(due_s, self._counted_s + self._settling_s) if self._is_settling else due_s

    def _full_due_s(self) -> float:
        if self._ejection.next_probe_s is not None:
            return self._ejection.next_probe_s
        if self._is_suspect:
            return self._probed_s + SOON_S
        is_calm = self._found.reachability in WELL and not (
            self.account.in_flight or self.account.busy_elsewhere or self._ejection.is_in_doubt
        )
        is_refused = self._found.reachability is Reachability.UNAUTHORISED
        settings = self._settings
        return self._probed_s + (settings.idle_s if is_calm or is_refused else settings.busy_s)

    async def _probe(self) -> None:
        self.account.expire(trio.current_time())
        self._is_suspect = False
        num_failed = self._num_failed
        if self._renew is not None:
            await self._renew()
        try:
            self._found = await self._prober.probe()
        except ProbeFailedError as error:
            self._probe_failed(error)
        else:
            self._ejection.probe_succeeded()
            if self._found.reachability in WELL:
                self._was_well = True
                self._first_model = self._first_model or self._model()
            else:
                self._prober.forget()
        self._probed_s = self._counted_s = trio.current_time()
        self._num_looked_after = num_failed
        self._publish()

    async def _count_busy(self) -> None:
        self.account.expire(trio.current_time())
        self._settling_s = min(2 * self._settling_s, self._settings.busy_s)
        try:
            await self._prober.count_busy()
        except ProbeFailedError as error:
            self._probe_failed(error)
        self._counted_s = trio.current_time()
        self._publish()

    def _probe_failed(self, error: ProbeFailedError) -> None:
        self._ejection.probe_failed(
            str(error),
            trio.current_time(),
            self._chance(),
            is_final=error.is_final or not self._was_well,
        )
        if self._ejection.is_ejected:
            kind = Reachability.UNREACHABLE if error.is_final else Reachability.FAILING
            self._found = Found(kind, str(error))
            self._prober.forget()

    def _wake(self) -> None:
        """Look again at when the next probe is due, which may be earlier now."""
        if self._due_s() < self._sleeps_until_s:
            self._nudge.set()

    def _publish(self) -> None:
        state = self._picture()
        if state != self.state:
            self.state = state
            self._changed.set()
            self._changed = trio.Event()

    def _model(self) -> tuple[str, ...] | None:
        """Return what tells one model from another; None of several, or where nothing is said."""
        facts, models = self._prober.facts, self._prober.models
        if (facts is not None and facts.is_router) or len(models) > 1:
            return None
        names = (facts.model_path if facts is not None else "", *(model.name for model in models))
        return names if any(names) else None

    def _picture(self) -> UpstreamState:
        prober, account, found = self._prober, self.account, self._found
        facts = prober.facts or ServerFacts()
        if self._ejection.reason is not None and found.reachability in WELL:
            found = Found(Reachability.FAILING, self._ejection.reason)
        slots_total = self._settings.slots or facts.total_slots
        reason = found.reason
        if found.reachability in WELL and slots_total is None:
            reason = NO_SLOTS_REASON
        model = self._model()
        contexts = [each.context_tokens for each in prober.models if each.context_tokens]
        return UpstreamState(
            reachability=found.reachability,
            reason=reason,
            slots_total=slots_total,
            slots_busy_elsewhere=account.busy_elsewhere,
            still_generating=account.still_generating,
            models=prober.models,
            context_tokens=facts.context_tokens or min(contexts, default=None),
            has_slots_endpoint=prober.has_slots_endpoint,
            build=facts.build,
            model_path=facts.model_path,
            modalities=facts.modalities,
            is_router=facts.is_router,
            changed_model=None not in {model, self._first_model} and model != self._first_model,
            next_probe_s=self._ejection.next_probe_s,
            num_failed=self._num_looked_after,
        )
