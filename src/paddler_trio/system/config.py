"""Settings of the operator, validated once: one frozen value a daemon. Times in seconds."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs
from attrs.validators import ge, le

from paddler_trio.errors import ConfigurationError
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.system.machine import available_memory_bytes, granted_physical_cores
from paddler_trio.wire.engine.engine_settings import STREAM_INTERVAL_MS, EngineSettings
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import MAX_AGENT_NAME_CHARS, check_labels

DEFAULT_INFERENCE_ADDR = "127.0.0.1:8061"
DEFAULT_MANAGEMENT_ADDR = "127.0.0.1:8060"
MAX_SLOTS = 4096
"""More than llama.cpp can run (256); an agent that cannot start them reports an issue."""


@attrs.frozen(kw_only=True)
class BalancerConfig:
    """Addresses are ``host:port``; port 0 lets the system choose."""

    inference_addr: str = DEFAULT_INFERENCE_ADDR
    management_addr: str = DEFAULT_MANAGEMENT_ADDR
    buffered_request_timeout_s: float = attrs.field(default=10.0, validator=ge(0))
    max_buffered_requests: int = attrs.field(default=30, validator=ge(0))
    inference_item_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    state_database: str = "memory://"
    inference_cors_allowed_hosts: tuple[str, ...] = ()
    management_cors_allowed_hosts: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Names under which ports that ask for no key answer too; see ``allowed_hosts.py``."""
    metrics_prefix: str = "paddler_"
    statsd_addr: str | None = None
    """The address to which gauges are sent by StatsD; None for nowhere."""
    statsd_interval_s: float = attrs.field(default=10.0, validator=ge(0.001))
    statsd_v1_names: bool = False
    """The names of Paddler 1.x."""
    drain_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    takes_over: bool = False
    """Take over from the balancer that listens at ``hot_restart_path``, if there is one."""
    hot_restart_path: Path | None = None
    """The socket where another process may take over; None for beside the state file. See
    ``hot_restart/``."""
    hot_restart_drain_s: float = attrs.field(default=3600.0, validator=ge(0))
    """The time that requests may take once another process has taken over."""
    max_continuations: int = attrs.field(default=2, validator=ge(0))
    continuation_wait_s: float = attrs.field(default=3.0, validator=ge(0))
    agent_silence_s: float = attrs.field(default=5.0, validator=ge(0.1))
    max_connections: int = attrs.field(default=4096, validator=ge(1))
    input_memory_bytes: int = attrs.field(default=256 * 1024**2, validator=ge(1024**2))
    """The bytes that all requests and messages together may hold; see
    ``net/server/input_budget.py``."""
    api_key_file: Path | None = None
    """Keys that clients must come with; see ``balancer/keys/api_keys.py``."""
    agents_file: Path | None = None
    """Join tokens and agents' credentials, hashes only; None for beside the state database. See
    ``balancer/joining/stored_agents.py``."""
    legacy_agents: tuple[str, ...] = ()
    """Networks from which agents of Paddler 4.1 dial in with nothing to show."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies; see ``http/trusted_proxies.py``."""
    insecure_management: bool = False
    """Whoever reaches the management port may manage, keys or not."""
    tls_cert: Path | None = None
    """The certificate, with ``tls_key``, of TLS on every port; see
    ``net/tls/server_context.py``."""
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_auth: str | None = None
    """``off``, ``optional`` or ``required``; None for what follows from ``tls_client_ca``."""
    compat_openai_addr: str | None = None
    """Another port for the OpenAI-compatible surface alone, exactly as OpenAI's schema has it; with
    more in its answers it is on the inference port anyway."""
    reverseproxy_addr: str | None = None
    """A port whose requests servers behind agents answer; see ``balancer/reverse_proxy``."""
    reverseproxy_response_timeout_s: float = attrs.field(default=600.0, validator=ge(0.001))
    rewrite_host_header: bool = False
    """Servers are shown their own address as ``Host``."""
    slots_endpoint: bool = False
    """``/slots`` is answered there, with the prompts that servers show in it."""
    web_admin_panel_addr: str | None = None
    """A port for the web admin panel alone; it is below ``/panel/`` of the management port too."""
    image_hosts: tuple[str, ...] = ()
    strict_model_names: bool = False
    strict_openai_fields: bool = False
    normalise_prompts: bool = True
    """Stamps that change with each request are taken out of conversations."""
    rollout_min_ready_s: float = attrs.field(default=10.0, validator=[ge(0), le(86_400)])
    """The time that the first agent serves a new state before others follow; of a ``default`` that
    Paddler's API brought into being."""
    capture_prompts: bool = False
    """Operators see the beginnings of prompts and answers; otherwise no text is ever kept."""
    model_store: Path | None = None
    """The folder of the model store; None for no store."""
    model_store_size_bytes: int = attrs.field(default=0, validator=ge(0))
    """The bytes that the store may take of the disk."""
    audit_log: Path | None = None
    """The file to which management actions are appended; None: they are in the log and in memory
    only."""
    otlp_endpoint: str | None = None
    """The address to which spans of requests are sent; None for no traces."""
    trace_sample_ratio: float = attrs.field(default=1.0, validator=[ge(0), le(1)])
    """The part of the traces that begin here; those of a caller follow its flag."""
    access_log: Literal["text", "json"] | None = None
    """The form of a line for each request of a client; None for no access log."""
    access_log_file: Path | None = None
    """The file of the access log; None for standard output."""
    openai_limits: tuple[str, ...] = ()
    """``name=value`` each; the names are those of ``balancer/apis/limits.py``."""


