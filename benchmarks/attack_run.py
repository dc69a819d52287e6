"""Try attacks on a fleet, one after the other: alone for what they cost, then beside neighbours."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio
from attack_call import Answered, Call, Port, perform, request
from attack_fleet import AttackedFleet, FleetError
from attack_judge import MIB, Beside, Cost, Result, Rules, judged, only_timing
from attack_kinds import attack_at
from attack_neighbour import Neighbour
from attack_pictures import PATHS, data_uri, honest_picture, showing
from attack_processes import forget_peaks, peaks, proportional_bytes, sample
from attack_proxied import forwarded
from attack_value import SURFACES, Attack, ask, prose

from paddler_trio.system.heap_trim import TRIM_EVERY_S

WINDOW_S = 0.25
GIVE_UP_S = 8.0
"""A fleet that is busy for longer after an attack is ended, and another one started."""
KEPT_S = TRIM_EVERY_S + 5.0
"""Daemons give back what a peak left in their heaps once in ``TRIM_EVERY_S``: until then it is kept
for the next one, and no sooner is it kept for good."""
WARM_ANSWERS = 2
TURN_S = 25.0
RECOVERY_S = 25.0
CONNECTIONS_AT_ONCE = 200
TALKS: Mapping[Port, str] = {"inference": "fleet", "proxied": "server"}
"""Of neighbours, by the port on which they stream."""


@attrs.define(eq=False)
class Run:
    """See :meth:`attempt`. ``say`` is told what happens. Leave it as a context manager."""

    rules: Rules
    agents: int
    seed: int
    memory_bytes: int
    say: Callable[[str], None]
    results: list[Result] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)
    """Violations that belong to no single attack."""
    fleets: int = 0
    _folder: Path = attrs.field(factory=Path)
    _fleet: AttackedFleet | None = None
    _neighbours: dict[Port, Neighbour] = attrs.field(factory=dict)
    _base: dict[str, int] = attrs.field(factory=dict)
    """Memory of the newest fleet by process, before it was attacked."""
    _is_broken: bool = False

    @classmethod
    @contextmanager
    def open(
        cls, rules: Rules, agents: int, seed: int, memory_bytes: int, say: Callable[[str], None]
    ) -> Iterator[Run]:
        """However it is left, all processes are ended."""
        with tempfile.TemporaryDirectory(prefix="paddler-attack-") as folder:
            run = cls(rules, agents, seed, memory_bytes, say)
            run._folder = Path(folder)
            try:
                yield run
            finally:
                run._end_fleet()

    def attempt(self, kind: str, number: int) -> Result:
        """Try one attack; what is only a matter of time has to be seen twice to count."""
        result = self._attempt(kind, number)
        if only_timing(result):
            self.say(f"    again, because of {'; '.join(result.violations)}")
            second = self._attempt(kind, number)
            if len(second.violations) <= len(result.violations):
                result = second
        self.results.append(result)
        return result

    def finish(self) -> None:
        """Judge what the last fleet kept."""
        self._judge_kept()

    # -------------------------------------------------------------- private

    def _attempt(self, kind: str, number: int) -> Result:
        attack = attack_at(kind, number, self.seed)
        fleet = self._ready_fleet()
        members = fleet.members()
        at_bytes = fleet.log_bytes()
        killed = len(fleet.watchdog.killed)
        honest = self._cost(fleet, attack.honest(), attack.deadline_s)
        self._restore(fleet, attack)
        alone = self._cost(fleet, attack.calls(), attack.deadline_s)
        self._restore(fleet, attack)
        beside = None
        # a state that was taken may well be one in which nobody is answered
        is_fair = alone.was_refused if attack.changes_state else fleet.members() == members
        if alone.quiet_s is not None and is_fair and not self._is_broken:
            beside = self._beside(fleet, attack)
            self._restore(fleet, attack)
        now = fleet.members()
        lost = [name for name, pid in members.items() if now.get(name) != pid]
        if attack.changes_state:  # an engine that is swapped is not lost
            lost = [name for name in lost if not name.startswith("engine")]
        lost += fleet.watchdog.killed[killed:]
        if self._is_broken:
            lost.append("the fleet does not serve again")
        result = Result(
            kind=kind,
            number=number,
            name=attack.name,
            honest=honest,
            alone=alone,
            beside=beside,
            lost=lost,
            disconnected=fleet.lost_links(since_bytes=at_bytes),
        )
        if lost or alone.quiet_s is None or result.disconnected:
            self._renew(must_end=alone.quiet_s is None or self._is_broken)
        return judged(result, self.rules)

    def _cost(self, fleet: AttackedFleet, calls: Sequence[Call], deadline_s: float) -> Cost:
        """Play the calls alone, and wait until the fleet rests."""
        pids = fleet.pids()
        forget_peaks(pids)
        before = sample(pids)
        fleet.watchdog.peak_bytes = before.total_bytes
        began_s = time.monotonic()
        answered = trio.run(play, calls, fleet.addresses, deadline_s)
        ended_s = time.monotonic()
        quiet_s = self._until_quiet(pids)
        after = sample(pids)
        highest = peaks(pids)
        grown = sum(max(0, size - before.rss_bytes.get(pid, 0)) for pid, size in highest.items())
        problems = [
            problem
            for call, answer in zip(calls, answered, strict=True)
            if (problem := answer.problem(call)) is not None
        ]
        return Cost(
            cpu_s=max(0.0, after.cpu_s - before.cpu_s),
            peak_bytes=max(grown, fleet.watchdog.peak_bytes - before.total_bytes),
            kept_bytes=after.total_bytes - before.total_bytes,
            quiet_s=quiet_s,
            problems=problems,
            took_s=ended_s - began_s,
            was_refused=all(400 <= s < 500 for answer in answered for s in answer.statuses),
        )

    def _until_quiet(self, pids: Sequence[int]) -> float | None:
        """Seconds until a window in which next to nothing was computed; None if there is none."""
        began_s = time.monotonic()
        while (so_far_s := time.monotonic() - began_s) < GIVE_UP_S:
            before_s, from_s = sample(pids).cpu_s, time.monotonic()
            time.sleep(WINDOW_S)
            busy = (sample(pids).cpu_s - before_s) / (time.monotonic() - from_s)
            if busy <= self.rules.quiet_cores:
                return so_far_s
        return None

    def _beside(self, fleet: AttackedFleet, attack: Attack) -> Beside:
        """Play the attack while neighbours talk to the same fleet."""
        neighbour = self._neighbours[attack.neighbour]
        calls = attack.calls()
        neighbour.go()
        try:
            warm_s = time.monotonic()
            self._until(lambda: len(neighbour.since(warm_s)) >= WARM_ANSWERS * self.agents)
            began_s = time.monotonic()
            trio.run(play, calls, fleet.addresses, attack.deadline_s)
            ended_s = time.monotonic()
            is_answered = self._until(
                lambda: sum(h.began_s > ended_s for h in neighbour.since(ended_s)) >= self.agents
            )
        finally:
            neighbour.rest()
        heard = neighbour.since(began_s)
        problems = [h.problem for h in heard if h.problem is not None]
        if not is_answered:
            problems.append(f"a neighbour has had no answer {TURN_S:g} s after the attack")
        return Beside(
            gap_s=max((h.gap_s for h in heard), default=0.0),
            first_s=max((h.first_s for h in heard), default=0.0),
            machine_s=neighbour.latest_s(began_s),
            answers=len(heard),
            problems=problems,
        )

    def _until(self, is_so: Callable[[], bool]) -> bool:
        give_up_s = time.monotonic() + TURN_S
        while not is_so():
            if time.monotonic() > give_up_s:
                return False
            time.sleep(0.02)
        return True

    # ------------------------------------------------------ fleets come and go

    def _ready_fleet(self) -> AttackedFleet:
        if self._fleet is None:
            folder = self._folder / str(self.fleets)
            folder.mkdir()
            self.fleets += 1
            fleet = AttackedFleet.start(folder, agents=self.agents, memory_bytes=self.memory_bytes)
            self._fleet = fleet
            for port, talk in TALKS.items():
                address = fleet.addresses[port]
                self._neighbours[port] = Neighbour.start(address, self.agents, talk)
            trio.run(play, warm_up(), fleet.addresses, 30.0)
            self._until_quiet(fleet.pids())
            self._base = proportional_bytes(fleet.pids())
        return self._fleet

    def _restore(self, fleet: AttackedFleet, attack: Attack) -> None:
        """Put the desired state back; a fleet that does not come back to it is broken."""
        if attack.changes_state and not self._is_broken:
            try:
                fleet.restore()
                fleet.wait_serving(RECOVERY_S)
            except FleetError as error:
                self.say(f"    {error}"[:200])
                self._is_broken = True

    def _renew(self, *, must_end: bool) -> None:
        """Go on with this fleet if it recovers, else with another."""
        assert self._fleet is not None
        if not must_end:
            try:
                self._fleet.wait_serving(RECOVERY_S)
                return
            except FleetError as error:
                self.say(f"    another fleet: {error}"[:200])
        self._end_fleet()

    def _end_fleet(self) -> None:
        while self._neighbours:
            self._neighbours.popitem()[1].end()
        if self._fleet is not None:
            self._fleet.end()
            self._fleet = None
        self._is_broken = False

    def _judge_kept(self) -> None:
        if self._fleet is None:
            return
        base, pids = self._base, self._fleet.pids()
        most_bytes = round(sum(base.values()) * (1 + self.rules.kept))
        give_up_s = time.monotonic() + KEPT_S
        while sum((now := proportional_bytes(pids)).values()) > most_bytes:
            if time.monotonic() > give_up_s:
                self.problems.append(
                    f"kept: {sum(now.values()) // MIB} MiB resident at the end, "
                    f"{sum(base.values()) // MIB} MiB at the beginning: "
                    f"{by_kind(now)}; before {by_kind(base)}"
                )
                return
            time.sleep(WINDOW_S)


def by_kind(sizes: Mapping[str, int]) -> str:
    """The memory of processes, in MiB, those of a kind together."""
    kinds: dict[str, list[int]] = {}
    for process, size in sizes.items():
        kinds.setdefault(process.partition(" ")[0], []).append(size // MIB)
    return ", ".join(
        f"{kind} {'+'.join(map(str, sorted(each)))}" for kind, each in sorted(kinds.items())
    )


async def play(
    calls: Sequence[Call], addresses: dict[str, str], deadline_s: float
) -> list[Answered]:
    """All calls at once; what came of each, in their order. A crowd is all there at one time."""
    answers = [Answered() for _ in calls]
    is_crowd = any(call.source for call in calls)
    room = trio.CapacityLimiter(len(calls) if is_crowd else CONNECTIONS_AT_ONCE)

    async def one(place: int, call: Call) -> None:
        async with room:
            answers[place] = await perform(call, addresses[call.port], deadline_s=deadline_s)

    async with trio.open_nursery() as nursery:
        for place, call in enumerate(calls):
            nursery.start_soon(one, place, call)
    return answers


def warm_up() -> list[Call]:
    """Honest requests to every surface, several of each at a time, so that a fleet's memory is that
    of one in use, with as many idle preparation workers as it keeps."""
    texts = [request(path, ask(path, prose(20_000))) for path in SURFACES]
    texts += [request(path, ask(path)) for path in SURFACES]
    uri = data_uri(honest_picture(200_000), "image/png")
    texts += [request(path, showing(path, [uri])) for path in PATHS]
    calls = [Call(steps=[text]) for text in texts * 4]
    return [*calls, *(forwarded(size) for size in (200, 2_000_000) * 8)]
