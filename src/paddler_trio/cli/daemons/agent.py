"""``paddler-trio agent``: run an agent until it is asked to stop; ``agent drain``: spare one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.access.agent_membership import membership
from paddler_trio.cli.access.join_command import StateDirOption
from paddler_trio.cli.daemons.daemon_commands import DaemonGroup
from paddler_trio.cli.daemons.engine_options import (
    DEFAULT_DRAFTS,
    DEFAULT_IMAGE_CACHE_MIB,
    MIB,
    DraftModelOption,
    FlashAttention,
    FlashAttentionOption,
    ImageCacheOption,
    KvLayout,
    KvLayoutOption,
    KvOffloadOption,
    LoraOption,
    MainGpuOption,
    MaxDraftsOption,
    MlockOption,
    MmapOption,
    PrefixCacheOption,
    RopeFreqBaseOption,
    RopeFreqScaleOption,
    RopeScaling,
    RopeScalingOption,
    RpcOption,
    SplitMode,
    SplitModeOption,
    StreamIntervalOption,
    SwaFullOption,
    TargetPassOption,
    TensorOverrideOption,
    TensorSplitOption,
    YarnOrigCtxOption,
    draft_model_path,
    rpc_servers,
)
from paddler_trio.cli.daemons.engine_options import tensor_split as parse_tensor_split
from paddler_trio.cli.daemons.instance_options import told_address, told_name
from paddler_trio.cli.daemons.memory_options import (
    FitCheck,
    FitOption,
    GpuMemoryReserveOption,
    LoadBeside,
    LoadBesideOption,
    MemoryLimitOption,
    MemoryReserveOption,
    memory_limits,
)
from paddler_trio.cli.daemons.options import (
    JsonOption,
    KeyFileOption,
    LogJsonOption,
    LogLevel,
    LogLevelOption,
    ManagementAddrOption,
)
from paddler_trio.cli.daemons.settings_option import SettingsFileOption, report_unknown_variables
from paddler_trio.cli.daemons.telemetry_options import OtlpEndpointOption
from paddler_trio.cli.daemons.tls_options import checked_address, with_tls
from paddler_trio.cli.daemons.upstream_options import (
    DeploymentOption,
    MonitoringIntervalOption,
    UpstreamCaOption,
    UpstreamExternalAddrOption,
    UpstreamKeyFileOption,
    UpstreamOption,
    upstream_config,
)
from paddler_trio.cli.llama_presence import require_llama
from paddler_trio.cli.model.judged_values import ADDRESS, BALANCER_ADDRESS, LABELS, NAME
from paddler_trio.cli.terminal import one_line_errors, print_json, stdout
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.config import (
    DEFAULT_MANAGEMENT_ADDR,
    MAX_SLOTS,
    AgentConfig,
    default_prefix_cache_bytes,
    default_threads,
    parse_labels,
)
from paddler_trio.wire.engine.engine_settings import STREAM_INTERVAL_MS, EngineSettings

MISSING = {
    "--management-addr": "give host:port of the balancer's management service, such as "
    f"{DEFAULT_MANAGEMENT_ADDR}, or let this machine join one with `paddler-trio join`",
    "--slots": f"give how many requests run at once, 1 to {MAX_SLOTS}",
}
"""What to give for options that are required, mostly."""

agent = typer.Typer(
    cls=DaemonGroup,
    invoke_without_command=True,
    subcommand_metavar="[drain NAME]",
)
"""A command that also has sub-commands: without one, it runs the daemon."""


@agent.callback()
@with_tls
def run(
    context: typer.Context,
    management_addr: Annotated[
        str | None,
        typer.Option(
            envvar="PADDLER_TRIO_MANAGEMENT_ADDR",
            callback=BALANCER_ADDRESS,
            help="[https://]host:port of the balancer's management service.",
            show_default="required, unless this machine has joined",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_SLOTS,
            help="How many requests to run at once; llama.cpp runs at most 256.",
            show_default="required, unless a server in --upstream says how many it has",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(callback=NAME, help="What people call this agent, in lists and results."),
    ] = None,
    upstream: UpstreamOption = None,
    upstream_key_file: UpstreamKeyFileOption = None,
    upstream_ca: UpstreamCaOption = None,
    upstream_external_addr: UpstreamExternalAddrOption = None,
    deployment: DeploymentOption = None,
    monitoring_interval: MonitoringIntervalOption = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads of the engine.",
            show_default="one a physical core",
        ),
    ] = None,
    drain_timeout: Annotated[
        int,
        typer.Option(
            min=0, help="Milliseconds running requests may take after SIGTERM or a model swap."
        ),
    ] = 30_000,
    trust_messages: Annotated[
        bool,
        typer.Option(
            "--trust-messages",
            help="Let messages spell control tokens; without it they are read as plain text.",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="PADDLER_TRIO_TOKEN_FILE",
            help="File with an API key of the scope management, if the balancer asks for one.",
        ),
    ] = None,
    credential_file: Annotated[
        Path | None,
        typer.Option(
            "--credential-file",
            envvar="PADDLER_TRIO_CREDENTIAL_FILE",
            help="File with the credential that `paddler-trio join` brought.",
            show_default="the one in --state-dir, if it is for this balancer",
        ),
    ] = None,
    state_dir: StateDirOption = None,
    hf_token_file: Annotated[
        Path | None,
        typer.Option(
            "--hf-token-file",
            envvar="PADDLER_TRIO_HF_TOKEN_FILE",
            help="File with the token for the hub that models come from; else HF_TOKEN, "
            "HF_TOKEN_PATH or where `hf auth login` puts it.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            callback=LABELS,
            help="What deployments may choose this agent by, such as gpu=yes; may be repeated.",
        ),
    ] = None,
    metrics_addr: Annotated[
        str | None,
        typer.Option(
            "--metrics-addr",
            metavar="HOST:PORT",
            callback=ADDRESS,
            help="Show this agent's own metrics there, on /metrics; such as 127.0.0.1:8064.",
            show_default="nowhere",
        ),
    ] = None,
    metrics_tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM) for TLS on --metrics-addr; read anew when it changes."
        ),
    ] = None,
    metrics_tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's key (PEM, not encrypted).")
    ] = None,
    metrics_tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="Authorities (PEM): who scrapes must show a certificate of theirs."),
    ] = None,
    fit: FitOption = FitCheck.on,
    load_beside: LoadBesideOption = LoadBeside.auto,
    memory_limit: MemoryLimitOption = None,
    memory_reserve: MemoryReserveOption = None,
    gpu_memory_reserve: GpuMemoryReserveOption = None,
    kv_layout: KvLayoutOption = KvLayout.SPLIT,
    target_pass_ms: TargetPassOption = None,
    stream_interval_ms: StreamIntervalOption = STREAM_INTERVAL_MS,
    prefix_cache_ram: PrefixCacheOption = None,
    image_cache_ram: ImageCacheOption = DEFAULT_IMAGE_CACHE_MIB,
    max_drafts: MaxDraftsOption = 0,
    draft_model: DraftModelOption = None,
    flash_attention: FlashAttentionOption = FlashAttention.auto,
    split_mode: SplitModeOption = SplitMode.layer,
    main_gpu: MainGpuOption = 0,
    tensor_split: TensorSplitOption = None,
    tensor_override: TensorOverrideOption = None,
    kv_offload: KvOffloadOption = True,
    mmap: MmapOption = True,
    mlock: MlockOption = False,
    lora: LoraOption = None,
    rope_scaling: RopeScalingOption = RopeScaling.model,
    rope_freq_base: RopeFreqBaseOption = 0.0,
    rope_freq_scale: RopeFreqScaleOption = 0.0,
    yarn_orig_ctx: YarnOrigCtxOption = 0,
    swa_full: SwaFullOption = False,
    rpc: RpcOption = None,
    otlp_endpoint: OtlpEndpointOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_json: LogJsonOption = None,
    config_file: SettingsFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Run an agent: it dials in, loads the desired model and works on requests in slots."""
    if context.invoked_subcommand is not None:
        return
    with one_line_errors():
        member = membership(
            management_addr=None if management_addr is None else told_address(management_addr),
            name=None if name is None else told_name(name),
            token_file=token_file,
            credential_file=credential_file,
            state_dir=state_dir,
        )
    management_addr, name = member.address, member.name
    with one_line_errors():
        server = upstream_config(
            url=upstream,
            slots=slots,
            key_file=upstream_key_file,
            ca=upstream_ca,
            deployment=deployment,
            interval_s=monitoring_interval,
            stream_interval_ms=stream_interval_ms,
            external_addr=upstream_external_addr,
        )
        metrics_addr = None if metrics_addr is None else told_address(metrics_addr)
    if management_addr is None or (slots is None and server is None):
        missing = "--management-addr" if management_addr is None else "--slots"
        raise typer.BadParameter(f"Missing option {missing!r}: {MISSING[missing]}")
    if server is None:
        with one_line_errors():
            require_llama()
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import structlog
    import trio

    from paddler_trio.agent.assembly.agent_daemon import serve_agent
    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.system.systemd_notify import SystemdNotifier

    tls = member.trusting(tls)
    address = checked_address(management_addr, tls, option="--management-addr")
    if address.is_tls:
        with one_line_errors():
            tls.context()  # at every dialling again; what is wrong from the start ends it here
    try:
        labels = parse_labels(label or [])
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--label") from error
    config = AgentConfig(
        management_host=address.host,
        management_port=address.port,
        has_tls=address.is_tls,
        tls_ca=tls.ca_file,
        tls_fingerprint=tls.fingerprint,
        tls_client_cert=tls.cert_file,
        tls_client_key=tls.key_file,
        slots=slots or 1,
        upstream=server,
        name=name,
        metrics_addr=metrics_addr,
        metrics_tls_cert=metrics_tls_cert,
        metrics_tls_key=metrics_tls_key,
        metrics_tls_client_ca=metrics_tls_client_ca,
        threads=threads or default_threads(),
        trusts_messages=trust_messages,
        engine=EngineSettings(
            unified=kv_layout is KvLayout.UNIFIED,
            target_pass_ms=target_pass_ms,
            stream_interval_ms=stream_interval_ms,
            prefix_store_bytes=default_prefix_cache_bytes()
            if prefix_cache_ram is None
            else prefix_cache_ram * MIB,
            image_cache_bytes=image_cache_ram * MIB,
            max_drafts=max_drafts or (DEFAULT_DRAFTS if draft_model is not None else 0),
            draft_model=draft_model_path(draft_model),
            flash_attention=flash_attention.value,
            split_mode=split_mode.value,
            main_gpu=main_gpu,
            tensor_split=parse_tensor_split(tensor_split),
            tensor_overrides=tensor_override or [],
            offload_kqv=kv_offload,
            use_mmap=mmap,
            use_mlock=mlock,
            lora=lora or [],
            rope_scaling="" if rope_scaling is RopeScaling.model else rope_scaling.value,
            rope_freq_base=rope_freq_base,
            rope_freq_scale=rope_freq_scale,
            yarn_orig_ctx=yarn_orig_ctx,
            swa_full=swa_full,
            rpc=rpc_servers(rpc),
        ),
        drain_timeout_s=drain_timeout / 1000,
        otlp_endpoint=otlp_endpoint,
        token_file=member.token_file,
        has_credential=member.has_credential,
        hf_token_file=hf_token_file,
        checks_fit=fit is FitCheck.on,
        memory=memory_limits(memory_limit, memory_reserve, gpu_memory_reserve),
        loads_beside=load_beside is LoadBeside.auto,
        labels=labels,
    )
    notifier = SystemdNotifier.from_environment()
    log = structlog.get_logger("agent")

    async def body(stop: trio.Event) -> None:
        report_unknown_variables(context)
        if member.ignored is not None:
            log.warning("a credential that is here is not used", reason=member.ignored)
        await serve_agent(config, stop, notifier=notifier)

    run_daemon(body, log_level=log_level, log_json=log_json)


@agent.command()
@with_tls
def drain(
    name: Annotated[
        str, typer.Argument(help="Id of a connected agent, or its name if no other has it.")
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    as_json: JsonOption = False,
    management_addr: ManagementAddrOption = DEFAULT_MANAGEMENT_ADDR,
    key_file: KeyFileOption = None,
    tls: ClientTls = SYSTEM_TRUST,
) -> None:
    """Let an agent finish what it has and give it nothing new, until told otherwise."""
    from paddler_trio.cli.management_client import ManagementClient

    with one_line_errors(), ManagementClient.open(management_addr, key_file, tls) as client:
        view, raw = client.drain(name, drained=not undo)
        if as_json:
            print_json(raw)
        elif undo:
            stdout().print(f"{view.label} gets work again")
        else:
            stdout().print(f"{view.label} gets nothing new; it works on {view.slots_processing}")
