"""Questions and orders of client commands to a balancer's management service.

Views hold what is shown and ignore what a newer balancer may add; ``raw`` is the whole answer,
for ``--json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

import attrs
import cattrs
import httpx
from cattrs.errors import BaseValidationError

from paddler_trio.cli.balancer_http import (
    ANSWER_S,
    BalancerClient,
    BalancerRefusedError,
    BalancerUnreachableError,
    BalancerVersionError,
    clear_errors,
    lines_of,
    open_http,
    read_json,
    refuse_unless_success,
)
from paddler_trio.cli.client_flags import ManagementFlags

SILENCE_S = 15.0
"""The balancer sends a keep-alive every three seconds; this long without one, it is gone."""
"""The balancer waits for an agent a little less long."""
STATE_PATH = "/api/v1/balancer_desired_state"
EXTENDED_STATE_PATH = "/api/v2/balancer_desired_state"
STATE_DIGEST_HEADER = "X-Paddler-State-Digest"

PADDLERS_PROTOCOL: Final = "paddler-4.1"

Json = dict[str, object]
T = TypeVar("T")


@attrs.frozen(kw_only=True)
class AgentView:
    """One connected agent. Where a Paddler agent says nothing (``phase``, ...), it is None.

    ``progress``: 0..1 while loading. ``issues``: as on the wire. ``download_*``: bytes.
    """

    id: str
    name: str | None
    protocol: str
    is_accepting: bool
    slots_processing: int
    slots_total: int
    desired_slots_total: int
    model_path: str | None
    state_application_status: str
    issues: list[object]
    download_current: int = 0
    download_total: int = 0
    download_filename: str | None = None
    phase: str | None = None
    detail: str | None = None
    wanted_state: str | None = None
    served_state: str | None = None
    progress: float | None = None
    download: dict[str, object] | None = None
    """``Download`` of ``wire/trio/trio_link.py``."""
    memory: dict[str, object] | None = None
    """``MemoryInForce`` of ``wire/trio/fit_messages.py``."""
    engine: dict[str, float] | None = None
    """``EngineStats`` of ``wire/engine/engine_pipe.py``, since the model was loaded."""
    deployment: str = "default"
    host: str | None = None
    """The id of the first link of the agent's process; None from a balancer without deployments."""
    labels: dict[str, str] = attrs.field(factory=dict)
    upstream: dict[str, object] | None = None
    """``Upstream`` of ``wire/trio/upstream_messages.py``; None of an agent that runs models."""
    load_s: float | None = None
    """Seconds that the model in force took to load."""
    is_drained: bool = False
    """By an operator: it finishes what it has and gets nothing new."""
    state: dict[str, str] = attrs.field(factory=dict)
    """What is true of it, as the balancer says it: ``word``, ``severity``, ``sentence``."""

    @property
    def label(self) -> str:
        return self.name or self.id

    @property
    def is_paddlers(self) -> bool:
        """It speaks Paddler's protocol. One of ours has no ``phase`` either, until it has reported
        for the first time."""
        return self.protocol == PADDLERS_PROTOCOL

    @property
    def keeps_old_model(self) -> bool:
        """It serves another state than the one that it was sent last."""
        return self.served_state is not None and self.served_state != self.wanted_state

    @property
    def address(self) -> str | None:
        """The address of the server that it stands in front of."""
        address = (self.upstream or {}).get("address")
        return address if isinstance(address, str) else None

    @property
    def models(self) -> list[str]:
        """The names of what that server serves."""
        models = (self.upstream or {}).get("models")
        return [str(model) for model in models] if isinstance(models, list) else []


@attrs.frozen(kw_only=True)
class FleetView:
    """All connected agents, and the digest of what they should serve."""

    desired_state_digest: str
    agents: list[AgentView]
    raw: Json = attrs.field(factory=dict, eq=False)


@attrs.frozen(kw_only=True)
class ExtendedStateView:
    """The desired state and what is wished beside it, both as plain JSON."""

    state: Json
    extras: Json