@attrs.frozen(kw_only=True)
class UpstreamConfig:
    """The server that an agent stands in front of.

    Args:
      url: ``http(s)://host:port``.
      slots: how many requests it works on at once; None: what it says itself.
      key_file: holds the key that it asks for; read anew when it has changed.
      ca: certificates (PEM) by which it is verified, read anew in the same way; None for those of
        the system.
      deployment: the name under which it is offered, with others of the same name.
      interval_s: between two looks at it.
      stream_interval_ms: pieces of its streams may wait so long for the next ones; 0 for never.
      external_address: ``host:port`` by which people know it; None for that of ``url``.
    """

    url: str
    slots: int | None = attrs.field(default=None)
    key_file: Path | None = None
    ca: Path | None = None
    deployment: str = "upstream"
    interval_s: float = attrs.field(default=1.0, validator=[ge(0.1), le(3600)])
    stream_interval_ms: float = STREAM_INTERVAL_MS
    external_address: str | None = None


@attrs.frozen(kw_only=True)
class AgentConfig:
    """``threads`` are the engine's; a swap waits ``drain_timeout_s`` for running answers."""

    management_host: str
    management_port: int
    slots: int = attrs.field(validator=[ge(1), le(MAX_SLOTS)])
    upstream: UpstreamConfig | None = None
    """Instead of models of its own."""
    name: str | None = None
    threads: int = attrs.field(factory=lambda: default_threads(), validator=ge(1))
    engine: EngineSettings = attrs.field(factory=EngineSettings)
    drain_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    trusts_messages: bool = False
    """Control tokens that messages spell become control tokens, as in Paddler."""
    otlp_endpoint: str | None = None
    """The address to which spans of requests are sent; None for no traces."""
    has_tls: bool = False
    """The balancer is dialled over TLS, and verified as the next four say; see
    ``net/tls/client_tls.py``."""
    tls_ca: Path | None = None
    tls_fingerprint: str | None = None
    tls_client_cert: Path | None = None
    tls_client_key: Path | None = None
    token_file: Path | None = None
    """Holds the API key this agent shows to its balancer; read anew at every dialling."""
    has_credential: bool = False
    """``token_file`` holds the credential of this agent alone; its secret is replaced once a
    day."""
    hf_token_file: Path | None = None
    """Holds the token for the hub that models come from; read anew for every download."""
    checks_fit: bool = True
    """A model that does not fit the memory is refused before the one in force is let go."""
    memory: MemoryLimits = attrs.field(factory=MemoryLimits)
    loads_beside: bool = True
    """A new model is loaded beside the one in force where it is known that both fit."""
    labels: Mapping[str, str] = attrs.field(
        factory=dict, validator=lambda *given: _labels(given[2])
    )
    """The labels that deployments choose this host by."""
    metrics_addr: str | None = None
    """``host:port`` where the agent shows its own metrics; None for nowhere."""
    metrics_tls_cert: Path | None = None
    """The certificate, with ``metrics_tls_key``, of TLS on that port, as on a balancer's."""
    metrics_tls_key: Path | None = None
    metrics_tls_client_ca: Path | None = None
    """Authorities of the scrapers' certificates, which are then required."""


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Return labels from ``KEY=VALUE``; ConfigurationError names the one that is wrong."""
    labels: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"{text[:80]!r} is not a label: write KEY=VALUE")
        if labels.setdefault(key, value) != value:
            raise ConfigurationError(f"the label {key[:80]!r} is given twice")
    _labels(labels)
    return labels


def check_display_name(name: str) -> None:
    """Raise ConfigurationError if people could not tell an agent by it, or balancers refuse it.
    Those that join with a token have stricter rules."""
    if not name or name.isspace():
        raise ConfigurationError(f"{name[:80]!r} is no name: give one, or leave the option out")
    if len(name) > MAX_AGENT_NAME_CHARS:
        raise ConfigurationError(
            f"{name[:40]!r}... has {len(name)} characters, the limit is {MAX_AGENT_NAME_CHARS}"
        )


def _labels(labels: Mapping[str, str]) -> None:
    try:
        check_labels(labels)
    except ShapeError as error:
        raise ConfigurationError(error.text) from error


def default_threads() -> int:
    """Return one thread for each physical core: threads give way where event loops or other
    programs need a core."""
    return granted_physical_cores()


def default_prefix_cache_bytes() -> int:
    """Return a tenth of the memory that is available now, 4 GiB at most: prefixes are worth less
    than room for a model."""
    available = available_memory_bytes() or 0
    return min(available // 10, 4 * 1024**3)


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``, an IPv6 host in brackets.

    Errors:
      ConfigurationError: no host, no port, or a port outside 0 to 65535.
    """
    host, _, digits = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif any(each in host for each in ":[]"):
        host = ""
    is_port = digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= 65_535
    if not (host and is_port and _can_be_looked_up(host)):
        raise ConfigurationError(
            f"{address!r} is not an address: write host:port or [ipv6]:port with a port from 0 to "
            "65535, such as 127.0.0.1:8060"
        )
    return host, int(digits)


def _can_be_looked_up(host: str) -> bool:
    """Return whether the resolver takes the name: it crashes on empty labels and on those over 63
    bytes, also where a name that is not found would only be tried again."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_loopback_host(host: str) -> bool:
    """Return whether only this machine has what this name or address means."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
