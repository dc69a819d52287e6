"""The frames that carry requests to agents: written whole by balancers, parsed by agents in parts.

Work is encoded once, measured, and kept as bytes until its request ends. While a request waits, its
bytes take a third of the memory of its values, and it is not encoded again when it is placed again
after a loss. Their length counts against the frame limit of the link: JSON can grow when it is
written again (``1e15`` becomes ``1000000000000000.0``), and a frame over the limit ends the link
with all requests on it.

A request may be megabytes. An agent's event loop needs only its id and its kind, so balancers write
these first and :func:`read_head` reads the first few bytes; a preparation process parses the rest.

The frame of one engine pass: what each of its requests got, in entries of ``id``, ``tokens`` and
``results``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Final, Literal, TypeAlias

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, unstructure
from paddler_trio.wire.json_text import JsonText, dumps_in_runs, one_text
from paddler_trio.wire.paddler.request_params import GenerateEmbeddingBatchParams, PaddlerWork
from paddler_trio.wire.prompt_blocks import NO_BLOCKS, PromptBlocks, prompt_blocks
from paddler_trio.wire.trio.adapters import ADAPTER
from paddler_trio.wire.trio.paddler_translation import UnsupportedByPaddler, paddler_work
from paddler_trio.wire.trio.prompt_stages import PromptStages, RequestTrace
from paddler_trio.wire.trio.trio_link import CONTEXT, INFILL, MAX_FRAME_BYTES, SUBPROTOCOL, TAG
from paddler_trio.wire.trio.work import Embed, Generate, InfillPrompt, Rank, Work

CONTINUATION_BYTES = 8 * 1024 * 1024
"""The bytes of a frame for the envelope and the tokens that an answer goes on after: a million of
them."""
MAX_WORK_BYTES = MAX_FRAME_BYTES - CONTINUATION_BYTES
MAX_PADDLER_WORK_BYTES = 16 * 1024 * 1024 - 4096
"""A Paddler agent drops its whole connection over a frame of more than 16 MiB; the rest is for the
envelope."""


@attrs.frozen
class TooLong:
    """The work is longer than a frame to an agent may be; both in bytes."""

    size_bytes: int
    most_bytes: int


def _size(encoded: bytes | None) -> str:
    return "None" if encoded is None else f"<{len(encoded)} bytes>"


@attrs.frozen
class EncodedWork:
    """One request for an agent.

    Attributes:
      body: the JSON of the work, ``{"Generate": {...}}`` or one of Paddler's bodies.
      paddler_body: the same for an agent of Paddler's; None if it cannot be sent to one.
      needs_ours: why it cannot.
      is_embedding_batch: it is Paddler's own embedding request, which our agents take as it is.
      features: only agents that offer these understand it.
      adapters: the names of those that it is computed with.
      prompt: what its prompt begins with, for whoever places it.
    """

    body: bytes = attrs.field(repr=_size)
    paddler_body: bytes | None = attrs.field(repr=_size)
    needs_ours: UnsupportedByPaddler | TooLong | None
    is_embedding_batch: bool
    features: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    prompt: PromptBlocks = attrs.field(default=NO_BLOCKS, eq=False)

    @property
    def needs(self) -> frozenset[str]:
        """Return what an agent must offer to get this work."""
        if self.needs_ours is None:
            return frozenset()
        return frozenset((SUBPROTOCOL, *self.features, *(ADAPTER + name for name in self.adapters)))

    @property
    def size_bytes(self) -> int:
        """The memory that it holds."""
        has_two = self.paddler_body is not None and self.paddler_body is not self.body
        return len(self.body) + (len(self.paddler_body or b"") if has_two else 0)

    @property
    def excess(self) -> TooLong | None:
        """Too long for every agent."""
        is_too_long = len(self.body) > MAX_WORK_BYTES
        return TooLong(len(self.body), MAX_WORK_BYTES) if is_too_long else None

    def start_frame(
        self,
        wire_id: str,
        *,
        client: str,
        isolated: str | None,
        seed: int,
        tokens: Sequence[int],
        bound: str | None = None,
        trace: RequestTrace | None = None,
    ) -> bytes:
        """Return the frame of a ``Start``: to an agent of ours, going on after ``tokens``; with
        ``bound`` and ``trace`` only to one that reads them."""
        alone = b"" if isolated is None else b'"isolated":%b,' % dumps(isolated)
        alone += b"" if bound is None else b'"bound":%b,' % dumps(bound)
        named = b"" if trace is None else b'"trace":%b,' % trace.frame_member()
        return (
            b'{"Trio":{"Start":{"id":%b,"client":%b,%b%b"request":%b,"seed":%d,"tokens":%b}}}'
            % (
                dumps(wire_id),
                dumps(client),
                alone,
                named,
                self.body,
                seed,
                dumps(list(tokens)),
            )
        )

    def request_frame(self, wire_id: str, *, to_paddler: bool) -> bytes:
        """Return the frame of Paddler's ``Request``."""
        body = self.paddler_body if to_paddler else self.body
        assert body is not None, "an agent of Paddler's was given what it does not understand"
        return b'{"Request":{"id":%b,"request":%b}}' % (dumps(wire_id), body)


