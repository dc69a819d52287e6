"""The messages between our balancers and agents beyond Paddler 4.1.

Only after both chose the WebSocket subprotocol ``paddler-trio.1`` may a text frame be
``{"Trio": {...}}``; everything else on the link stays Paddler's. A Paddler peer offers or picks no
subprotocol, so it never sees one of these.

* :class:`Start` (balancer): work, with the seed of its sampling and the tokens that another agent
  produced before it was lost; used instead of Paddler's ``Request`` for generations;
* :class:`Store` (balancer): it keeps models for its agents; sent before anything is desired;
* :class:`Want` (balancer): what to serve, if there are extras; otherwise Paddler's ``SetState``;
* :class:`Placement` (agent): which deployment this link is for, and the labels of its host; sent
  before the registration;
* :class:`Instances` (balancer): which deployments beside ``default`` a host serves, each over a
  link of its own;
* :class:`Report` (agent): which state it serves and what it is doing, beside every status update;
* ``Step`` (agent): everything one pass of the engine produced, for all requests: a list of ``{"id",
  "tokens", "results"}``, once with ``prompt`` (see ``prompt_stages.py``), once with ``model``, the
  fingerprint of what answers (see :class:`Start`), with ``preemptions``, how often so far, when the
  engine preempts it and at the end; built and read as plain JSON, because it is the hot path;
* :class:`HandBack` (agent): the agent will not finish this request; another one may;
* :class:`GetTree` (balancer) and :class:`Tree` (agent): the printed nursery tree;
* :class:`Ask` (balancer) and :class:`Answer` (agent): questions about the loaded model;
* :class:`AskFit` (balancer), answered by an :class:`Answer` too: would a model fit;
* :class:`Cache` (balancer), ``CacheProgress`` and :class:`Answer` (agent): commands about the
  models that the agent keeps, see ``cache_commands.py``;
* ``Rotate`` (agent) and ``Rotated`` (balancer), see ``upstream_messages.py``;
* ``Operate`` (balancer), answered by an :class:`Answer`, see ``operator_orders.py``;
* ``Machine`` (agent): facts about its machine, see ``machine_facts.py``;
* :class:`Leaving` (balancer) and :class:`Followed` (agent): another process takes over;
* ``Upstream`` (agent) and ``OpenTunnel`` (balancer), see ``upstream_messages.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import attrs

from paddler_trio.wire.codec import dumps, structure, unstructure
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.scalars import Float32, Int32, Uint32, Uint64
from paddler_trio.wire.shape import OMITTED, ShapeError
from paddler_trio.wire.tags import external_tag, structs, tag_of
from paddler_trio.wire.trio.cache_commands import CacheProgress, CacheRequest
from paddler_trio.wire.trio.desired_state_extras import Extras
from paddler_trio.wire.trio.fit_messages import AskFit, DeviceRoom, MemoryInForce
from paddler_trio.wire.trio.model_questions import Question
from paddler_trio.wire.trio.operations.machine_facts import Machine
from paddler_trio.wire.trio.operations.operator_orders import Operate
from paddler_trio.wire.trio.placement_rules import check_deployment, check_labels
from paddler_trio.wire.trio.prompt_stages import RequestTrace
from paddler_trio.wire.trio.upstream_messages import OpenTunnel, Rotate, Rotated, Upstream
from paddler_trio.wire.trio.work import Work

SUBPROTOCOL = "paddler-trio.1"
TAG = "Trio"
_STORE_PATH: Final = re.compile(r"(/[\w.-]{1,64}){1,8}", re.ASCII)
RESTARTS: Final = "restarts"
"""The key in a report's ``engine`` of how often an engine crashed and was started again while the
agent ran."""
BOUND: Final = b"bound"
"""The feature of an agent that reads ``Start.bound``."""
BESIDE: Final = b"beside"
"""The feature of an agent that reads ``AskFit.beside``."""
INFILL: Final = b"infill"
"""The feature of an agent that reads an ``InfillPrompt``."""
CONTEXT: Final = b"context"
"""The feature of an agent that reads ``Generate.context``."""
MAX_FINGERPRINT_CHARS: Final = 128
DEFAULT_DEPLOYMENT: Final = "default"
"""The deployment that Paddler's desired state is; a host serves it over its first link."""
MAX_INSTANCES: Final = 64
"""The instances of one host, beside ``default``."""
MAX_INSTANCE_SLOTS: Final = 4096
_HOST: Final = re.compile(r"[\w.~-]{1,128}", re.ASCII)
FOLLOWS: Final = b"handover"
"""The feature of an agent that understands :class:`Leaving`; see ``prompt_stages.py``."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The most that an agent of ours reads as one message; over a longer one it drops its
connection."""
MAX_ANSWER_BYTES = 48 * 1024 * 1024
"""The bytes of an answer's frame. A balancer reads less than an agent as one message, 50 MiB, and
drops the connection over a longer one, with every answer that comes over it."""


