"""What stays in the store and what goes, as a state machine with its promises in words."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.processes.model_store.retention import NoRoom, Retention, Room

KEYS = st.sampled_from("abcdef")
SIZES = st.integers(0, 60)
BUDGET = 100


class RetentionMachine(RuleBasedStateMachine):
    """A store whose disk this machine plays: what is evicted is removed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.retention = Retention(BUDGET)
        self.disk: dict[str, int] = {}
        self.arriving: dict[str, int] = {}
        self.readers: dict[str, int] = {}
        self.used_s: dict[str, float] = {}
        self.now_s = 0.0

    def kept(self, key: str) -> bool:
        return (
            key in self.arriving
            or self.readers.get(key, 0) > 0
            or key in self.retention.pinned
            or key in self.retention.desired
        )

    def remove(self, evicted: tuple[str, ...]) -> None:
        for key in evicted:
            assert not self.kept(key), f"{key} is desired, pinned, in use or arriving, and went"
            del self.disk[key]
        stays = [self.used_s[k] for k in self.disk if not self.kept(k) and k not in self.arriving]
        for key in evicted:
            assert all(self.used_s[key] <= other for other in stays), "a newer one went first"

    def tick(self) -> float:
        self.now_s += 1
        return self.now_s

    @rule(key=KEYS, size=SIZES, lacks=st.sampled_from([0, 0, 0, 10, 60, 1000]))
    def claim(self, key: str, size: int, lacks: int) -> None:
        on_disk = {k: v for k, v in self.disk.items() if k != key and k not in self.arriving}
        kept_bytes = sum(v for k, v in on_disk.items() if self.kept(k))
        kept_bytes += sum(v for k, v in self.arriving.items() if k != key)
        free_before = BUDGET - self.retention.used_bytes
        own = self.arriving.get(key, self.disk.get(key, 0))
        loose_bytes = sum(v for k, v in on_disk.items() if not self.kept(k))
        match self.retention.claim(key, size, disk_lacks_bytes=lacks):
            case NoRoom(asked, budget, kept, 0):
                assert (asked, budget, kept) == (size, BUDGET, kept_bytes)
                assert kept_bytes + size > BUDGET, "there was room, or could have been made"
            case NoRoom(asked, budget, kept, still_lacks):
                assert (asked, budget, kept) == (size, BUDGET, kept_bytes)
                assert still_lacks == lacks - loose_bytes, "the disk had room, or would have had it"
            case Room(evicted):
                assert kept_bytes + size <= BUDGET
                assert lacks <= loose_bytes, "they would go in vain"
                sizes = [self.disk[k] for k in evicted]
                needed = max(size - own - free_before, lacks)
                assert sum(sizes[:-1]) < needed or not evicted, "more went than was needed"
                self.arriving[key] = size
                self.remove(evicted)

    @rule(key=KEYS)
    def arrive(self, key: str) -> None:
        if key in self.arriving:
            self.disk[key] = self.arriving.pop(key)
            self.used_s[key] = self.tick()
            self.retention.hold(key, self.disk[key])

    @rule(key=KEYS, part=st.integers(0, 60))
    def break_off(self, key: str, part: int) -> None:
        if key in self.arriving:
            left = min(self.arriving.pop(key), part)
            self.disk.pop(key, None)
            if left:
                self.disk[key] = left
                self.used_s[key] = self.tick()
                self.retention.hold(key, left)
            else:
                self.retention.forget(key)

    @rule(key=KEYS)
    def begin_to_read(self, key: str) -> None:
        self.readers[key] = self.readers.get(key, 0) + 1
        self.retention.use(key)

    @rule(key=KEYS)
    def end_reading(self, key: str) -> None:
        if self.readers.get(key):
            self.readers[key] -= 1
            self.retention.release(key)
            self.tick()
            if key in self.disk and key not in self.arriving:
                self.used_s[key] = self.now_s

    @rule(keys=st.sets(KEYS, max_size=3))
    def desire(self, keys: set[str]) -> None:
        self.retention.desire(keys)

    @rule(key=KEYS)
    def pin(self, key: str) -> None:
        self.retention.pinned ^= {key}

    @rule(key=KEYS, size=st.integers(61, 150))
    def find_at_the_start(self, key: str, size: int) -> None:
        """A larger budget was in force when it arrived."""
        if key not in self.disk and key not in self.arriving:
            self.disk[key] = size
            self.used_s[key] = self.tick()
            self.retention.hold(key, size)

    @rule()
    def trim(self) -> None:
        self.remove(self.retention.trim())
        if self.retention.used_bytes > BUDGET:
            loose = [key for key in self.disk if not self.kept(key)]
            assert not loose, "what may go goes until the budget is kept"

    @invariant()
    def every_byte_is_counted_once(self) -> None:
        on_disk = sum(size for key, size in self.disk.items() if key not in self.arriving)
        assert self.retention.used_bytes == on_disk + sum(self.arriving.values())


RetentionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
test_retention = RetentionMachine.TestCase


def test_the_refusal_says_the_numbers() -> None:
    retention = Retention(100)
    retention.hold("a", 70)
    retention.desire(["a"])
    problem = retention.claim("b", 50)
    assert str(problem) == (
        "the model store may take 100 bytes: 70 of them are desired, pinned or in use, and the "
        "file has 50"
    )


def test_nothing_goes_for_a_file_that_the_disk_never_holds() -> None:
    retention = Retention(1000)
    retention.hold("a", 70)
    problem = retention.claim("b", 500, disk_lacks_bytes=400)
    assert str(problem) == (
        "the file has 500 bytes, and the disk of the model store would lack 330 of them, whatever "
        "went"
    )
    assert retention.holds("a")
    assert not retention.is_arriving("b")
    assert retention.claim("b", 100, disk_lacks_bytes=70) == Room(("a",))