def encode_work(work: Work, *, in_runs: bool = False) -> EncodedWork:
    """Encode ``work``; in runs, the interpreter is never held for long, and it takes longer.

    Raises:
      WireError: a value in it has no JSON form.
    """
    write = dumps_in_runs if in_runs else dumps
    body = write(unstructure(work, Work))
    is_embedding_batch = isinstance(work, GenerateEmbeddingBatchParams)
    paddler_body, prompt = body, prompt_blocks(work, body)
    if isinstance(work, Generate | Embed | Rank):
        translated = paddler_work(work)
        if isinstance(translated, UnsupportedByPaddler):
            lora = work.lora if isinstance(work, Generate) else ()
            adapters = tuple(each.name for each in lora if each.name is not None)
            return EncodedWork(
                body, None, translated, is_embedding_batch, _features(work), adapters, prompt
            )
        paddler_body = write(unstructure(translated, PaddlerWork))
    if len(paddler_body) > MAX_PADDLER_WORK_BYTES:
        excess = TooLong(len(paddler_body), MAX_PADDLER_WORK_BYTES)
        return EncodedWork(body, None, excess, is_embedding_batch, prompt=prompt)
    return EncodedWork(body, paddler_body, None, is_embedding_batch, prompt=prompt)


def _features(work: Work) -> tuple[str, ...]:
    if not isinstance(work, Generate):
        return ()
    is_infill = isinstance(work.prompt, InfillPrompt)
    needs = {INFILL: is_infill, CONTEXT: work.context is not None}
    return tuple(name.decode() for name, is_needed in needs.items() if is_needed)


Kind: TypeAlias = Literal["generation", "embedding", "question"]

MAX_ID_CHARS = 256


def _head(*parts: str) -> str:
    """Return a pattern of these parts, with the white space that JSON allows between them."""
    return r"\s*".join(parts)


_OPEN, _ID = r"\{", _head('"id"', ":", rf'"([^"\\]{{1,{MAX_ID_CHARS}}})"', ",")
_ISOLATED = "(?:" + _head('"isolated"', ":", '"(?P<isolated>engine|agent)"', ",", "") + ")?"
_BOUND = "(?:" + _head('"bound"', ":", r'"(?P<bound>[^"\\]{1,128})"', ",", "") + ")?"
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_TRACE = (
    "(?:"
    + _head('"trace"', ":", _OPEN, '"parent"', ":", _TEXT.replace("(", "(?P<parent>", 1), ",")
    + _head("", '"request"', ":", _TEXT.replace("(", "(?P<name>", 1), "")
    + "(?:"
    + _head(",", '"state"', ":", _TEXT.replace("(", "(?P<state>", 1), "")
    + ")?"
    + _head(r"\}", ",", "")
    + ")?"
)


def _client(group: str) -> str:
    return "(?:" + _head('"client"', ":", f'"(?P<{group}>[0-9a-f]{{0,16}})"', ",", "") + ")?"


_HEAD = re.compile(
    "|".join(
        (
            _head(_OPEN, '"Trio"', ":", _OPEN, '"Start"', ":", _OPEN, _ID, _client("start_of"))
            + _ISOLATED
            + _BOUND
            + _TRACE
            + _head('"request"', ":", _OPEN, r'"(?P<start>\w+)"', ":"),
            _head(_OPEN, '"Trio"', ":", _OPEN, '"Ask"', ":", _OPEN, _ID, _client("ask_of"))
            + _head('"question"', ":", _OPEN, r'"(?P<ask>\w+)"', ":"),
            _head(_OPEN, '"Request"', ":", _OPEN, _ID, '"request"', ":", _OPEN)
            + _head("", r'"(?P<request>\w+)"', ":"),
        )
    )
)
_RAW_PROMPT = re.compile(_head(r"\s*\{", '"prompt"', ":", r"\{", '"(?:Text|Tokens|Infill)"', ":"))
_GENERATIONS = ("Generate", "ContinueFromRawPrompt", "ContinueFromConversationHistory")
_EMBEDDINGS = ("Embed", "Rank", "GenerateEmbeddingBatch")