@attrs.frozen
class Download:
    """A model's file on its way to an agent; its name and bytes are in Paddler's status.

    ``source`` is a host, ``phase`` what is done: ``downloading``, ``waiting for another process``,
    ``saving``. ``file_index`` is from 1, of the ``file_count`` files that make up the model.
    ``bytes_per_s`` is over the last seconds, ``remaining_s`` what is left at this speed.
    """

    source: str
    phase: str
    file_index: Uint32
    file_count: Uint32
    bytes_per_s: Uint64 | None
    remaining_s: Uint32 | None


@attrs.frozen
class Report:
    """The facts that an agent of ours adds to Paddler's status.

    ``phase``: ``waiting`` (no model wanted), ``resolving``, ``downloading``, ``draining``,
    ``loading``, ``probing`` (a first decode), ``serving`` or ``failed``. ``wanted_state`` and
    ``served_state`` are digests of desired states; ``model`` is a fingerprint of the weights and
    the template that are served: answers may only be continued where it is the same. ``progress``
    is 0..1 while loading. ``engine`` are the fields of the engine's ``EngineStats``, and
    :data:`RESTARTS`, which is also there as ``restarts_crash``, ``restarts_unresponsive``,
    ``restarts_killed`` and ``restarts_load_failed``, each once there was one.

    An agent that cannot serve what it wants (yet) may keep the model before it: ``served_state`` is
    that one's then, and ``phase`` is ``downloading`` or ``failed``, or ``loading`` or ``probing``
    while the new model is loaded beside it.

    ``load_s``: seconds that the engine in force took from its start until it was proved.
    ``room``: what models may take of each device in all, if known. ``adapters``: names to choose.
    """

    phase: str
    wanted_state: str | None
    served_state: str | None
    model: str | None
    progress: Float32 | None
    detail: str | None
    engine: Mapping[str, object] | None = None
    download: Download | None = attrs.field(default=None, metadata=OMITTED)
    memory: MemoryInForce | None = attrs.field(default=None, metadata=OMITTED)
    load_s: Float32 | None = attrs.field(default=None, metadata=OMITTED)
    room: tuple[DeviceRoom, ...] = attrs.field(default=(), metadata=OMITTED)
    adapters: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)


@attrs.frozen(kw_only=True)
class Placement:
    """This link serves one deployment on one host: an instance.

    ``host`` is the id of the host's first link, ``labels`` are the host's. On the first link
    ``instances`` are the other deployments that the host serves. A link without this message is the
    first one of a host without labels and without other deployments.
    """

    host: str
    deployment: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    instances: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        if _HOST.fullmatch(self.host) is None:
            raise ShapeError(f"{self.host[:80]!r} is no id of an agent", "host")
        check_deployment(self.deployment, "deployment")
        check_labels(self.labels, "labels")
        if len(self.instances) > MAX_INSTANCES:
            raise ShapeError(
                f"{len(self.instances)} instances, the limit is {MAX_INSTANCES}", "instances"
            )
        for place, deployment in enumerate(self.instances):
            check_deployment(deployment, place, "instances")


@attrs.frozen(kw_only=True)
class InstanceWanted:
    """``slots``: None for as many as the agent was started with."""

    deployment: str
    slots: Uint32 | None = None

    def __attrs_post_init__(self) -> None:
        check_deployment(self.deployment, "deployment")
        if self.deployment == DEFAULT_DEPLOYMENT:
            raise ShapeError(
                f"{DEFAULT_DEPLOYMENT!r} is served over the first link of a host", "deployment"
            )
        if self.slots is not None and not 0 < self.slots <= MAX_INSTANCE_SLOTS:
            raise ShapeError(f"{self.slots} slots, must be 1 to {MAX_INSTANCE_SLOTS}", "slots")


@attrs.frozen(kw_only=True)
class Instances:
    """All instances that a host shall have beside the one of its first link; others end."""

    instances: tuple[InstanceWanted, ...]

    def __attrs_post_init__(self) -> None:
        if len(self.instances) > MAX_INSTANCES:
            raise ShapeError(
                f"{len(self.instances)} instances, the limit is {MAX_INSTANCES}", "instances"
            )
        seen: set[str] = set()
        for place, each in enumerate(self.instances):
            if each.deployment in seen:
                raise ShapeError(f"{each.deployment!r} is listed twice", place, "instances")
            seen.add(each.deployment)


@attrs.frozen
class Store:
    """The balancer keeps models: agents ask for them below ``path`` of the port that they dial."""

    path: str

    def __attrs_post_init__(self) -> None:
        if _STORE_PATH.fullmatch(self.path) is None:
            raise ShapeError(f"{self.path[:80]!r} is not a path such as /api/v2/store", "path")


