"""Traces and the access log of a balancer: wired to its requests and its ports, where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from paddler_trio.balancer.activity.accounts.account_keeper import AccountKeeper
from paddler_trio.balancer.activity.accounts.account_spans import spans_of
from paddler_trio.balancer.activity.accounts.entrance import Entrance
from paddler_trio.balancer.activity.accounts.request_account import RequestAccount
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.telemetry.line_writer import LineWriter
from paddler_trio.telemetry.otlp_exporter import open_exporter
from paddler_trio.telemetry.span_export import SpanExport
from paddler_trio.telemetry.trace_context import Sampling


@attrs.frozen(eq=False)
class RequestWatch:
    """``entrance`` goes in front of what answers clients of inference; ``observers`` see the
    requests that become of theirs; ``services`` and ``reloads`` are as in ``BalancerParts``."""

    entrance: Entrance
    observers: Sequence[DispatchObserver]
    services: dict[str, Run]
    reloads: Sequence[Run]

    @classmethod
    def of(
        cls, config: BalancerConfig, activity: RequestActivity, addresses: Sequence[str]
    ) -> RequestWatch:
        """Nothing observes a request if neither traces nor an access log are wanted.

        Args:
          addresses: of the inference port: the name of this balancer in traces.

        Errors:
          ConfigurationError: a bad endpoint, no OpenTelemetry, a file that cannot be written.
        """
        takers: list[Callable[[RequestAccount], None]] = []
        services: dict[str, Run] = {}
        reloads: list[Run] = []
        if config.otlp_endpoint is not None:
            exporter = open_exporter(
                config.otlp_endpoint,
                service="paddler-trio-balancer",
                instance=addresses[0] if addresses else "balancer",
            )
            export = SpanExport(exporter)
            takers.append(partial(_export, export))
            services["span export"] = export.run
        if config.access_log is not None:
            writer = LineWriter(config.access_log_file)
            form = config.access_log
            takers.append(lambda account: writer.put(account.entry().line(form)))
            services["access log"] = writer.run
            if writer.path is not None:
                reloads.append(writer.reopen)
        sampling = Sampling(config.otlp_endpoint is not None, config.trace_sample_ratio)
        if not takers:
            return cls(Entrance(sampling), (), services, reloads)
        keeper = AccountKeeper(activity.in_flight, takers)
        return cls(Entrance(sampling, keeper), (keeper,), services, reloads)


def _export(export: SpanExport, account: RequestAccount) -> None:
    if account.trace.is_exported:
        export.put(partial(spans_of, account))