@attrs.frozen
class RequestFrame:
    """One request as it came in.

    Args:
      id: the request's id on this link.
      tag: the kind of request, such as ``Generate``.
      text: the whole frame.
      is_paddlers: the frame is Paddler's ``Request``, not ours.
      client: the client it is for; clients take turns.
      isolated: the process that it may have crashed, ``engine`` or ``agent``; empty for none.
      bound: what alone may answer it, see :class:`~paddler_trio.wire.trio.trio_link.Start`; empty
        for anything.
      trace: its names in logs and traces; None from a balancer that sends none.
      is_raw: no template renders its prompt, as far as its beginning tells.
    """

    id: str
    kind: Kind
    tag: str
    text: str = attrs.field(repr=False)
    is_paddlers: bool = True
    client: str = ""
    isolated: str = ""
    bound: str = ""
    trace: RequestTrace | None = None
    is_raw: bool = attrs.field(default=False, eq=False, kw_only=True)

    @property
    def is_extended(self) -> bool:
        """Return whether the request is one of ours, and its results may be too."""
        return self.tag in ("Generate", "Embed", "Rank")

    @property
    def log_fields(self) -> dict[str, str]:
        """The names of a request in each line of the log: as on its balancer, if that sent its
        names."""
        if self.trace is None:
            return {"request": self.id}
        context = self.trace.context()
        trace = {} if context is None else {"trace": context.trace_id}
        return {"request": self.trace.request, **trace}


def read_head(text: str, *, speaks_trio: bool) -> RequestFrame | None:
    """Return the head of a frame that carries work; None for every other frame."""
    head = _HEAD.match(text)
    if head is None or (head.lastgroup != "request" and not speaks_trio):
        return None
    assert head.lastgroup is not None, "each of the heads ends with a named group"
    tag = head[head.lastgroup]
    wire_id = next(group for group in head.groups() if group is not None)
    client = head["start_of"] or head["ask_of"] or ""
    isolated, bound, trace = head["isolated"] or "", head["bound"] or "", None
    if head["parent"] is not None:
        trace = RequestTrace(_text(head["parent"]), _text(head["name"]), _text(head["state"] or ""))
    if head.lastgroup == "ask":
        return RequestFrame(wire_id, "question", tag, text, False, client)
    is_paddlers = head.lastgroup == "request"
    if tag in _GENERATIONS:
        kind: Kind = "generation"
    elif tag in _EMBEDDINGS:
        kind = "embedding"
    else:
        return None
    is_raw = tag == "ContinueFromRawPrompt" or _RAW_PROMPT.match(text, head.end()) is not None
    return RequestFrame(
        wire_id, kind, tag, text, is_paddlers, client, isolated, bound, trace, is_raw=is_raw
    )


def _text(written: str) -> str:
    """Return a JSON string without its quotes; empty if it is none: preparing the request refuses
    the whole frame then."""
    if "\\" not in written:
        return written
    try:
        return str(loads(f'"{written}"'))
    except WireError:
        return ""


_BEGINNING: Final = b'{"%b":{"Step":[' % TAG.encode()
_END: Final = b"]}}"


def step_entry(
    wire_id: str,
    tokens: Sequence[int],
    results: Sequence[object],
    prompt: PromptStages | None = None,
    preemptions: int = 0,
    model: str | None = None,
) -> bytes:
    """One entry; what comes after ``results`` is left out where there is nothing to report."""
    fields: dict[str, object] = {}
    if prompt is not None:
        fields["prompt"] = prompt.fields()
    if preemptions:
        fields["preemptions"] = preemptions
    if model is not None:
        fields["model"] = model
    ids = ",".join(map(str, tokens))
    shown = ",".join(map(_result_text, results))
    more = f",{_dumps(fields)[1:-1]}" if fields else ""
    return (
        f'{{"id":{encode_basestring(wire_id)},"tokens":[{ids}],"results":[{shown}]{more}}}'
    ).encode()


def step_frame(entries: Iterable[bytes]) -> bytes:
    """Return the whole text frame."""
    return _BEGINNING + b",".join(entries) + _END


def _result_text(result: object) -> str:
    """Return the JSON: of a text, as nearly every one is, and of what was written already, without
    an encoder."""
    text = one_text(result)
    if text is not None:
        return text
    match result:
        case {"Logprobs": JsonText(written)}:
            return f'{{"Logprobs":{written}}}'
    return _dumps(result)


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