@attrs.frozen
class Want:
    """Serve this; reported under the ``extended_digest`` of both."""

    desired_state: AgentDesiredState
    extras: Extras


@attrs.frozen
class Start:
    """Work on ``request``, Paddler's or ours.

    ``tokens`` were produced before, by another agent: the answer continues after them, and they are
    not sent again. A sampled token depends on ``seed`` (32 bits, unsigned) and its position only.
    ``client``: up to 16 hexadecimal digits, equal for all work of one client; agents give clients
    turns. ``trace`` is sent only to agents that ask for it.

    ``bound``: only an agent that serves this may answer, others hand it back: the fingerprint of
    the model that produced ``tokens``, or the digest of the state that the other parts of its call
    are answered by. The balancer may not know yet that another model is in force. It is sent only
    to agents that offer :data:`BOUND`.

    An entry of a ``Step`` without tokens and results reports that the request is prepared, and with
    ``model``, by which model: the request stays on that one when another is put in force.
    ``isolated``: a process may have crashed because of this request, an ``engine`` or an ``agent``,
    so the engine computes it alone. After an agent crash such requests are prepared one at a time,
    and another empty entry reports that the turn of this one has come.
    """

    id: str
    client: str = attrs.field(default="", kw_only=True)
    isolated: str | None = attrs.field(default=None, kw_only=True, metadata=OMITTED)
    bound: str | None = attrs.field(default=None, kw_only=True, metadata=OMITTED)
    trace: RequestTrace | None = attrs.field(default=None, kw_only=True, metadata=OMITTED)
    request: Work
    seed: Uint32
    tokens: tuple[Int32, ...]


@attrs.frozen
class HandBack:
    """``id`` is the request's id on this link. If the engine died, ``suspects`` is the number of
    requests that may be the cause, this one among them, or 0 if this one is not; None if it is
    unknown, and then this one counts as the only suspect.
    """

    id: str
    reason: str
    engine_died: bool
    suspects: Uint32 | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen
class GetTree:
    id: str


@attrs.frozen
class Tree:
    """``tree`` is a printed tree as plain JSON."""

    id: str
    tree: Mapping[str, object]


@attrs.frozen
class Ask:
    """A question about the model that is served; it takes no slot. ``client``: see ``Start``."""

    id: str
    client: str = attrs.field(default="", kw_only=True)
    question: Question


@attrs.frozen
class Answer:
    """``answer`` is plain JSON; ``problem`` is why there is none, with an HTTP-like ``code``."""

    id: str
    answer: object
    problem: str | None
    code: Int32


@attrs.frozen
class Cache:
    """A command about the models that the agent keeps; it takes no slot."""

    id: str
    request: CacheRequest


@attrs.frozen
class Leaving:
    """Another process takes over at the same address: the agent dials again, and keeps this link
    until the balancer closes it. ``slots``: how many slots of the agent this balancer still needs;
    sent again when they are fewer. What is desired is what the other process sends.

    Only agents that offer :data:`FOLLOWS` among their features are sent it.
    """

    slots: Uint32


@attrs.frozen
class Followed:
    """The agent is registered with the process that takes over."""


@attrs.frozen
class UnknownExtension:
    """A message of a newer version; it is ignored, and the link stays."""

    name: str


Extension: TypeAlias = (
    Store
    | Want
    | Placement
    | Instances
    | Start
    | Report
    | HandBack
    | GetTree
    | Tree
    | Ask
    | Answer
    | AskFit
    | Cache
    | CacheProgress
    | Rotate
    | Rotated
    | Upstream
    | OpenTunnel
    | Leaving
    | Followed
    | Machine
    | Operate
)
_VARIANTS: Final = structs(Extension)
_KNOWN: Final = frozenset(variant.tag for variant in _VARIANTS)
external_tag(Extension, *_VARIANTS)


def render_extension(message: Extension) -> bytes:
    """Return the whole text frame."""
    return dumps({TAG: unstructure(message, Extension)})


def parse_extension(body: object) -> Extension | UnknownExtension:
    """Return the extension; ``body`` is what stands under ``Trio`` and is no ``Step``; WireError if
    it is malformed."""
    name = tag_of(body)
    if name is not None and name not in _KNOWN:
        return UnknownExtension(name)
    return structure(body, Extension)


def recover_extension_id(frame: object) -> str | None:
    """Return the id inside a frame of ours that does not parse, for the answer to it."""
    match frame:
        case {"Trio": {**messages}} if len(messages) == 1:
            match next(iter(messages.values())):
                case {"id": str(wire_id)}:
                    return wire_id
    return None
