"""One line of the access log: what became of one request of a client, as JSON or as logfmt.

It never has a text of a request or an answer, no key, and no query. What a stranger chooses (a
path, an id, a client's name) is cut, and control characters in it are escaped, so that it can
neither write a line of its own nor colour a terminal.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import attrs

Form: TypeAlias = Literal["text", "json"]
MAX_FIELD_CHARS: Final = 200
MAX_AGENTS: Final = 16


@attrs.frozen(kw_only=True)
class AccessEntry:
    """One line of the access log, its fields in their order; None where there is nothing to show.
    Times are seconds.

    Attributes:
      time: when it ended, Unix time.
      address: of the client's connection.
      client: the name of its key, else what it calls itself.
      method: None for a request on a WebSocket.
      route: the template that its path matched; ``path`` is there only if none did.
      status: of HTTP; None if the client left before one was sent.
      outcome: one of ``REQUEST_OUTCOMES``, as in the metrics; of several requests the worst.
      queue_s: its longest wait for a slot.
      ttft_s: from its arrival to the first token.
      prompt_tokens, cached_tokens, generated_tokens: of all requests to agents that it became.
      agents: that worked on it, in order.
      continuations: how often it went on elsewhere after a loss.
    """

    time: float
    address: str
    client: str | None
    method: str | None
    route: str | None
    path: str | None = None
    status: int | None
    outcome: str
    queue_s: float | None = None
    ttft_s: float | None = None
    duration_s: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    deployment: str | None = None
    agents: tuple[str, ...] = ()
    continuations: int = 0
    request: str
    trace: str

    def line(self, form: Form) -> bytes:
        """Return the line with its line feed."""
        fields = self._fields()
        if form == "json":
            return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        shown = " ".join([f"{name}={_shown(value)}" for name, value in fields.items()])
        return shown.encode("ascii") + b"\n"

    def _fields(self) -> dict[str, object]:
        moment = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {"time": moment.replace("+00:00", "Z")}
        for name in _NAMES:
            value = getattr(self, name)
            if isinstance(value, str):
                value = value[:MAX_FIELD_CHARS]
            elif isinstance(value, float):
                value = round(value, 4)
            elif isinstance(value, tuple):
                value = [each[:MAX_FIELD_CHARS] for each in value[:MAX_AGENTS]]
            fields[name] = value
        if self.path is None:
            del fields["path"]
        return fields


_NAMES: Final = tuple(field.name for field in attrs.fields(AccessEntry) if field.name != "time")
_PLAIN: Final = frozenset("!#$%&'()*+-./:;<>?@[]^_`{|}~,") | frozenset(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)


def _shown(value: object) -> str:
    """Return a value as logfmt has it: ``-`` for nothing, quotes where it would not be one word."""
    match value:
        case None | "" | []:
            return "-"
        case float():
            return f"{value:.4f}"
        case list():
            value = ",".join(value)
    text = str(value)
    return text if text != "-" and _PLAIN.issuperset(text) else json.dumps(text)
