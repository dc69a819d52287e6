"""The labels whose values are words of ours: all that there are."""

from __future__ import annotations

from typing import Final

REQUEST_OUTCOMES: Final = (
    "completed",
    "stopped",
    "cancelled",
    "refused",
    "overflow",
    "queue_timeout",
    "token_timeout",
    "slow_reader",
    "agent_lost",
    "shutting_down",
    "failed",
)
"""The ways in which a request ended for its client. ``stopped``: the client left, or stopped it;
``cancelled``: an operator did; ``refused``: nothing here can take it as it is; ``overflow``: the
queue was full, or it made room for another client; ``agent_lost``: its agent left and no other
could go on; ``failed``: any other error."""
QUEUE_OUTCOMES: Final = (
    "dispatched",
    "rejected_capacity",
    "rejected_other",
    "evicted_ttl",
    "evicted_no_endpoints",
    "evicted_context_cancelled",
    "evicted_other",
)
"""The ways in which a stay in the queue ended, in the words of llm-d's flow control: ``rejected``
before it was in it, ``evicted`` while it waited; ``no_endpoints``: no agent served its deployment;
``ttl``: it waited too long; ``context_cancelled``: its client left."""
MISS_REASONS: Final = ("busy", "forgotten", "slower")
RETRY_REASONS: Final = ("agent_left", "connection_lost", "handed_back")
TOKEN_CLASSES: Final = ("content", "reasoning", "tool_call", "undeterminable")
SLOT_STATES: Final = ("processing", "idle", "unusable")
"""``unusable``: configured, and given no work now: no model, not the one desired, drained."""
KV_KINDS: Final = ("weights", "kv", "compute")
"""The kinds of the memory of a model: llama.cpp's buffers, on all devices together."""
RESTART_REASONS: Final = ("crash", "unresponsive", "killed", "load_failed", "unknown")
"""The ways in which an engine ended. ``unresponsive``: its agent killed it; ``killed``: somebody
else did, as a system without memory does; ``unknown``: the agent is older than these words."""


KV_CELL_STATES: Final = ("used", "resident", "free")
AGENT_STATES: Final = ("serving", "not_serving")
"""The states of agents of a deployment; those that serve get work."""
AGENT_PHASES: Final = (
    "waiting",
    "resolving",
    "downloading",
    "draining",
    "loading",
    "probing",
    "serving",
    "failed",
    "leaving",
    "restarting",
    "unloading",
    "unloaded",
)
"""Those that agents report; whatever else one reports is ``other``."""
ROLLOUT_PHASES: Final = (
    "waiting",
    "prefetching",
    "prefetched",
    "draining",
    "loading",
    "probing",
    "serving",
    "failed",
    "leaving",
    "rolled_back",
)
"""The phases of an agent in a rollout; whatever else one reports is ``other``."""
STORE_FOUND: Final = ("whole", "arriving", "nothing")
"""The ways in which a file was found that the model store is asked for: a hit; on its way for
somebody else already; a miss, which begins a download."""
DOWNLOAD_OUTCOMES: Final = ("done", "failed", "given_up")
"""The outcomes of downloads of the model store. ``given_up``: nobody waited for it any more; what
is here of it stays."""
