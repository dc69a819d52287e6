"""The settings of a balancer, in the order of its help. Times in seconds, sizes in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import attrs

from paddler_trio.setting import MIB, MILLISECOND, Kind, Setting, within_limits
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR, DEFAULT_MANAGEMENT_ADDR

DEFAULT_STATE_DATABASE = "memory://"


@attrs.frozen(kw_only=True, field_transformer=within_limits)
class BalancerConfig:
    """Addresses are ``host:port``; port 0 lets the system choose."""

    inference_addr: Annotated[
        str,
        Setting(
            "host:port of the inference service; port 0 lets the system choose.",
            variable="PADDLER_TRIO_BALANCER_INFERENCE_ADDR",  # clients look at the shorter one
            reading=Kind.ADDRESS,
        ),
    ] = DEFAULT_INFERENCE_ADDR
    management_addr: Annotated[
        str,
        Setting(
            "host:port of the management service, where agents dial in.",
            variable="PADDLER_TRIO_BALANCER_MANAGEMENT_ADDR",
            reading=Kind.ADDRESS,
        ),
    ] = DEFAULT_MANAGEMENT_ADDR
    buffered_request_timeout_s: Annotated[
        float,
        Setting("Milliseconds a request may wait for a slot; then 504.", unit=MILLISECOND, min=0),
    ] = 10.0
    max_buffered_requests: Annotated[
        int,
        Setting(
            "Requests that may wait for each deployment; more get 503. 0 turns waiting off.", min=0
        ),
    ] = 30
    inference_item_timeout_s: Annotated[
        float,
        Setting(
            "Milliseconds an agent may take for the next token; then 504.", unit=MILLISECOND, min=0
        ),
    ] = 30.0
    state_database: Annotated[
        str,
        Setting(
            "memory:// or file:///absolute/path for the desired state; one balancer a file.",
            reading=Kind.STATE_DATABASE,
        ),
    ] = DEFAULT_STATE_DATABASE
    inference_cors_allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "Origin, scheme included, whose pages may use inference. Repeatable.",
            flag="--inference-cors-allowed-host",
        ),
    ] = ()
    management_cors_allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "Origin, scheme included, whose pages may manage. Repeatable.",
            flag="--management-cors-allowed-host",
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "Name under which ports that ask for no key answer too, beside addresses and "
            "names of this machine. Repeatable.",
            flag="--allowed-host",
            reading=Kind.HOST_NAMES,
        ),
    ] = ()
    statsd_addr: Annotated[
        str | None,
        Setting(
            "host:port of a StatsD server that gets the three gauges of Paddler.",
            reading=Kind.ADDRESS,
        ),
    ] = None
    statsd_interval_s: Annotated[
        float,
        Setting(
            "Milliseconds between two reports to it.",
            flag="--statsd-reporting-interval",
            unit=MILLISECOND,
            min=1,
        ),
    ] = 10.0
    statsd_v1_names: Annotated[
        bool, Setting("Send it slots_idle instead of slots_total, as Paddler 1.x did.")
    ] = False
    metrics_prefix: Annotated[
        str, Setting("Put before every metric's name, as it is.", flag="--statsd-prefix")
    ] = "paddler_"
    drain_timeout_s: Annotated[
        float,
        Setting("Milliseconds running requests may take after SIGTERM.", unit=MILLISECOND, min=0),
    ] = 30.0
    takes_over: Annotated[
        bool,
        Setting(
            "Take over from the balancer that runs on this state file: ports, state and "
            "agents, without an interruption. Where none runs, just start.",
            flag="--take-over",
        ),
    ] = False
    hot_restart_path: Annotated[
        Path | None,
        Setting(
            "Unix socket at which another process may take over; with --state-database "
            "file://PATH it is PATH.handover.",
            flag="--hot-restart-socket",
        ),
    ] = None
    hot_restart_drain_s: Annotated[
        float,
        Setting(
            "Milliseconds running requests may take once another process has taken over.",
            flag="--hot-restart-drain-timeout",
            unit=MILLISECOND,
            min=0,
        ),
    ] = 3600.0
    max_continuations: Annotated[
        int, Setting("How often a request goes on elsewhere after losing its agent.", min=0)
    ] = 2
    continuation_wait_s: Annotated[
        float,
        Setting(
            "Milliseconds an answer waits for an agent that can continue it to connect; then 502.",
            unit=MILLISECOND,
            min=0,
        ),
    ] = 3.0
    agent_silence_s: Annotated[
        float,
        Setting(
            "Milliseconds without a word after which an agent is gone.", unit=MILLISECOND, min=100
        ),
    ] = 5.0
    max_connections: Annotated[
        int, Setting("Open connections to each service; more are closed at once.", min=1)
    ] = 4096
    input_memory_bytes: Annotated[
        int, Setting("MiB that all requests under way may hold; more get 503.", unit=MIB, min=1)
    ] = 256 * 1024**2
    """Messages too; see ``net/server/input_budget.py``."""
    api_key_file: Annotated[
        Path | None, Setting("Keys clients must come with, from `key new`; read anew on SIGHUP.")
    ] = None
    agents_file: Annotated[
        Path | None,
        Setting(
            "Where join tokens and agents' credentials are kept, as hashes; with "
            "--state-database file://PATH it is PATH.agents.json."
        ),
    ] = None
    discoverable: Annotated[
        bool,
        Setting(
            "Announce this balancer on the local network, where `paddler-trio agent --discover` "
            "finds it and joins with a PIN of `join-pin`. Needs the extra `discovery`."
        ),
    ] = False
    legacy_agents: Annotated[
        tuple[str, ...],
        Setting(
            "Network such as 10.0.0.0/24 whose Paddler 4.1 agents, which have no key, may "
            "dial in where others need one. Repeatable.",
            metavar="CIDR",
            reading=Kind.NETWORKS,
        ),
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        Setting(
            "Network such as 10.0.0.0/24 of proxies in front: the last address in their "
            "X-Forwarded-For that is in no such network is the client's. Repeatable.",
            flag="--trusted-proxy",
            metavar="CIDR",
            reading=Kind.PROXIES,
        ),
    ] = ()
    insecure_management: Annotated[
        bool,
        Setting(
            "Ask for no key on the management port: who reaches it manages. Paddler 4.1 "
            "agents have none."
        ),
    ] = False
    tls_cert: Annotated[
        Path | None,
        Setting(
            "Certificate (PEM, its chain behind it) for TLS on every port; read anew on "
            "SIGHUP and when it changes."
        ),
    ] = None
    tls_key: Annotated[Path | None, Setting("The certificate's key (PEM, not encrypted).")] = None
    tls_client_ca: Annotated[
        Path | None, Setting("Authorities (PEM) that sign certificates of clients.")
    ] = None
    tls_client_auth: Annotated[
        str | None,
        Setting(
            "Whether clients show certificates; required if --tls-client-ca is given.",
            metavar="off|optional|required",
        ),
    ] = None
    compat_openai_addr: Annotated[
        str | None,
        Setting(
            "host:port for the OpenAI API alone, with nothing in its answers that OpenAI's "
            "schema does not have; the inference service has it too, with more.",
            reading=Kind.ADDRESS,
        ),
    ] = None
    compat_ollama_addr: Annotated[
        str | None,
        Setting(
            "host:port for Ollama's API, such as 127.0.0.1:11434, where its programs look for it, "
            "with what is below /v1; the inference service has both too.",
            reading=Kind.ADDRESS,
        ),
    ] = None
    reverseproxy_addr: Annotated[
        str | None,
        Setting(
            "host:port where every request is forwarded to a server behind an agent that was "
            "started with --upstream.",
            reading=Kind.ADDRESS,
        ),
    ] = None
    reverseproxy_response_timeout_s: Annotated[
        float,
        Setting(
            "Milliseconds such a server may be silent, before its answer and in it.",
            unit=MILLISECOND,
            min=1,
        ),
    ] = 600.0
    rewrite_host_header: Annotated[
        bool, Setting("Show such servers their own address as the Host header.")
    ] = False
    slots_endpoint: Annotated[
        bool,
        Setting(
            "Answer /slots on --reverseproxy-addr: the slots of all such servers.",
            flag="--slots-endpoint-enable",
        ),
    ] = False
    """They come with the prompts that servers show in them."""
    web_admin_panel_addr: Annotated[
        str | None,
        Setting(
            "host:port for the web admin panel alone, such as 127.0.0.1:8062; the management "
            "service has it at /panel/ anyway.",
            reading=Kind.ADDRESS,
        ),
    ] = None
    capture_prompts: Annotated[
        bool,
        Setting(
            "Show operators the first 4 KiB of each request and answer. Without it no text of "
            "a client is kept."
        ),
    ] = False
    image_hosts: Annotated[
        tuple[str, ...],
        Setting(
            "Host[:port] that images in messages may be fetched from. Repeatable.",
            flag="--image-host",
        ),
    ] = ()
    model_aliases: Annotated[
        tuple[str, ...],
        Setting(
            "A name of the model of the deployment `default`, beside those of its file; the first "
            "one is what answers and /v1/models call it. Repeatable.",
            flag="--model-alias",
            reading=Kind.ALIASES,
        ),
    ] = ()
    strict_model_names: Annotated[
        bool,
        Setting(
            "Refuse OpenAI requests for a model that is not served.",
            flag="--strict-model-names/--no-strict-model-names",
        ),
    ] = False
    strict_openai_fields: Annotated[
        bool,
        Setting(
            "Refuse OpenAI requests with fields that would be ignored and reported.",
            flag="--strict-openai-fields/--no-strict-openai-fields",
        ),
    ] = False
    normalise_prompts: Annotated[
        bool,
        Setting(
            "Take what changes with each request and means nothing (a provider's stamp, the "
            "seconds of the present time) out of the system's texts, so that prefixes are found.",
            flag="--normalise-prompts/--no-normalise-prompts",
        ),
    ] = True
    openai_limits: Annotated[
        tuple[str, ...],
        Setting(
            "name=value, such as max_messages=100; see docs/openai.md. Repeatable.",
            flag="--openai-limit",
            reading=Kind.OPENAI_LIMITS,
        ),
    ] = ()
    rollout_min_ready_s: Annotated[
        float,
        Setting(
            "Milliseconds that the first agent serves a new desired state before others "
            "follow; deployments of `fleet apply` have rules of their own.",
            unit=MILLISECOND,
            min=0,
            max=86_400_000,
        ),
    ] = 10.0
    """Of a ``default`` that Paddler's API brought into being."""
    model_store: Annotated[
        Path | None,
        Setting(
            "Folder in which models are kept for the agents: each is fetched once, and what "
            "is pushed lies there."
        ),
    ] = None
    model_store_size_bytes: Annotated[
        int,
        Setting(
            "What the model store may take of the disk, such as 200GB or 180GiB.",
            flag="--model-store-size",
            metavar="SIZE",
            unset="",
            reading=Kind.SIZE,
        ),
    ] = attrs.field(default=0, validator=attrs.validators.ge(0))
    history_bytes: Annotated[
        int,
        Setting(
            "MiB that the history of metrics and usage may take on the disk, beside a state that "
            "is in a file. 0 keeps it in memory until the balancer ends.",
            flag="--history-size",
            unit=MIB,
            min=0,
        ),
    ] = 256 * 1024**2
    usage_by_user: Annotated[
        bool,
        Setting(
            "Count usage for each user that a client names too, and keep the names. Without it no "
            "name of a user is kept."
        ),
    ] = False
    audit_log: Annotated[
        Path | None,
        Setting("File to which every management action is appended, one JSON a line."),
    ] = None
    """They are in the log and in memory anyway."""
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            "Send spans of requests to this OpenTelemetry collector, OTLP over HTTP, such as "
            "http://127.0.0.1:4318. Needs the extra `tracing`; see docs/tracing.md.",
            metavar="URL",
            reading=Kind.COLLECTOR,
        ),
    ] = None
    trace_sample_ratio: Annotated[
        float,
        Setting(
            "Which part of the traces that begin here is sent; those of a caller follow its flag.",
            min=0,
            max=1,
        ),
    ] = 1.0
    access_log: Annotated[
        Literal["text", "json"] | None,
        Setting(
            "Write a line for each request of a client: logfmt or JSON, without any text of it.",
            words={"off": None, "text": "text", "json": "json"},
        ),
    ] = None
    access_log_file: Annotated[
        Path | None,
        Setting("Where it is appended; opened anew on SIGHUP.", unset="standard output"),
    ] = None
