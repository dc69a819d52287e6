"""All metrics of a balancer, in their order, each read at the moment at which it is rendered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from paddler_trio.balancer.activity.measures.fleet_measures import FleetMeasures
from paddler_trio.balancer.activity.measures.request_measures import RequestMeasures
from paddler_trio.balancer.activity.measures.store_measures import of_store
from paddler_trio.balancer.activity.placement_observer import PlacementObserver
from paddler_trio.balancer.fleet.fleet_controller import FleetController
from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.telemetry.balancer_metrics import (
    API_KEY_LIMITED,
    API_KEY_REFUSALS,
    API_KEY_REQUESTS,
    EVENT_LOOP_LAG_MILLISECONDS,
    EVENT_LOOP_STALLS,
    INPUT_BYTES,
    INPUT_BYTES_LIMIT,
    INPUT_REFUSALS,
    TLS_CERTIFICATE_EXPIRY_SECONDS,
)
from paddler_trio.telemetry.recording import (
    BoundedValues,
    Family,
    Histogram,
    distributed,
    family,
    single,
)
from paddler_trio.telemetry.shared_metrics import (
    LOOP_LAG_SECONDS,
    REQUESTS_BUFFERED,
    SLOTS_PROCESSING,
    SLOTS_TOTAL,
    build_info,
)


@attrs.define(eq=False, repr=False)
class BalancerMeasures:
    """See the module docstring.

    Args:
      requests: what it has seen of requests and agents.
    """

    dispatcher: Dispatcher
    fleet: FleetController
    requests: RequestMeasures
    budget: InputBudget
    lag: LoopLag
    keys: KeyRing = attrs.field(factory=KeyRing)
    certificate_left_s: Callable[[], float] | None = attrs.field(default=None, init=False)
    """Until the certificate of the ports expires; None without TLS."""
    placed: PlacementObserver | None = attrs.field(default=None, init=False)
    """Sees how requests are placed."""
    store: ModelStoreChild | None = attrs.field(default=None, init=False)
    """None without a model store."""
    _lags: Histogram = attrs.field(factory=lambda: Histogram(LOOP_LAG_SECONDS), init=False)

    def __attrs_post_init__(self) -> None:
        self.lag.on_late = self._lags.of().add

    def __repr__(self) -> str:
        return f"<BalancerMeasures {self.requests!r}, {self.requests.agents!r}>"

    def collect(self) -> Iterator[Family]:
        """Return all metrics."""
        statistics = self.dispatcher.statistics()
        yield single(SLOTS_PROCESSING, statistics.slots_processing)
        yield single(SLOTS_TOTAL, statistics.slots_total)
        yield single(REQUESTS_BUFFERED, statistics.requests_buffered)
        yield single(INPUT_BYTES, self.budget.held_bytes)
        yield single(INPUT_BYTES_LIMIT, self.budget.limit_bytes)
        yield single(INPUT_REFUSALS, self.budget.refusals)
        yield single(EVENT_LOOP_LAG_MILLISECONDS, round(self.lag.worst_s * 1000))
        yield single(EVENT_LOOP_STALLS, self.lag.stalls)
        yield distributed(self._lags)
        yield build_info("balancer")
        yield from of_keys(self.keys)
        if self.certificate_left_s is not None:
            yield single(TLS_CERTIFICATE_EXPIRY_SECONDS, round(self.certificate_left_s()))
        fleet = FleetMeasures(self.dispatcher, self.fleet)
        yield from self.requests.families()
        if self.placed is not None:
            yield from self.placed.families()
        yield from fleet.deployments()
        yield from self.requests.agents.families()
        yield from fleet.rollouts()
        if self.store is not None:
            yield from of_store(self.store)


def of_keys(keys: KeyRing) -> Iterator[Family]:
    """Return requests by the name of their API key, how many had none, and how many were over a
    limit of theirs; nothing without a key file."""
    if keys.path is None:
        return
    values: dict[tuple[str, ...], float] = {}
    bound = BoundedValues(API_KEY_REQUESTS.max_label_values)
    for name, number in sorted(keys.requests.items()):
        label = (bound.bounded(name),)
        values[label] = values.get(label, 0) + number
    yield family(API_KEY_REQUESTS, values)
    yield single(API_KEY_REFUSALS, keys.refusals)
    limited: dict[tuple[str, ...], float] = {}
    bound = BoundedValues(API_KEY_LIMITED.max_label_values)
    for (name, limit), number in sorted(keys.limited.items()):
        both = (bound.bounded(name), limit)
        limited[both] = limited.get(both, 0) + number
    yield family(API_KEY_LIMITED, limited)
