"""What a balancer shows of a small fleet at work, as its event feed and its requests have it."""

from __future__ import annotations

from typing import Final

NOW_MS: Final = 1_000_000
TIME: Final = "2026-03-01T12:00:00.000Z"

Json = dict[str, object]


def agent(key: int, name: str | None, **more: object) -> Json:
    """An agent with four slots that serves ``chat.gguf``."""
    return {
        "id": f"id-{key}",
        "name": name,
        "key": key,
        "label": name or f"id-{key}",
        "protocol": "paddler-trio.1",
        "deployment": "default",
        "host": f"id-{key}",
        "labels": {"gpu": "yes"},
        "is_accepting": True,
        "is_drained": False,
        "usable_slots": 4,
        "slots_processing": 0,
        "slots_total": 4,
        "desired_slots_total": 4,
        "model_path": "/models/chat.gguf",
        "state_application_status": "Applied",
        "issues": [],
        "download_current": 0,
        "download_total": 0,
        "download_filename": None,
        "phase": "serving",
        "state": {"word": str(more.get("phase", "serving")), "severity": "ok"},
        "wanted_state": "d1",
        "served_state": "d1",
        "progress": None,
        "detail": None,
        "load_s": 2.5,
        "engine": None,
        "download": None,
        "memory": {"devices": [{"device": "host", "actual": 123 << 20, "predicted": 120 << 20}]},
        "joined_ms": 10,
        "rates": {
            "prompt_tokens_per_s": 1234.5,
            "generated_tokens_per_s": 56.7,
            "cached_ratio": 0.43,
        },
        "ejected_until_ms": None,
        "engine_restarts": 0,
        "lanes": [],
        **more,
    }


def request(key: int, **more: object) -> Json:
    """A request that waits in the queue."""
    return {
        "key": key,
        "id": f"chatcmpl-{key}",
        "client": "app",
        "deployment": "default",
        "kind": "generation",
        "route": "/v1/chat/completions",
        "phase": "buffered",
        "arrived_ms": NOW_MS - 3000,
        "position": 2,
        "queue": [{"since_ms": NOW_MS - 3000, "until_ms": None, "positions": []}],
        "placements": [],
        "first_result_ms": None,
        "tokens": 0,
        "progress": [],
        "continuations": 0,
        "ended_ms": None,
        "ending": None,
        "capture": None,
        **more,
    }


def placement(name: str, at_ms: int, **more: object) -> Json:
    """A stay on an agent of which nothing came back yet."""
    return {
        "agent": name,
        "agent_key": 3,
        "lane": 1,
        "at_ms": at_ms,
        "why": "least loaded of 2 agents that could take it: 1 of 4 slots busy",
        "prepared_ms": None,
        "first_ms": None,
        "prompt_tokens": None,
        "cached_tokens": None,
        "wait_ms": None,
        "prefill_ms": None,
        "template_ms": None,
        "ended_ms": None,
        "ending": None,
        **more,
    }


STREAMING: Final = request(
    17,
    phase="streaming",
    position=None,
    queue=[
        {
            "since_ms": NOW_MS - 3000,
            "until_ms": NOW_MS - 2500,
            "positions": [[NOW_MS - 3000, 3], [NOW_MS - 2800, 1]],
        }
    ],
    placements=[
        placement(
            "a1",
            NOW_MS - 2500,
            prepared_ms=NOW_MS - 2495,
            first_ms=NOW_MS - 2000,
            prompt_tokens=1000,
            cached_tokens=750,
            template_ms=4.2,
            wait_ms=90.0,
            prefill_ms=400.0,
        )
    ],
    first_result_ms=NOW_MS - 2000,
    tokens=101,
    progress=[[NOW_MS - 2000, 1], [NOW_MS - 1000, 41], [NOW_MS, 101]],
)
CONTINUED: Final = request(
    9,
    client="",
    phase="ended",
    position=None,
    queue=[
        {"since_ms": 900_000, "until_ms": 900_000, "positions": []},
        {"since_ms": 903_000, "until_ms": 903_500, "positions": [[903_000, 1]]},
    ],
    arrived_ms=900_000,
    placements=[
        placement(
            "a1",
            900_000,
            prepared_ms=900_004,
            first_ms=901_000,
            ended_ms=903_000,
            ending="lost: the connection was reset",
        ),
        placement(
            "a2",
            903_500,
            lane=0,
            prepared_ms=903_505,
            first_ms=904_000,
            ended_ms=906_000,
            ending="failed",
        ),
    ],
    first_result_ms=901_000,
    tokens=90,
    progress=[[901_000, 1], [902_000, 31], [903_000, 61], [904_000, 62], [906_000, 90]],
    continuations=1,
    ended_ms=906_000,
    ending={"kind": "failed", "code": 504, "text": "no result within 30 s"},
)


def full_event(**topics: object) -> Json:
    """The first event of a feed; ``topics`` come in the place of what is here."""
    streaming_on = agent(
        3, "a1", slots_processing=2, lanes=[["17", "d", NOW_MS], ["18", "p", NOW_MS]]
    )
    failed = agent(
        4,
        "a2",
        phase="failed",
        is_accepting=False,
        rates=None,
        memory=None,
        issues=[{"ModelFileDoesNotExist": {"model_path": "/models/chat.gguf"}}],
    )
    made: Json = {
        "balancer": {
            "status": {
                "version": "0.1.0",
                "started": "2026-03-01T09:46:00.000Z",
                "draining": False,
                "addresses": {"inference": [], "management": [], "openai": [], "panel": []},
                "buffer": {"waiting": 1, "limit": 30, "timeout_ms": 10_000},
                "slots": {"busy": 2, "total": 8},
                "loop_lag_ms": 0.4,
                "capture": False,
                "revision": 7,
            }
        },
        "agents": {"3": streaming_on, "4": failed},
        "deployments": {
            "default": {
                "aliases": [],
                "phase": "serving",
                "waiting": 1,
                "oldest_wait_ms": 3000,
                "running": 2,
                "slots": 8,
                "serving": 1,
                "held": None,
                "target": "d1",
            }
        },
        "requests": {"17": STREAMING, "19": request(19)},
        **topics,
    }
    return {
        "epoch": "e1",
        "seq": 0,
        "full": True,
        "now_ms": NOW_MS,
        "time": TIME,
        "set": made,
        "gone": {},
    }
