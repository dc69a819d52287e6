"""The engine's sequences: which request owns which stream of the KV cache, and who waits for one.

``plan`` reads, ``commit`` writes, and commit happens only after llama.cpp said yes, so a failed
pass leaves a state that can simply be planned again.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import attrs

from paddler_trio.scheduler.batching.batch_plan import Share, plan_batch
from paddler_trio.scheduler.batching.sequences import Sequence


@attrs.define
class Streams:
    """Running sequences and the requests that wait for a free stream.

    Args:
      slots: number of parallel sequences, >= 1.
      token_budget: tokens per pass, >= 1.
    """

    slots: int
    token_budget: int
    _free: list[int] = attrs.field(init=False)
    """A heap: the lowest stream is given first, so that those in use lie together."""
    _waiting: deque[tuple[int, int, int, int]] = attrs.field(factory=deque, init=False)
    _running: dict[int, Sequence] = attrs.field(factory=dict, init=False)
    _turn: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.slots))

    def enqueue(
        self, key: int, *, num_prompt_tokens: int, max_tokens: int, num_drawn: int = 0
    ) -> None:
        """A request wants a stream; it gets the next free one, first come first served."""
        assert key not in self._running, f"request {key} runs already"
        self._waiting.append((key, num_prompt_tokens, max_tokens, num_drawn))

    def start_next(self) -> Sequence | None:
        """Give the longest waiting request a free stream, if there are both."""
        if not self._waiting or not self._free:
            return None
        key, num_prompt_tokens, max_tokens, num_drawn = self._waiting.popleft()
        sequence = Sequence(
            key=key,
            stream=heappop(self._free),
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            num_drawn=num_drawn,
        )
        self._running[key] = sequence
        return sequence

    def plan(self) -> tuple[Share, ...]:
        """The next pass; changes nothing that matters if it is never run."""
        self._turn += 1
        return plan_batch(self._running.values(), token_budget=self.token_budget, turn=self._turn)

    def commit(self, shares: tuple[Share, ...]) -> None:
        """llama.cpp computed these shares: their tokens are in the cache."""
        for share in shares:
            assert share.sequence.num_computed == share.start, "a share was committed twice"
            share.sequence.num_computed += share.count

    def end(self, key: int) -> Sequence | None:
        """Forget a request; returns its sequence if it had one, whose stream is free again."""
        sequence = self._running.pop(key, None)
        if sequence is None:
            self._waiting = deque(entry for entry in self._waiting if entry[0] != key)
            return None
        heappush(self._free, sequence.stream)
        return sequence

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running.values())
