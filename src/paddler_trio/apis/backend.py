"""What the endpoints of all APIs share: the dispatcher, the desired state and the settings."""

from __future__ import annotations

import time

import attrs

from paddler_trio.apis.ignored_fields import IgnoredFieldsLog
from paddler_trio.apis.limits import ApiLimits
from paddler_trio.balancer.desired_state import DesiredStateKeeper
from paddler_trio.nursery_tree.dispatcher import Dispatcher


@attrs.frozen(kw_only=True)
class ApiSettings:
    """What the operator decided.

    Attributes:
      image_hosts: ``host`` or ``host:port`` from which images may be fetched; none by default.
      strict_model_names: refuse requests for a model that is not served.
      strict_fields: refuse fields that would be ignored.
    """

    image_hosts: frozenset[str] = frozenset()
    strict_model_names: bool = False
    strict_fields: bool = False
    limits: ApiLimits = attrs.field(factory=ApiLimits)


@attrs.frozen(eq=False)
class Backend:
    """See the module docstring."""

    dispatcher: Dispatcher
    states: DesiredStateKeeper
    settings: ApiSettings
    created_s: int = attrs.field(factory=lambda: int(time.time()), init=False)
    """The ``created`` of the models that are served."""
    ignored_fields: IgnoredFieldsLog = attrs.field(factory=IgnoredFieldsLog, init=False)

    @property
    def limits(self) -> ApiLimits:
        return self.settings.limits
