"""``paddler-trio balancer``: run a balancer until it is asked to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.daemons.instance_options import told_address
from paddler_trio.cli.daemons.options import LogJsonOption, LogLevel, LogLevelOption, size_in_bytes
from paddler_trio.cli.daemons.settings_option import SettingsFileOption, report_unknown_variables
from paddler_trio.cli.daemons.telemetry_options import (
    AccessLog,
    AccessLogFileOption,
    AccessLogOption,
    OtlpEndpointOption,
    TraceSampleRatioOption,
    access_log_form,
)
from paddler_trio.cli.model.judged_values import (
    ADDRESS,
    DEFAULT_STATE_DATABASE,
    HOST_NAMES,
    NETWORKS,
    OPENAI_LIMITS,
    PROXIES,
    STATE_DATABASE,
    judged,
)
from paddler_trio.cli.terminal import one_line_errors
from paddler_trio.system.config import (
    DEFAULT_INFERENCE_ADDR,
    DEFAULT_MANAGEMENT_ADDR,
    BalancerConfig,
)


def balancer(
    context: typer.Context,
    inference_addr: Annotated[
        str,
        typer.Option(
            callback=ADDRESS,
            envvar="PADDLER_TRIO_BALANCER_INFERENCE_ADDR",  # the shorter one is where clients look
            help="host:port of the inference service; port 0 lets the system choose.",
        ),
    ] = DEFAULT_INFERENCE_ADDR,
    management_addr: Annotated[
        str,
        typer.Option(
            callback=ADDRESS,
            envvar="PADDLER_TRIO_BALANCER_MANAGEMENT_ADDR",
            help="host:port of the management service, where agents dial in.",
        ),
    ] = DEFAULT_MANAGEMENT_ADDR,
    buffered_request_timeout: Annotated[
        int, typer.Option(min=0, help="Milliseconds a request may wait for a slot; then 504.")
    ] = 10_000,
    max_buffered_requests: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests that may wait for each deployment; more get 503. 0 turns waiting off.",
        ),
    ] = 30,
    inference_item_timeout: Annotated[
        int,
        typer.Option(min=0, help="Milliseconds an agent may take for the next token; then 504."),
    ] = 30_000,
    state_database: Annotated[
        str,
        typer.Option(
            callback=STATE_DATABASE,
            help="memory:// or file:///absolute/path for the desired state; one balancer a file.",
        ),
    ] = DEFAULT_STATE_DATABASE,
    inference_cors_allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Origin, scheme included, whose pages may use inference. Repeatable."),
    ] = None,
    management_cors_allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Origin, scheme included, whose pages may manage. Repeatable."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name under which ports that ask for no key answer too, beside addresses and "
            "names of this machine. Repeatable.",
            callback=HOST_NAMES,
        ),
    ] = None,
    statsd_addr: Annotated[
        str | None,
        typer.Option(
            callback=ADDRESS,
            help="host:port of a StatsD server that gets the three gauges of Paddler.",
        ),
    ] = None,
    statsd_reporting_interval: Annotated[
        int, typer.Option(min=1, help="Milliseconds between two reports to it.")
    ] = 10_000,
    statsd_v1_names: Annotated[
        bool,
        typer.Option(
            "--statsd-v1-names",
            help="Send it slots_idle instead of slots_total, as Paddler 1.x did.",
        ),
    ] = False,
    statsd_prefix: Annotated[
        str, typer.Option("--statsd-prefix", help="Put before every metric's name, as it is.")
    ] = "paddler_",
    drain_timeout: Annotated[
        int, typer.Option(min=0, help="Milliseconds running requests may take after SIGTERM.")
    ] = 30_000,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over from the balancer that runs on this state file: ports, state and "
            "agents, without an interruption. Where none runs, just start.",
        ),
    ] = False,
    hot_restart_socket: Annotated[
        Path | None,
        typer.Option(
            help="Unix socket at which another process may take over; with --state-database "
            "file://PATH it is PATH.handover."
        ),
    ] = None,
    hot_restart_drain_timeout: Annotated[
        int,
        typer.Option(
            min=0,
            help="Milliseconds running requests may take once another process has taken over.",
        ),
    ] = 3_600_000,
    max_continuations: Annotated[
        int,
        typer.Option(min=0, help="How often a request goes on elsewhere after losing its agent."),
    ] = 2,
    continuation_wait: Annotated[
        int,
        typer.Option(
            min=0,
            help="Milliseconds an answer waits for an agent that can continue it to connect; "
            "then 502.",
        ),
    ] = 3_000,
    agent_silence: Annotated[
        int, typer.Option(min=100, help="Milliseconds without a word after which an agent is gone.")
    ] = 5_000,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections to each service; more are closed at once.")
    ] = 4096,
    input_memory: Annotated[
        int,
        typer.Option(min=1, help="MiB that all requests under way may hold; more get 503."),
    ] = 256,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="Keys clients must come with, from `key new`; read anew on SIGHUP."),
    ] = None,
    agents_file: Annotated[
        Path | None,
        typer.Option(
            help="Where join tokens and agents' credentials are kept, as hashes; with "
            "--state-database file://PATH it is PATH.agents.json."
        ),
    ] = None,
    legacy_agents: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            callback=NETWORKS,
            help="Network such as 10.0.0.0/24 whose Paddler 4.1 agents, which have no key, may "
            "dial in where others need one. Repeatable.",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            callback=PROXIES,
            help="Network such as 10.0.0.0/24 of proxies in front: the last address in their "
            "X-Forwarded-For that is in no such network is the client's. Repeatable.",
        ),
    ] = None,
    insecure_management: Annotated[
        bool,
        typer.Option(
            "--insecure-management",
            help="Ask for no key on the management port: who reaches it manages. Paddler 4.1 "
            "agents have none.",
        ),
    ] = False,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM, its chain behind it) for TLS on every port; read anew on "
            "SIGHUP and when it changes."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's key (PEM, not encrypted).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authorities (PEM) that sign certificates of clients.")
    ] = None,
    tls_client_auth: Annotated[
        str | None,
        typer.Option(
            metavar="off|optional|required",
            help="Whether clients show certificates; required if --tls-client-ca is given.",
        ),
    ] = None,
    compat_openai_addr: Annotated[
        str | None,
        typer.Option(
            callback=ADDRESS,
            help="host:port for the OpenAI API alone, with nothing in its answers that OpenAI's "
            "schema does not have; the inference service has it too, with more.",
        ),
    ] = None,
    reverseproxy_addr: Annotated[
        str | None,
        typer.Option(
            callback=ADDRESS,
            help="host:port where every request is forwarded to a server behind an agent that was "
            "started with --upstream.",
        ),
    ] = None,
    reverseproxy_response_timeout: Annotated[
        int,
        typer.Option(
            min=1, help="Milliseconds such a server may be silent, before its answer and in it."
        ),
    ] = 600_000,
    rewrite_host_header: Annotated[
        bool,
        typer.Option(
            "--rewrite-host-header", help="Show such servers their own address as the Host header."
        ),
    ] = False,
    slots_endpoint_enable: Annotated[
        bool,
        typer.Option(
            "--slots-endpoint-enable",
            help="Answer /slots on --reverseproxy-addr: the slots of all such servers.",
        ),
    ] = False,
    web_admin_panel_addr: Annotated[
        str | None,
        typer.Option(
            callback=ADDRESS,
            help="host:port for the web admin panel alone, such as 127.0.0.1:8062; the management "
            "service has it at /panel/ anyway.",
        ),
    ] = None,
    capture_prompts: Annotated[
        bool,
        typer.Option(
            "--capture-prompts",
            help="Show operators the first 4 KiB of each request and answer. Without it no text of "
            "a client is kept.",
        ),
    ] = False,
    image_host: Annotated[
        list[str] | None,
        typer.Option(help="Host[:port] that images in messages may be fetched from. Repeatable."),
    ] = None,
    strict_model_names: Annotated[
        bool, typer.Option(help="Refuse OpenAI requests for a model that is not served.")
    ] = False,
    strict_openai_fields: Annotated[
        bool,
        typer.Option(help="Refuse OpenAI requests with fields that would be ignored and reported."),
    ] = False,
    normalise_prompts: Annotated[
        bool,
        typer.Option(
            help="Take what changes with each request and means nothing (a provider's stamp, the "
            "seconds of the present time) out of the system's texts, so that prefixes are found."
        ),
    ] = True,
    openai_limit: Annotated[
        list[str] | None,
        typer.Option(
            callback=OPENAI_LIMITS,
            help="name=value, such as max_messages=100; see docs/openai.md. Repeatable.",
        ),
    ] = None,
    rollout_min_ready: Annotated[
        int,
        typer.Option(
            min=0,
            max=86_400_000,
            help="Milliseconds that the first agent serves a new desired state before others "
            "follow; deployments of `fleet apply` have rules of their own.",
        ),
    ] = 10_000,
    model_store: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which models are kept for the agents: each is fetched once, and what "
            "is pushed lies there."
        ),
    ] = None,
    model_store_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            callback=judged(size_in_bytes),
            help="What the model store may take of the disk, such as 200GB or 180GiB.",
        ),
    ] = None,
    audit_log: Annotated[
        Path | None,
        typer.Option(help="File to which every management action is appended, one JSON a line."),
    ] = None,
    otlp_endpoint: OtlpEndpointOption = None,
    trace_sample_ratio: TraceSampleRatioOption = 1.0,
    access_log: AccessLogOption = AccessLog.off,
    access_log_file: AccessLogFileOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_json: LogJsonOption = None,
    config_file: SettingsFileOption = None,
) -> None:
    """Run a balancer: applications on one port, operators and agents on the other."""
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import trio

    from paddler_trio.balancer.assembly.balancer_daemon import run_balancer_daemon
    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.system.systemd_notify import SystemdNotifier

    with one_line_errors():
        inference_addr = told_address(inference_addr)
        management_addr = told_address(management_addr)
        compat_openai_addr, reverseproxy_addr, web_admin_panel_addr, statsd_addr = (
            None if each is None else told_address(each)
            for each in (compat_openai_addr, reverseproxy_addr, web_admin_panel_addr, statsd_addr)
        )
    config = BalancerConfig(
        inference_addr=inference_addr,
        management_addr=management_addr,
        buffered_request_timeout_s=buffered_request_timeout / 1000,
        max_buffered_requests=max_buffered_requests,
        inference_item_timeout_s=inference_item_timeout / 1000,
        state_database=state_database,
        inference_cors_allowed_hosts=tuple(inference_cors_allowed_host or ()),
        management_cors_allowed_hosts=tuple(management_cors_allowed_host or ()),
        allowed_hosts=tuple(allowed_host or ()),
        metrics_prefix=statsd_prefix,
        statsd_addr=statsd_addr,
        statsd_interval_s=statsd_reporting_interval / 1000,
        statsd_v1_names=statsd_v1_names,
        drain_timeout_s=drain_timeout / 1000,
        takes_over=take_over,
        hot_restart_path=hot_restart_socket,
        hot_restart_drain_s=hot_restart_drain_timeout / 1000,
        max_continuations=max_continuations,
        continuation_wait_s=continuation_wait / 1000,
        agent_silence_s=agent_silence / 1000,
        max_connections=max_connections,
        input_memory_bytes=input_memory * 1024**2,
        api_key_file=api_key_file,
        agents_file=agents_file,
        legacy_agents=tuple(legacy_agents or ()),
        trusted_proxies=tuple(trusted_proxy or ()),
        insecure_management=insecure_management,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        tls_client_auth=tls_client_auth,
        compat_openai_addr=compat_openai_addr,
        reverseproxy_addr=reverseproxy_addr,
        reverseproxy_response_timeout_s=reverseproxy_response_timeout / 1000,
        rewrite_host_header=rewrite_host_header,
        slots_endpoint=slots_endpoint_enable,
        web_admin_panel_addr=web_admin_panel_addr,
        capture_prompts=capture_prompts,
        image_hosts=tuple(image_host or ()),
        strict_model_names=strict_model_names,
        strict_openai_fields=strict_openai_fields,
        normalise_prompts=normalise_prompts,
        openai_limits=tuple(openai_limit or ()),
        otlp_endpoint=otlp_endpoint,
        trace_sample_ratio=trace_sample_ratio,
        access_log=access_log_form(access_log, access_log_file),
        access_log_file=access_log_file,
        rollout_min_ready_s=rollout_min_ready / 1000,
        model_store=model_store,
        audit_log=audit_log,
        model_store_size_bytes=0 if model_store_size is None else size_in_bytes(model_store_size),
    )
    notifier = SystemdNotifier.from_environment()

    async def body(stop: trio.Event) -> None:
        report_unknown_variables(context)
        await run_balancer_daemon(config, stop, notifier=notifier)

    run_daemon(body, log_level=log_level, log_json=log_json)
