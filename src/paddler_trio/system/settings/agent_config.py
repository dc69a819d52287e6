"""The settings of an agent, in the order of its help. Times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import attrs

from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.setting import MIB, MILLISECOND, Kind, Setting, within_limits
from paddler_trio.system.config import MAX_SLOTS, check_agent_labels, default_threads
from paddler_trio.wire.engine.engine_settings import STREAM_INTERVAL_MS, EngineSettings

MEMORY_PANEL: Final = "Memory"


@attrs.frozen(kw_only=True, field_transformer=within_limits)
class UpstreamConfig:
    """The server that an agent stands in front of.

    Args:
      slots: how many requests it works on at once; None: what it says itself.
      stream_interval_ms: pieces of its streams may wait so long for the next ones; 0 for never.
    """

    url: Annotated[
        str,
        Setting(
            "Run no model: offer the slots of the llama-server at http(s)://host:port, or of any "
            "server with OpenAI's API if --slots is given.",
            flag="--upstream",
            metavar="URL",
            unset="run models",
            reading=Kind.SERVER,
        ),
    ]
    key_file: Annotated[
        Path | None,
        Setting(
            "File with the key that the server in --upstream asks for; read anew when it changes.",
            flag="--upstream-key-file",
        ),
    ] = None
    ca: Annotated[
        Path | None,
        Setting(
            "Authorities (PEM) by which an https server in --upstream is verified; read anew when "
            "they change.",
            flag="--upstream-ca",
            unset="those of the system",
        ),
    ] = None
    external_address: Annotated[
        str | None,
        Setting(
            "With --upstream: the server's address in lists of agents. Nothing is sent there: "
            "requests reach the server through this agent.",
            flag="--upstream-external-addr",
            metavar="HOST:PORT",
            unset="that of --upstream",
            reading=Kind.ADDRESS,
        ),
    ] = None
    deployment: Annotated[
        str,
        Setting(
            "With --upstream: the model name under which requests ask for this server, and for "
            "others of the same name.",
            unset="upstream",
            reading=Kind.DEPLOYMENT,
        ),
    ] = "upstream"
    interval_s: Annotated[
        float,
        Setting(
            "With --upstream: seconds between two looks at the server.",
            flag="--monitoring-interval",
            unset="1",
            min=0.1,
            max=3600,
        ),
    ] = 1.0
    slots: int | None = None
    stream_interval_ms: float = STREAM_INTERVAL_MS


@attrs.frozen(kw_only=True, field_transformer=within_limits)
class AgentConfig:
    """The settings of an agent; those of its balancer come last."""

    slots: Annotated[
        int,
        Setting(
            "How many requests to run at once; llama.cpp runs at most 256.",
            unset="required, unless a server in --upstream says how many it has",
            min=1,
            max=MAX_SLOTS,
        ),
    ] = 1
    name: Annotated[
        str | None,
        Setting("What people call this agent, in lists and results.", reading=Kind.NAME),
    ] = None
    upstream: UpstreamConfig | None = None
    """Instead of models of its own."""
    threads: Annotated[
        int, Setting("Threads of the engine.", unset="one a physical core", min=1)
    ] = attrs.field(factory=default_threads)
    drain_timeout_s: Annotated[
        float,
        Setting(
            "Milliseconds running requests may take after SIGTERM or a model swap.",
            unit=MILLISECOND,
            min=0,
        ),
    ] = 30.0
    trusts_messages: Annotated[
        bool,
        Setting(
            "Let messages spell control tokens; without it they are read as plain text.",
            flag="--trust-messages",
        ),
    ] = False
    token_file: Annotated[
        Path | None,
        Setting("File with an API key of the scope management, if the balancer asks for one."),
    ] = None
    """Read anew at every dialling."""
    credential_file: Annotated[
        Path | None,
        Setting(
            "File with the credential that `paddler-trio join` brought.",
            unset="the one in --state-dir, if it is for this balancer",
        ),
    ] = None
    """The same; it is this agent's alone, and its secret is replaced once a day."""
    state_dir: Annotated[
        Path | None,
        Setting(
            "Where this agent keeps its credential; one folder for each agent of a machine.",
            unset="STATE_DIRECTORY, else ~/.local/state/paddler-trio",
        ),
    ] = None
    hf_token_file: Annotated[
        Path | None,
        Setting(
            "File with the token for the hub that models come from; else HF_TOKEN, "
            "HF_TOKEN_PATH or where `hf auth login` puts it."
        ),
    ] = None
    """Read anew for every download."""
    labels: Annotated[
        Mapping[str, str],
        Setting(
            "What deployments may choose this agent by, such as gpu=yes; may be repeated.",
            flag="--label",
            metavar="KEY=VALUE",
            reading=Kind.LABELS,
        ),
    ] = attrs.field(factory=dict, validator=lambda *given: check_agent_labels(given[2]))
    metrics_addr: Annotated[
        str | None,
        Setting(
            "Show this agent's own metrics there, on /metrics; such as 127.0.0.1:8064.",
            metavar="HOST:PORT",
            unset="nowhere",
            reading=Kind.ADDRESS,
        ),
    ] = None
    metrics_tls_cert: Annotated[
        Path | None,
        Setting("Certificate (PEM) for TLS on --metrics-addr; read anew when it changes."),
    ] = None
    metrics_tls_key: Annotated[
        Path | None, Setting("The certificate's key (PEM, not encrypted).")
    ] = None
    metrics_tls_client_ca: Annotated[
        Path | None, Setting("Authorities (PEM): who scrapes must show a certificate of theirs.")
    ] = None
    checks_fit: Annotated[
        bool,
        Setting(
            "Refuse a model that does not fit the free memory, and keep serving the one before "
            "it; off loads it anyway.",
            flag="--fit",
            panel=MEMORY_PANEL,
            words={"on": True, "off": False},
        ),
    ] = True
    loads_beside: Annotated[
        bool,
        Setting(
            "Load a new model beside the one in force where both fit, so that there is no gap; "
            "off, or where they do not fit, ends the old one first. Needs --fit on.",
            flag="--load-beside",
            panel=MEMORY_PANEL,
            words={"auto": True, "off": False},
        ),
    ] = True
    memory_limit_bytes: Annotated[
        int | None,
        Setting(
            "MiB of host memory that models may take together, whatever is free.",
            panel=MEMORY_PANEL,
            unset="no limit",
            unit=MIB,
            min=1,
        ),
    ] = None
    memory_reserve_bytes: Annotated[
        int | None,
        Setting(
            "MiB of host memory that a model leaves free.",
            panel=MEMORY_PANEL,
            unset="2048, or a tenth of a machine with less than 20 GiB",
            unit=MIB,
            min=0,
        ),
    ] = None
    gpu_memory_reserve_bytes: Annotated[
        int | None,
        Setting(
            "MiB that a model leaves free on each GPU.",
            panel=MEMORY_PANEL,
            unset="1024, or a twentieth of a GPU with less than 20 GiB",
            unit=MIB,
            min=0,
        ),
    ] = None
    engine: EngineSettings = attrs.field(factory=EngineSettings)
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            "Send spans of requests to this OpenTelemetry collector, OTLP over HTTP, such as "
            "http://127.0.0.1:4318. Needs the extra `tracing`; see docs/tracing.md.",
            metavar="URL",
            reading=Kind.COLLECTOR,
        ),
    ] = None
    management_host: str
    management_port: int
    has_tls: bool = False
    """The balancer is dialled over TLS, and verified as the next four say; see
    ``net/tls/client_tls.py``."""
    tls_ca: Path | None = None
    tls_fingerprint: str | None = None
    tls_client_cert: Path | None = None
    tls_client_key: Path | None = None

    @property
    def secret_file(self) -> Path | None:
        """Return the file of what this agent shows to its balancer."""
        return self.token_file or self.credential_file

    @property
    def memory(self) -> MemoryLimits:
        """Return what models may take of the memory."""
        return MemoryLimits(
            host_limit_bytes=self.memory_limit_bytes,
            host_reserve_bytes=self.memory_reserve_bytes,
            gpu_reserve_bytes=self.gpu_memory_reserve_bytes,
        )