@attrs.frozen(kw_only=True)
class TreeView:
    """One task of a daemon's running tree."""

    name: str
    waits_for: str
    restarts: int
    last_crash: str | None
    children: list[TreeView]


CONVERTER = cattrs.Converter()
CONVERTER.register_structure_hook_func(lambda shape: shape is object, lambda value, _: value)


@attrs.frozen(eq=False)
class ManagementClient(BalancerClient):
    """A conversation with one balancer; use it as a context manager.

    Every method raises BalancerUnreachableError or BalancerRefusedError.
    """

    @classmethod
    def open(cls, management: ManagementFlags, *, answer_s: float = ANSWER_S) -> ManagementClient:
        """Return a client that has sent nothing yet; errors are those of `http_settings`."""
        return cls(management.address, open_http(management, answer_s=answer_s))

    def desired_state(self) -> Json:
        """The stored desired state, as plain JSON."""
        return self._get(STATE_PATH)

    def extended_state(self) -> tuple[Json, Json | None]:
        """Return that and the extras beside it, which are None from a balancer that knows of
        none."""
        try:
            both = self._get(EXTENDED_STATE_PATH)
        except BalancerRefusedError as error:
            if error.status != 404:
                raise
            return self.desired_state(), None
        view = self.structured(both, ExtendedStateView)
        return view.state, view.extras

    def store(
        self, state: Mapping[str, object], extras: Mapping[str, object] | None = None
    ) -> str | None:
        """Store a whole desired state, and extras unless they are None, which keeps them.

        Returns:
          The digest as agents report it; None from a balancer that does not say.
        """
        with clear_errors(self.address):
            if extras is None:
                answer = self._http.put(STATE_PATH, json=state)
            else:
                answer = self._http.put(
                    EXTENDED_STATE_PATH, json={"state": state, "extras": extras}
                )
                self._must_know(answer)
            refuse_unless_success(answer)
        digest: str | None = answer.headers.get(STATE_DIGEST_HEADER)
        return digest

    def fleet(self) -> FleetView:
        """The agents as they are now."""
        return self._fleet_of(self._get("/api/v2/agents"))

    def watch_fleet(self, *, silence_s: float = SILENCE_S) -> Iterator[FleetView]:
        """The agents now, after every change, and again every few seconds without one; for ever.

        BalancerUnreachableError when the balancer ends the stream or is silent for ``silence_s``.
        """
        raw, view = None, None
        for each in self.events("/api/v2/agents/stream", silence_s=silence_s):
            if view is None or each is not raw:
                raw, view = each, self._fleet_of(each)
            yield view

    def events(self, path: str, *, silence_s: float = SILENCE_S) -> Iterator[Json]:
        """The documents of an event stream; the last one again, the same object, at every sign of
        life without a new one; for ever. Errors as of ``watch_fleet``."""
        last: Json | None = None
        with (
            clear_errors(self.address),
            self._http.stream("GET", path, timeout=silence_s) as answer,
        ):
            self._must_know(answer)
            refuse_unless_success(answer)
            for line in lines_of(answer.iter_bytes()):
                if line.startswith("data: "):
                    last = self._object(line.removeprefix("data: "), path)
                if last is not None and line:
                    yield last
        raise BalancerUnreachableError(f"the balancer at {self.address} is shutting down")

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        answer_s: float | None = None,
    ) -> Json:
        """Any other request: the JSON object of the answer, empty if there is none."""
        more: Any = {} if body is None else {"json": body}
        if answer_s is not None:
            more["timeout"] = answer_s
        with clear_errors(self.address):
            answer = self._http.request(method, path, params=params, **more)
            if not answer.content:  # with a reason it is an answer of this path
                self._must_know(answer)
            refuse_unless_success(answer)
        return self._object(answer.text, path) if answer.content else {}

    def text(self, path: str, params: Mapping[str, str]) -> str:
        """Return the text of an answer that is no JSON."""
        with clear_errors(self.address):
            answer = self._http.get(path, params=params)
            refuse_unless_success(answer)
        return answer.text

    def ask_agent(
        self,
        method: str,
        agent: str,
        what: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        answer_s: float | None = None,
    ) -> Json:
        """Ask for something of the agent of this id or name, as ``ask`` does."""
        path = f"/api/v2/agents/{quote(agent, safe='')}/{what}"
        more: Any = {} if answer_s is None else {"timeout": answer_s}
        with self._naming(agent), clear_errors(self.address):
            answer = self._http.request(method, path, json=body, params=params, **more)
            refuse_unless_success(answer)
        return self._object(answer.text, path)

    def command_caches(
        self,
        command: str | None,
        fields: Mapping[str, object] | None = None,
        *,
        silence_s: float = SILENCE_S,
    ) -> Iterator[Json]:
        """Yield what agents report about a command on their caches, line by line: ``pull``,
        ``verify``, ``prune``, or None to list what they have.

        The command ends when this iterator is closed. BalancerUnreachableError when the balancer is
        silent for too long.
        """
        path = "/api/v2/models" + ("" if command is None else f"/{command}")
        asked: Any = {"json": fields}
        if command is None:
            asked = {"params": {"agent": (fields or {}).get("agents", [])}}
        with (
            clear_errors(self.address),
            self._http.stream(
                "GET" if command is None else "POST", path, timeout=silence_s, **asked
            ) as answer,
        ):
            if answer.status_code == 404 and not answer.read():
                self._must_know(answer)
            refuse_unless_success(answer)
            for line in lines_of(answer.iter_bytes()):
                if line:
                    yield self._object(line, path)

    def tree(self, agent: str | None = None) -> tuple[TreeView, Json]:
        """The running tree of the balancer, or of the agent of this id or name; also as it came."""
        path = "/api/v2/tree" if agent is None else f"/api/v2/agents/{quote(agent, safe='')}/tree"
        with self._naming(agent):
            raw = self._get(path)
        return self.structured(raw, TreeView), raw

    def drain(self, agent: str, *, drained: bool) -> tuple[AgentView, Json]:
        """Give the agent of this id or name nothing new, or work again; also as it came."""
        raw = self.ask_agent("POST" if drained else "DELETE", agent, "drain")
        return self.structured(raw, AgentView), raw

    @contextmanager
    def _naming(self, agent: str | None) -> Iterator[None]:
        """A 404 about an agent says which ones there are."""
        try:
            yield
        except BalancerRefusedError as error:
            if error.status != 404 or agent is None:
                raise
            connected = ", ".join(sorted(view.label for view in self.fleet().agents)) or "none"
            raise BalancerRefusedError(
                404, f"no agent {agent!r} is connected; connected: {connected}"
            ) from error

    def _get(self, path: str) -> Json:
        with clear_errors(self.address):
            answer = self._http.get(path)
            if not path.startswith("/api/v2/agents/"):  # there a 404 is about the agent
                self._must_know(answer)
            refuse_unless_success(answer)
        return self._object(answer.text, path)

    def _object(self, text: str, path: str) -> Json:
        try:
            value = read_json(text)
        except ValueError as error:
            raise BalancerUnreachableError(f"{self.address} speaks no JSON: {error}") from error
        if not isinstance(value, dict):
            raise BalancerUnreachableError(f"{self.address} is no balancer: {value!r:.80} @ {path}")
        return value

    def _must_know(self, answer: httpx.Response) -> None:
        if answer.status_code == 404:
            path = answer.url.path
            paddler = "Paddler's own balancer or " if path.startswith("/api/v2/") else ""
            raise BalancerRefusedError(
                404, f"{self.address} is {paddler}no management service: it has no {path}"
            )

    def _fleet_of(self, raw: Json) -> FleetView:
        return attrs.evolve(self.structured(raw, FleetView), raw=raw)

    def structured(self, raw: Json, shape: type[T]) -> T:
        """``raw`` as a view; BalancerVersionError if it has another shape."""
        try:
            return CONVERTER.structure(raw, shape)
        except (BaseValidationError, TypeError, ValueError) as error:
            problems = "; ".join(cattrs.transform_error(error))
            raise BalancerVersionError(
                f"the balancer at {self.address} is of another version: {problems}"
            ) from error
