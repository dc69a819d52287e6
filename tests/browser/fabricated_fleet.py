"""A feed of a fleet that does not exist: as many agents, slots and requests as a test wants to see.

Shapes are those of `GET /api/v2/events`. Everything follows from the seed and the number of ticks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import attrs

from paddler_trio.scheduler.truth.agent_truth import AgentFacts, truth_of_agent
from paddler_trio.scheduler.truth.deployment_truth import (
    AgentCounts,
    DeploymentFacts,
    truth_of_deployment,
)

GIB = 1024**3
CLIENTS = ("chat-ui", "support-bot", "nightly-eval", "code-review", "search", "mobile")
BEGAN = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
DIGESTS = {"default": "5f0c1a9be27d4410", "coder": "c2d94e0f7713aa52"}
MODELS = {
    "default": "/models/qwen3-8b-instruct-q4_k_m.gguf",
    "coder": "/models/qwen3-coder-30b-a3b-q4_k_m.gguf",
}


@attrs.define
class Running:
    """A request in a slot, or in the queue (``agent`` is None)."""

    key: int
    client: str
    deployment: str
    arrived_ms: int
    prompt_tokens: int
    ends_after: int
    agent: int | None = None
    lane: int = 0
    phase: str = "b"
    since_ms: int = 0
    tokens: int = 0
    first_ms: int | None = None
    position: int | None = None


@attrs.define
class FabricatedFleet:
    """``load``: the share of slots that are busy; above 1 requests wait too.

    ``churn``: the share of busy slots whose request does something in a tick.
    """

    agents: int = 6
    slots: int = 4
    load: float = 0.8
    churn: float = 0.25
    seed: int = 1
    tick_ms: int = 250
    epoch: str = "fabricated"
    now_ms: int = 5_000_000
    seq: int = 0
    next_key: int = 100
    changes: int = 0
    """Of requests, in all diffs."""
    with_trouble: bool = False
    running: dict[int, Running] = attrs.field(factory=dict)
    ended: dict[int, int] = attrs.field(factory=dict)
    _random: random.Random = attrs.field(init=False)
    _free: dict[int, set[int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._free = {
            key: set(range(self.slots)) for key in range(1, self.agents + 1) if self._serves(key)
        }
        for _ in range(round(self.load * self.agents * self.slots)):
            self._arrive(spread_ms=20_000)
        self._grant(set())

    def full(self) -> Mapping[str, object]:
        """The event that begins a stream."""
        return self._event(full=True, requests=set(self.running), agents=set(self._keys()))

    def tick(self) -> Mapping[str, object]:
        """The next diff."""
        self.now_ms += self.tick_ms
        self.seq += 1
        requests: set[int] = set()
        agents: set[int] = set()
        gone = [key for key, at in self.ended.items() if at < self.now_ms - 2000]
        for key in gone:
            del self.ended[key]
        for each in list(self.running.values()):
            if each.agent is None or self._random.random() > self.churn:
                continue
            requests.add(each.key)
            agents.add(each.agent)
            if each.phase == "p":
                each.phase, each.since_ms, each.first_ms = "d", self.now_ms, self.now_ms
                each.tokens = 1
            elif each.tokens < each.ends_after:
                each.tokens += self._random.randint(4, 20)
            else:
                self._end(each)
        wanted = round(self.load * self.agents * self.slots)
        while len(self.running) < wanted:
            requests.add(self._arrive())
        self._grant(requests, agents)
        self.changes += len(requests)
        return self._event(full=False, requests=requests, agents=agents, gone=gone)

    def past(self) -> Mapping[str, object]:
        """Lists of what was before the stream: nothing."""
        time = BEGAN + timedelta(milliseconds=self.now_ms)
        moment = {"now_ms": self.now_ms, "time": time.isoformat()}
        return {**moment, "requests": [], "next": None, "events": []}

    def _keys(self) -> range:
        return range(1, self.agents + 1)

    def _serves(self, key: int) -> bool:
        return not (self.with_trouble and key in (4, 5))

    def _deployment(self, key: int) -> str:
        return "coder" if key % 3 == 0 else "default"

    def _arrive(self, spread_ms: int = 0) -> int:
        key, self.next_key = self.next_key, self.next_key + 1
        arrived_ms = self.now_ms - (self._random.randint(0, spread_ms) if spread_ms else 0)
        self.running[key] = Running(
            key=key,
            client=self._random.choice(CLIENTS),
            deployment="coder" if self._random.random() < 0.33 else "default",
            arrived_ms=arrived_ms,
            prompt_tokens=self._random.randint(80, 6000),
            ends_after=self._random.randint(20, 600),
            since_ms=arrived_ms,
        )
        return key

    def _end(self, each: Running) -> None:
        del self.running[each.key]
        self.ended[each.key] = self.now_ms
        if each.agent is not None:
            self._free[each.agent].add(each.lane)

    def _grant(self, requests: set[int], agents: set[int] | None = None) -> None:
        free: dict[str, list[int]] = {"default": [], "coder": []}
        for key, lanes in self._free.items():
            free[self._deployment(key)] += [key] * len(lanes)
        for keys in free.values():
            self._random.shuffle(keys)
        positions = {"default": 0, "coder": 0}
        for each in self.running.values():
            if each.agent is not None:
                continue
            if free[each.deployment]:
                each.agent = free[each.deployment].pop()
                each.lane = min(self._free[each.agent])
                self._free[each.agent].remove(each.lane)
                each.phase, each.since_ms, each.position = "p", self.now_ms, None
                requests.add(each.key)
                if agents is not None:
                    agents.add(each.agent)
            else:
                positions[each.deployment] += 1
                if each.position != positions[each.deployment]:
                    each.position = positions[each.deployment]
                    requests.add(each.key)

    def _event(
        self, *, full: bool, requests: set[int], agents: set[int], gone: list[int] | None = None
    ) -> Mapping[str, object]:
        shown = {key: self.running[key] for key in requests if key in self.running}
        time = BEGAN + timedelta(milliseconds=self.now_ms)
        on: dict[int, list[Running]] = {key: [] for key in agents}
        for each in self.running.values():
            if each.agent in on:
                on[each.agent].append(each)
        return {
            "epoch": self.epoch,
            "seq": self.seq,
            "full": full,
            "now_ms": self.now_ms,
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "set": {
                "balancer": {"status": self._balancer()},
                "deployments": self._deployments(),
                "agents": {str(key): self._agent(key, on[key]) for key in sorted(agents)},
                "requests": {str(key): self._request(each) for key, each in shown.items()},
                "rollouts": {},
                "problems": {},
                "gone": {},
                "logs": {"last": {"seq": 3, "warnings": 2, "errors": 0}},
            },
            "gone": {"requests": [str(key) for key in gone or []]},
        }

    def _balancer(self) -> Mapping[str, object]:
        busy = sum(each.agent is not None for each in self.running.values())
        return {
            "version": "0.1.0",
            "started": BEGAN.isoformat(),
            "draining": False,
            "addresses": {
                "inference": ["0.0.0.0:8061"],
                "management": ["0.0.0.0:8060"],
                "openai": ["0.0.0.0:8063"],
                "ollama": ["0.0.0.0:11434"],
                "panel": ["0.0.0.0:8062"],
            },
            "buffer": {"waiting": len(self.running) - busy, "limit": 200, "timeout_ms": 30_000},
            "slots": {"busy": busy, "total": len(self._free) * self.slots},
            "loop_lag_ms": 0.6,
            "capture": False,
            "revision": 12,
        }

    def _deployments(self) -> Mapping[str, object]:
        found = {}
        for name, target in DIGESTS.items():
            mine = [each for each in self.running.values() if each.deployment == name]
            waits = [self.now_ms - each.arrived_ms for each in mine if each.agent is None]
            serving = sum(self._deployment(key) == name for key in self._free)
            if serving == 0 and not mine:
                continue
            agents = sum(self._deployment(key) == name for key in self._keys())
            free = serving * self.slots - (len(mine) - len(waits))
            facts = DeploymentFacts(
                wanted=agents,
                agents=AgentCounts(
                    connected=agents,
                    answering=serving,
                    current=serving,
                    slots=serving * self.slots,
                    free=free,
                    failed=int(self.with_trouble),
                ),
                waiting=len(waits),
            )
            found[name] = {
                "state": truth_of_deployment(facts).view(),
                "meets": facts.meets,
                "offline": 0,
                "aliases": ["gpt-4o"] if name == "default" else [],
                "phase": "serving" if serving else "waiting",
                "waiting": len(waits),
                "oldest_wait_ms": max(waits, default=None),
                "running": len(mine) - len(waits),
                "slots": serving * self.slots,
                "serving": serving,
                "held": None,
                "target": target,
            }
        return found

    def _agent(self, key: int, mine: list[Running]) -> Mapping[str, object]:
        name = f"gpu-{key:02}"
        deployment = self._deployment(key)
        serves = self._serves(key)
        fails, fetches = (self.with_trouble and key == 4), (self.with_trouble and key == 5)
        used = sum(each.prompt_tokens + each.tokens for each in mine)
        phase = "failed" if fails else "downloading" if fetches else "serving"
        detail = "no space left on /models; tried again in 40 s" if fails else None
        facts = AgentFacts(
            label=name,
            phase=phase,
            detail=detail or "",
            gets_work=serves,
            serves_target=serves,
            is_drained=self.with_trouble and key == 2,
            slots=self.slots if serves else 0,
            busy=len(mine),
            issues=int(fails),
        )
        return {
            "key": key,
            "label": name,
            "id": f"id-{key}",
            "name": name,
            "host": f"id-{key}",
            "deployment": deployment,
            "labels": {"gpu": "yes", "rack": f"r{key % 4}"},
            "protocol": "paddler-4.1" if self.with_trouble and key == 6 else "paddler-trio.1",
            "is_accepting": serves,
            "is_drained": self.with_trouble and key == 2,
            "usable_slots": self.slots if serves else 0,
            "state": truth_of_agent(facts).view(),
            "revision": 12 if serves else None,
            "phase": phase,
            "wanted_state": DIGESTS[deployment],
            "served_state": DIGESTS[deployment] if serves else None,
            "progress": None,
            "detail": detail,
            "load_s": 6.4,
            "engine": {
                "prompt_tokens": 10_000 + used,
                "cached_tokens": 6_000,
                "drawn_tokens": 8_000,
                "cells_total": 32_768 * self.slots // 4,
                "cells_used": used,
                "cells_resident": 4_000,
                "running": len(mine),
                "waiting": 0,
                "preemptions": key % 3,
                "last_sequences": len(mine),
                "last_ms": 21.5,
            }
            if serves
            else None,
            "download": {
                "source": "huggingface.co",
                "phase": "downloading",
                "file_index": 2,
                "file_count": 3,
                "bytes_per_s": 48_000_000,
                "remaining_s": 143,
            }
            if fetches
            else None,
            "memory": {
                "context_size": 32_768,
                "n_gpu_layers": 99,
                "chosen": [],
                "devices": [
                    {
                        "device": "CUDA0",
                        "predicted": int(9.4 * GIB),
                        "actual": int(9.6 * GIB),
                        "weights": int(4.7 * GIB),
                        "kv": int(4.1 * GIB),
                        "compute": int(0.8 * GIB),
                        "free": int(5.9 * GIB),
                    },
                    {"device": "host", "predicted": int(1.2 * GIB), "actual": int(1.1 * GIB)},
                ],
            }
            if serves
            else None,
            "desired_slots_total": self.slots,
            "download_current": 7_600_000_000 if fetches else 0,
            "download_filename": "model-00002-of-00003.gguf" if fetches else None,
            "download_indeterminate": False,
            "download_total": 14_500_000_000 if fetches else 0,
            "issues": [{"CacheStorageIsFull": {"model_path": MODELS[deployment]}}] if fails else [],
            "model_path": MODELS[deployment] if serves else None,
            "slots_processing": len(mine),
            "slots_total": self.slots if serves else 0,
            "state_application_status": "AttemptedAndRetrying" if fails else "Applied",
            "uses_chat_template_override": key == 1,
            "joined_ms": self.now_ms - 3_600_000 - key * 61_000,
            "rates": {
                "prompt_tokens_per_s": 210.0 + 37 * (key % 5) + self._random.random() * 80,
                "generated_tokens_per_s": len(mine) * (21.0 + self._random.random() * 4),
                "cached_ratio": 0.4 + 0.07 * (key % 6),
            }
            if serves
            else None,
            "ejected_until_ms": None,
            "engine_restarts": 1 if key == 3 else 0,
            "lanes": [[each.key, each.phase, each.since_ms] for each in mine],
        }

    def _request(self, each: Running) -> Mapping[str, object]:
        return {
            "key": each.key,
            "id": f"chatcmpl-{each.key:08x}",
            "client": each.client,
            "deployment": each.deployment,
            "kind": "generation",
            "route": "/v1/chat/completions",
            "phase": "buffered"
            if each.agent is None
            else "streaming"
            if each.first_ms
            else "leased",
            "arrived_ms": each.arrived_ms,
            "position": each.position,
            "state": {
                "state": {"b": "queued", "p": "prefill", "d": "decode"}[each.phase],
                "word": {"b": "queued", "p": "prefill", "d": "decode"}[each.phase],
                "severity": "warn" if each.phase == "b" else "info",
            },
            "queue": [],
            "placements": []
            if each.agent is None
            else [
                {
                    "agent": f"gpu-{each.agent:02}",
                    "agent_key": each.agent,
                    "lane": each.lane,
                    "at_ms": each.since_ms,
                    "why": "least loaded",
                    "prepared_ms": None,
                    "first_ms": each.first_ms,
                    "prompt_tokens": each.prompt_tokens,
                    "cached_tokens": each.prompt_tokens // 2,
                    "wait_ms": 1,
                    "prefill_ms": 120,
                    "template_ms": 2,
                    "ended_ms": None,
                    "ending": None,
                }
            ],
            "first_result_ms": each.first_ms,
            "tokens": each.tokens,
            "continuations": 0,
            "ended_ms": None,
            "ending": None,
        }
